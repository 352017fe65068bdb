/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: reserves bytes, and drops uploads when there are not enough.
 *
 * `lock` guards the list of uploads, and that an upload is dropped. It is taken once when
 * an upload begins, once when it ends, and when a reservation does not fit. No other lock
 * is taken meanwhile. A thread that drops a busy upload waits until it is idle; no thread
 * takes the lock while its upload is busy, so that is soon. */
#include "http/net/memory.h"

#include "base/clock.h"
#include "base/heap.h"
#include "base/size.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* How a body grows: at first to this, then by half of what it has, but at most by the
 * largest step. */
#define FIRST_BYTES  ((size_t)64 * 1024)
#define LARGEST_STEP ((size_t)4 * 1024 * 1024)
/* A body of that capacity is moved for the last time. */
#define MAPPED_BODY_MIN ((size_t)4 * 1024 * 1024)

void memory_init(struct memory *memory, struct sched_budget *budget, size_t connections) {
    memory->budget = budget;
    sched_budget_reserve(budget, connections);
    memory->limit = sched_budget_left(budget);
    LIST_INIT(&memory->uploads);
    atomic_init(&memory->lack, 0);
    pthread_mutex_init(&memory->lock, NULL);
}

void memory_deinit(struct memory *memory) {
    pthread_mutex_destroy(&memory->lock);
}

bool memory_lacked_since(struct memory *memory, int64_t time) {
    return atomic_load(&memory->lack) > time;
}

/* --- dropping uploads --- */

static double find_score(const struct upload *upload, int64_t now) {
    double bytes = (double)atomic_load(&upload->received) + 1;
    return (double)(now - upload->started) / bytes *
           (double)atomic_load(&upload->share->client->held);
}

/* Returns the upload that is dropped first when `asker` needs `bytes`, or NULL when those
 * with a larger score hold too little. `asker` is NULL for a complete request, for which
 * any upload is dropped. */
static struct upload *find_victim_locked(struct memory *memory,
                                         const struct upload *asker, size_t bytes,
                                         int64_t now) {
    struct upload *victim = NULL, *upload;
    double largest = asker != NULL ? find_score(asker, now) : -1;
    double least = largest;
    size_t available = sched_budget_left(memory->budget);

    LIST_FOREACH(upload, &memory->uploads, links) {
        double score = find_score(upload, now);
        size_t holds = atomic_load(&upload->share->bytes);
        if (holds == 0 || score <= least)
            continue;
        size_add_saturating(&available, holds);
        if (score > largest) {
            victim = upload;
            largest = score;
        }
    }
    return available >= bytes ? victim : NULL;
}

/* Drops an upload. One that is busy is soon idle: its thread waits for no lock. */
static void drop_locked(struct upload *upload) {
    int idle = UPLOAD_IDLE;
    while (!atomic_compare_exchange_weak(&upload->state, &idle, UPLOAD_DROPPED)) {
        idle = UPLOAD_IDLE;
        sched_yield();
    }
    LIST_REMOVE(upload, links);
    buf_deinit(upload->body);
    memory_keep(upload->share, 0);
}

/* Drops uploads until `bytes` are reserved. When they do not hold enough, drops `asker`
 * instead, whose memory others may need, and returns false. An asker waits for the lock
 * as idle, so that one that has the lock does not wait for it. */
static bool reserve_by_dropping(struct memory *memory, struct upload *asker,
                                size_t bytes) {
    bool reserved = false;

    if (asker != NULL)
        atomic_store(&asker->state, UPLOAD_IDLE);
    pthread_mutex_lock(&memory->lock);
    int64_t now = clock_now_ns();
    while (asker == NULL || atomic_load(&asker->state) == UPLOAD_IDLE) {
        reserved = sched_budget_reserve(memory->budget, bytes);
        if (reserved)
            break;
        struct upload *victim = find_victim_locked(memory, asker, bytes, now);
        if (victim == NULL && asker == NULL)
            break;
        drop_locked(victim != NULL ? victim : asker);
    }
    if (reserved && asker != NULL)
        atomic_store(&asker->state, UPLOAD_BUSY);
    pthread_mutex_unlock(&memory->lock);
    return reserved;
}

/* --- shares --- */

static void count_reserved(struct memory_share *share, size_t bytes) {
    atomic_fetch_add(&share->bytes, bytes);
    atomic_fetch_add(&share->client->held, bytes);
}

/* Reserves what is free, without dropping anything. */
static bool reserve_free(struct memory_share *share, size_t bytes) {
    bool reserved = sched_budget_reserve(share->memory->budget, bytes);
    if (reserved)
        count_reserved(share, bytes);
    return reserved;
}

/* As memory_reserve(). `asker` is the upload that has the share while it is
 * unfinished. */
static bool reserve_for(struct memory_share *share, struct upload *asker, size_t bytes,
                        struct wire_problem *ret_problem) {
    struct memory *memory = share->memory;
    size_t limit = memory->limit;
    size_t total = atomic_load(&share->bytes);

    size_add_saturating(&total, bytes);
    if (total > limit)
        return wire_problem_set(
            ret_problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
            "request, results and reply would need %zu bytes, more than the %zu that "
            "--max-memory leaves for requests; send fewer or shorter sequences, or ask "
            "for \"need_weights\": \"mean\" or false",
            total, limit);

    if (sched_budget_reserve(memory->budget, bytes) ||
        reserve_by_dropping(memory, asker, bytes)) {
        count_reserved(share, bytes);
        return true;
    }
    atomic_store(&memory->lack, clock_now_ns());
    return wire_problem_set_no_memory(ret_problem);
}

bool memory_reserve(void *share, size_t bytes, struct wire_problem *ret_problem) {
    return reserve_for(share, NULL, bytes, ret_problem);
}

void memory_keep(struct memory_share *share, size_t bytes) {
    size_t has = atomic_load(&share->bytes);
    if (has <= bytes)
        return;
    atomic_store(&share->bytes, bytes);
    atomic_fetch_sub(&share->client->held, has - bytes);
    sched_budget_release(share->memory->budget, has - bytes);
}

/* --- uploads --- */

void upload_begin(struct upload *upload, struct memory_share *share, struct buf *body) {
    struct memory *memory = share->memory;

    *upload = (struct upload){.share = share, .body = body, .started = clock_now_ns()};

    pthread_mutex_lock(&memory->lock);
    LIST_INSERT_HEAD(&memory->uploads, upload, links);
    pthread_mutex_unlock(&memory->lock);
}

/* Lets a body have so many bytes, which are reserved. A large one gets addresses for its
 * maximum at once, so that its huge pages never move, which would split them. What does
 * not arrive is never written, and takes no memory. */
static bool set_body_capacity(struct upload *upload, size_t capacity) {
    struct buf *body = upload->body;
    size_t bytes = (body->max + HEAP_ALIGNMENT - 1) / HEAP_ALIGNMENT * HEAP_ALIGNMENT;

    if (capacity > upload->mapped) {
        char *data = capacity >= MAPPED_BODY_MIN ? heap_alloc(bytes) : NULL;
        if (data == NULL) /* small, or no addresses are left */
            return buf_set_capacity(body, capacity) == ATTN_OK;
        memcpy(data, body->data, body->size);
        free(body->data);
        body->data = data;
        upload->mapped = bytes;
    }
    body->capacity = capacity;
    return true;
}

/* Makes room for `size` bytes, and for some more when memory is not short. */
static bool grow_body(struct upload *upload, size_t size, struct wire_problem *problem) {
    struct buf *body = upload->body;
    size_t needed = body->size + size;
    if (needed <= body->capacity)
        return true;

    size_t step = size_min(body->capacity / 2, LARGEST_STEP);
    size_t wanted = body->capacity == 0 ? FIRST_BYTES : body->capacity + step;
    wanted = size_min(size_max(wanted, needed), body->max);
    if (!reserve_free(upload->share, wanted - body->capacity)) {
        wanted = needed; /* for which others may be dropped */
        if (!reserve_for(upload->share, upload, wanted - body->capacity, problem))
            return false;
    }
    return set_body_capacity(upload, wanted) || wire_problem_set_no_memory(problem);
}

bool upload_append(struct upload *upload, const char *data, size_t size,
                   struct wire_problem *ret_problem) {
    struct buf *body = upload->body;
    int idle = UPLOAD_IDLE;

    if (!atomic_compare_exchange_strong(&upload->state, &idle, UPLOAD_BUSY))
        return wire_problem_set_no_memory(ret_problem);

    bool added = grow_body(upload, size, ret_problem);
    if (added)
        buf_append(body, data, size); /* cannot fail: there is room */
    atomic_store(&upload->received, body->size);
    int busy = UPLOAD_BUSY; /* unless it was dropped */
    atomic_compare_exchange_strong(&upload->state, &busy, UPLOAD_IDLE);
    return added;
}

bool upload_end(struct upload *upload) {
    if (upload->share == NULL)
        return true;
    struct memory *memory = upload->share->memory;

    pthread_mutex_lock(&memory->lock);
    bool kept = atomic_load(&upload->state) != UPLOAD_DROPPED;
    if (kept)
        LIST_REMOVE(upload, links);
    pthread_mutex_unlock(&memory->lock);
    upload->share = NULL;
    return kept;
}
