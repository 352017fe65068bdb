/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the threads of the workers, and the slots of the queue.
 *
 * A job's slot is reserved before its connection is suspended, so submitting the job
 * afterwards cannot fail (docs/threads.md). `lock` guards all members below it in struct
 * sched_pool. No callback runs with `lock` held, and a worker that waits holds no other
 * lock. */
#include "sched/pool.h"

#include "base/clock.h"
#include "base/heap.h"
#include "sched/loop.h"
#include "sched/pool_state.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define RETRY_AFTER_MAX 30 /* seconds */
/* A client may have this many jobs waiting per slot that is still free. */
#define CLIENT_FREE_SLOTS 8
/* How long a worker keeps its arena while it has nothing to do. */
#define KEEP_SECONDS     5
#define INNER_KEEP_SHARE 8 /* divides arena_keep, for each inner worker */

/* Polls for a new job or loop during SPIN_NS, with the lock released. Yields to other
 * threads on this CPU, as one may be about to submit the job. */
static void spin_locked(struct sched_pool *pool) {
    size_t seen = atomic_load(&pool->num_loops);
    pthread_mutex_unlock(&pool->lock);
    int64_t spin_end = clock_now_ns() + SPIN_NS;
    while (queue_num_jobs(&pool->queue) == 0 && atomic_load(&pool->num_loops) == seen &&
           clock_now_ns() < spin_end)
        sched_yield();
    pthread_mutex_lock(&pool->lock);
}

/* Sleeps until there may be work. After KEEP_SECONDS without any, frees the worker's
 * arenas and trims the heap, so an idle pool keeps no memory of past jobs. */
static void sleep_locked(struct sched_pool *pool, struct sched_worker *worker,
                         bool *keeps) {
    if (!*keeps) {
        pthread_cond_wait(&pool->work, &pool->lock);
        return;
    }

    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += KEEP_SECONDS;
    if (pthread_cond_timedwait(&pool->work, &pool->lock, &until) != ETIMEDOUT)
        return;

    pthread_mutex_unlock(&pool->lock);
    for (struct sched_worker *at = worker; at != NULL; at = at->inner)
        arena_deinit(&at->arena);
    heap_trim(0);
    pthread_mutex_lock(&pool->lock);
    *keeps = false;
}

bool sched_is_ahead(const struct sched_pool *pool, const struct sched_client *client) {
    int64_t time = atomic_load(&pool->queue.time);
    return client->flows[SCHED_CHEAP].tag > time || client->flows[SCHED_LARGE].tag > time;
}

bool sched_member_is_ahead(const struct sched_client *client,
                           const struct sched_member *member) {
    for (size_t c = 0; c < SCHED_NUM_CLASSES; c++) {
        if (atomic_load(&member->tags[c]) > atomic_load(&client->flows[c].member_time))
            return true;
    }
    return false;
}

/* Makes the call that sched_call_on_each() asks for, once on this worker. */
static void call_once_locked(struct sched_worker *worker) {
    struct sched_pool *pool = worker->pool;
    if (pool->call == NULL || worker->called == pool->call_number)
        return;

    void (*call)(void *context) = pool->call;
    void *context = pool->call_context;
    worker->called = pool->call_number;
    pool->num_calling++;
    pthread_mutex_unlock(&pool->lock);
    call(context);
    pthread_mutex_lock(&pool->lock);
    pool->num_calling--;
    pool->num_called++;
    pthread_cond_signal(&pool->call_ended);
}

size_t sched_call_on_each(struct sched_pool *pool, void (*call)(void *context),
                          void *context, int64_t wait_ns) {
    const int64_t end = clock_now_ns() + wait_ns;
    const struct timespec until = {.tv_sec = end / 1000000000,
                                   .tv_nsec = end % 1000000000};

    pthread_mutex_lock(&pool->lock);
    pool->call = call;
    pool->call_context = context;
    pool->call_number++;
    pool->num_called = 0;
    pthread_cond_broadcast(&pool->work);
    while (pool->num_called < pool->options.num_workers &&
           pthread_cond_timedwait(&pool->call_ended, &pool->lock, &until) != ETIMEDOUT)
        ;
    pool->call = NULL;
    while (pool->num_calling > 0)
        pthread_cond_wait(&pool->call_ended, &pool->lock);
    size_t count = pool->num_called;
    pthread_mutex_unlock(&pool->lock);
    return count;
}

/* Ends the worker's last job and begins the next one; returns false when the queue is
 * empty and the pool is stopping. While no job waits, helps with loops of other
 * workers. */
static bool begin_next_job(struct sched_worker *worker) {
    struct sched_pool *pool = worker->pool;
    struct sched_job *job;
    bool keeps = true;
    bool may_spin = pool->options.num_workers > 1;

    pthread_mutex_lock(&pool->lock);
    worker_end_locked(worker);
    call_once_locked(worker);
    while ((job = queue_take(&pool->queue)) == NULL && !pool->stopping) {
        if (loop_help_locked(worker)) {
            may_spin = true;
        } else if (may_spin) {
            spin_locked(pool);
            may_spin = false;
        } else {
            sleep_locked(pool, worker, &keeps);
        }
        call_once_locked(worker);
    }

    if (job != NULL)
        worker_begin_locked(worker, job);
    pthread_mutex_unlock(&pool->lock);
    return job != NULL;
}

size_t sched_num_workers(const struct sched_pool *pool) {
    return pool->options.num_workers;
}

static void *worker_main(void *argument) {
    struct sched_worker *worker = argument;

    while (begin_next_job(worker))
        worker_run(worker);
    return NULL;
}

static bool start_worker(struct sched_pool *pool, size_t index) {
    size_t num_workers = pool->options.num_workers;
    size_t keep = pool->options.arena_keep, inner_keep = keep / INNER_KEEP_SHARE;
    struct sched_worker *inner = NULL;

    for (size_t level = SCHED_LEVELS; level-- > 0;) {
        struct sched_worker *worker = &pool->workers[level * num_workers + index];
        *worker = (struct sched_worker){
            .pool = pool, .index = index, .inner = inner, .is_outer = level == 0};
        arena_init(&worker->arena,
                   level > 0 ? inner_keep : keep - inner_keep * (SCHED_LEVELS - 1));
        inner = worker;
    }
    if (pthread_create(&pool->threads[index], NULL, worker_main, inner) != 0)
        return false;
    pool->num_started++;
    return true;
}

attn_status sched_pool_create(const struct sched_options *options,
                              struct sched_pool **ret_pool) {
    struct sched_pool *pool = calloc(1, sizeof *pool);
    attn_status status = ATTN_E_NOMEM;
    if (pool == NULL)
        return status;

    pool->options = *options;
    queue_init(&pool->queue);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->work, &monotonic);
    pthread_cond_init(&pool->call_ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&pool->helper_left, NULL);
    pool->threads = calloc(options->num_workers, sizeof *pool->threads);
    pool->workers = calloc(options->num_workers, SCHED_LEVELS * sizeof *pool->workers);
    if (pool->threads == NULL || pool->workers == NULL)
        goto fail;

    status = ATTN_E_IO;
    for (size_t i = 0; i < options->num_workers; i++) {
        if (!start_worker(pool, i))
            goto fail;
    }
    *ret_pool = pool;
    return ATTN_OK;

fail:
    sched_pool_destroy(pool);
    return status;
}

void sched_pool_destroy(struct sched_pool *pool) {
    if (pool == NULL)
        return;

    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);

    for (size_t i = 0; i < pool->num_started; i++) {
        pthread_join(pool->threads[i], NULL);
        for (struct sched_worker *at = &pool->workers[i]; at != NULL; at = at->inner)
            arena_deinit(&at->arena);
    }

    pthread_cond_destroy(&pool->helper_left);
    pthread_cond_destroy(&pool->call_ended);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

/* --- submitting --- */

/* Returns the ns, summed over all workers, until each running job ends or lets the large
 * `job` run inside it. If `job` is NULL, counts until each running job ends. */
static int64_t find_running_locked(const struct sched_pool *pool,
                                   const struct sched_job *job) {
    int64_t now = clock_now_ns(), sum = 0;

    for (size_t i = 0; i < pool->options.num_workers; i++) {
        const struct sched_worker *worker = &pool->workers[i];
        int64_t left = worker->expected_end - now;
        if (left > 0 && job != NULL) {
            int64_t wait = worker_find_wait(worker, job);
            left = wait < left ? wait : left;
        }
        sum += left > 0 ? left : 0;
    }
    return sum;
}

/* Returns the ns that a job would wait. A cheap job can run inside a running one, so it
 * does not wait until that one ends. */
static int64_t find_delay_locked(const struct sched_pool *pool,
                                 const struct sched_job *job) {
    int64_t work = queue_work_before(&pool->queue, job);
    if (job->cost + job->later > SCHED_CHEAP_NS)
        work += find_running_locked(pool, job);
    return work / (int64_t)pool->options.num_workers;
}

/* Whether the job's client may use one more slot. The fewer slots are free, the fewer
 * jobs it may have waiting, so that other clients find a slot too. */
static bool has_slot_locked(const struct sched_pool *pool, const struct sched_job *job) {
    const struct sched_flow *flows = job->client->flows;
    if (pool->num_slots >= pool->options.queue_slots) /* greater if workers were idle */
        return false;

    size_t num_free = pool->options.queue_slots - pool->num_slots;
    return flows[SCHED_CHEAP].num_jobs + flows[SCHED_LARGE].num_jobs <
           num_free * CLIENT_FREE_SLOTS;
}

bool sched_reserve(struct sched_pool *pool, struct sched_job *job) {
    pthread_mutex_lock(&pool->lock);
    bool idle = pool->num_running + pool->num_slots < pool->options.num_workers;
    bool admitted = idle || (has_slot_locked(pool, job) &&
                             find_delay_locked(pool, job) <= pool->options.max_delay);
    job->has_slot = admitted;
    pool->num_slots += admitted;
    pthread_mutex_unlock(&pool->lock);
    return admitted;
}

void sched_submit(struct sched_pool *pool, struct sched_job *job) {
    pthread_mutex_lock(&pool->lock);
    if (pool->num_running == 0 && queue_num_jobs(&pool->queue) == 0)
        queue_forget_shares(&pool->queue);
    if (atomic_load(&job->cancelled))
        job->cost = 0; /* it only ends */
    queue_add(&pool->queue, job);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

bool sched_cancel(struct sched_pool *pool, struct sched_job *job) {
    atomic_store(&job->cancelled, true);
    pthread_mutex_lock(&pool->lock);
    bool waits = job->waits;
    if (waits) {
        queue_remove(&pool->queue, job);
        release_slot_locked(pool, job);
    }
    pthread_mutex_unlock(&pool->lock);
    return waits;
}

struct sched_load sched_get_load(struct sched_pool *pool) {
    const struct sched_options *options = &pool->options;

    pthread_mutex_lock(&pool->lock);
    int64_t work = queue_work(&pool->queue) + find_running_locked(pool, NULL);
    const struct sched_load load = {.num_workers = options->num_workers,
                                    .num_busy = pool->num_running + pool->num_helping,
                                    .num_queued = queue_num_jobs(&pool->queue),
                                    .num_slots = options->queue_slots,
                                    .delay = work / (int64_t)options->num_workers,
                                    .max_delay = options->max_delay};
    pthread_mutex_unlock(&pool->lock);
    return load;
}

unsigned sched_retry_after(struct sched_pool *pool, const struct sched_job *job) {
    pthread_mutex_lock(&pool->lock);
    int64_t seconds = find_delay_locked(pool, job) / 1000000000 + 1;
    pthread_mutex_unlock(&pool->lock);
    return seconds < RETRY_AFTER_MAX ? (unsigned)seconds : RETRY_AFTER_MAX;
}
