/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: reserves bytes, and drops uploads when there are not enough.
 *
 * `lock` guards the list of uploads alone. It is taken once when an upload begins, once
 * when it ends, and when a reservation does not fit. Nothing else is locked meanwhile. */
#include "http/net/memory.h"

#include "base/clock.h"
#include "base/size.h"

#include <string.h>

/* How a body grows: at first to this, then by half of what it has, but at most by the
 * largest step. */
#define FIRST_BYTES  ((size_t)64 * 1024)
#define LARGEST_STEP ((size_t)4 * 1024 * 1024)

void memory_init(struct memory *memory, struct sched_budget *budget, size_t connections) {
    memory->budget = budget;
    memory->connections = connections;
    sched_budget_reserve(budget, connections);
    memory->uploads = NULL;
    atomic_init(&memory->lack, 0);
    pthread_mutex_init(&memory->lock, NULL);
}

void memory_deinit(struct memory *memory) {
    pthread_mutex_destroy(&memory->lock);
}

void memory_share_init(struct memory_share *share, struct memory *memory,
                       struct client *client) {
    share->memory = memory;
    share->client = client;
    share->upload = NULL;
    atomic_init(&share->bytes, 0);
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

static void unlink_locked(struct upload *upload) {
    struct memory *memory = upload->share->memory;
    if (upload->previous != NULL)
        upload->previous->next = upload->next;
    else
        memory->uploads = upload->next;
    if (upload->next != NULL)
        upload->next->previous = upload->previous;
}

/* Returns the idle upload with the largest score, or NULL. *ret_bytes is what all idle
 * ones together hold. */
static struct upload *find_victim_locked(struct memory *memory, int64_t now,
                                         double *ret_score, size_t *ret_bytes) {
    struct upload *victim = NULL;

    *ret_score = 0;
    *ret_bytes = 0;
    for (struct upload *upload = memory->uploads; upload != NULL; upload = upload->next) {
        if (atomic_load(&upload->state) != UPLOAD_IDLE)
            continue;
        double score = find_score(upload, now);
        size_add_saturating(ret_bytes, atomic_load(&upload->share->bytes));
        if (victim == NULL || score > *ret_score) {
            victim = upload;
            *ret_score = score;
        }
    }
    return victim;
}

/* Drops uploads until `bytes` are reserved. Returns false when the uploads that may be
 * dropped do not hold enough, or when one of them has a smaller score than the upload
 * that asks. */
static bool reserve_by_dropping(struct memory_share *share, size_t bytes) {
    struct memory *memory = share->memory;
    struct sched_budget *budget = memory->budget;
    int64_t now = clock_now_ns();
    bool reserved = false, hopeless = false;

    pthread_mutex_lock(&memory->lock);
    while (!hopeless && !(reserved = sched_budget_reserve(budget, bytes))) {
        double score;
        size_t droppable;
        struct upload *victim = find_victim_locked(memory, now, &score, &droppable);
        size_add_saturating(&droppable, sched_budget_left(budget));

        int idle = UPLOAD_IDLE;
        hopeless = victim == NULL || droppable < bytes ||
                   (share->upload != NULL && find_score(share->upload, now) >= score);
        if (hopeless ||
            !atomic_compare_exchange_strong(&victim->state, &idle, UPLOAD_DROPPED))
            continue;
        unlink_locked(victim);
        buf_deinit(victim->body);
        memory_keep(victim->share, 0);
    }
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

bool memory_reserve(struct memory_share *share, size_t bytes,
                    struct wire_problem *ret_problem) {
    struct memory *memory = share->memory;
    size_t limit = memory->budget->limit - memory->connections;
    size_t total = atomic_load(&share->bytes);

    if (reserve_free(share, bytes))
        return true;
    if (bytes <= limit && reserve_by_dropping(share, bytes)) {
        count_reserved(share, bytes);
        return true;
    }

    size_add_saturating(&total, bytes);
    if (total > limit)
        return wire_problem_set(
            ret_problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
            "request, results and reply would need %zu bytes, more than the %zu that "
            "--max-memory leaves for requests; send fewer or shorter sequences, or ask "
            "for \"need_weights\": \"mean\" or false",
            total, limit);
    atomic_store(&memory->lack, clock_now_ns());
    return wire_problem_set_no_memory(ret_problem);
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
    atomic_init(&upload->received, 0);
    atomic_init(&upload->state, UPLOAD_IDLE);
    share->upload = upload;

    pthread_mutex_lock(&memory->lock);
    upload->next = memory->uploads;
    if (upload->next != NULL)
        upload->next->previous = upload;
    memory->uploads = upload;
    pthread_mutex_unlock(&memory->lock);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Makes room for `size` bytes, and for some more when memory is not short. */
static bool grow_body(struct upload *upload, size_t size, struct wire_problem *problem) {
    struct buf *body = upload->body;
    size_t needed = body->size + size;
    if (needed <= body->capacity)
        return true;

    size_t step = smaller(body->capacity / 2, LARGEST_STEP);
    size_t wanted = body->capacity == 0 ? FIRST_BYTES : body->capacity + step;
    wanted = smaller(wanted < needed ? needed : wanted, body->max);
    if (!reserve_free(upload->share, wanted - body->capacity)) {
        wanted = needed; /* for which others may be dropped */
        if (!memory_reserve(upload->share, wanted - body->capacity, problem))
            return false;
    }
    if (buf_set_capacity(body, wanted) == ATTN_OK)
        return true;
    return wire_problem_set_no_memory(problem);
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
    atomic_store(&upload->state, UPLOAD_IDLE);
    return added;
}

bool upload_end(struct upload *upload) {
    struct memory *memory;
    int idle = UPLOAD_IDLE;

    if (upload->share == NULL)
        return true;
    memory = upload->share->memory;
    bool kept = atomic_compare_exchange_strong(&upload->state, &idle, UPLOAD_BUSY);
    /* Also when it was dropped: the thread that does it may still be at work. */
    pthread_mutex_lock(&memory->lock);
    if (kept)
        unlink_locked(upload);
    pthread_mutex_unlock(&memory->lock);
    upload->share->upload = NULL;
    upload->share = NULL;
    return kept;
}
