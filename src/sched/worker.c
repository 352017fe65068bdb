/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c: the job that a worker runs, and the shorter ones that run inside it, on the
 * inner workers of its thread. */
#include "sched/worker.h"

#include "base/clock.h"
#include "base/pace.h"
#include "sched/pool_state.h"

#include <sched.h>

/* A large job runs inside another one that has used this many times its cost. */
#define SHORTER_SHARE 8
/* How long a worker keeps its core: about a time slice of Linux. */
#define YIELD_NS 2000000

bool sched_job_is_over(const struct sched_job *job) {
    return atomic_load_explicit(&job->cancelled, memory_order_relaxed) ||
           (job->deadline != 0 && clock_now_ns() > job->deadline);
}

void worker_begin_locked(struct sched_worker *worker, struct sched_job *job) {
    struct sched_pool *pool = worker->pool;

    worker->job = job;
    worker->client = job->client;
    worker->begun = clock_now_ns();
    worker->expected_end = worker->begun + job->cost;
    worker->tag = job->tag;
    worker->shares_loops = false;
    worker->inner_ns = worker->large_ns = 0;
    atomic_store(&worker->helped_ns, 0);

    release_slot_locked(pool, job);
    pool->num_running += worker->is_outer;
}

void worker_end_locked(struct sched_worker *worker) {
    if (worker->job == NULL)
        return;
    worker->pool->num_running -= worker->is_outer;
    worker->job = NULL;
    worker->expected_end = 0;
}

void worker_run(struct sched_worker *worker) {
    struct pace pace = {.checkpoint = sched_checkpoint, .context = worker};
    struct pace *before = pace_enter(&pace);

    worker->job->run(worker->job, worker);
    pace_enter(before);
    arena_reset(&worker->arena);
}

/* --- what a job calls on its worker --- */

int64_t sched_used_ns(const struct sched_worker *worker) {
    return clock_now_ns() - worker->begun - worker->inner_ns;
}

size_t sched_take_group(struct sched_worker *worker, uint64_t group, size_t max_rows,
                        struct sched_job **ret_jobs, size_t max) {
    struct sched_pool *pool = worker->pool;

    pthread_mutex_lock(&pool->lock);
    size_t count = queue_take_group(&pool->queue, group, max_rows, ret_jobs, max);
    for (size_t i = 0; i < count; i++)
        release_slot_locked(pool, ret_jobs[i]);
    pthread_mutex_unlock(&pool->lock);
    return count;
}

void sched_end_job(struct sched_worker *worker) {
    struct sched_pool *pool = worker->pool;

    pthread_mutex_lock(&pool->lock);
    int64_t unused = worker->expected_end - clock_now_ns();
    if (unused > SCHED_CHEAP_NS && worker->job != NULL && sched_job_is_over(worker->job))
        queue_refund(&pool->queue, worker->job->client, sched_used_ns(worker), unused);
    worker_end_locked(worker);
    pthread_mutex_unlock(&pool->lock);
}

bool sched_any_waits(const struct sched_worker *worker) {
    return queue_num_jobs(&worker->pool->queue) > 0;
}

void sched_go_on(struct sched_worker *worker, int64_t cost) {
    struct sched_pool *pool = worker->pool;
    int64_t now = clock_now_ns();

    cost = clock_earlier(cost, SCHED_COST_MAX);
    pthread_mutex_lock(&pool->lock);
    worker->tag = queue_charge(&pool->queue, worker->job->client, cost);
    worker->expected_end = now + cost;
    pthread_mutex_unlock(&pool->lock);
}

/* --- jobs inside a job --- */

/* A large job may run inside another one that has used SHORTER_SHARE times as much time,
 * and large jobs inside get at most half of its time. A client whose job is long must not
 * keep large ones of others out for longer than they may wait in the queue. So for these
 * all times count as max_delay at most. */
int64_t worker_find_wait(const struct sched_worker *worker, const struct sched_job *job) {
    const int64_t used = sched_used_ns(worker), left = used - worker->large_ns;
    int64_t cost = clock_earlier(job->cost + job->later, SCHED_COST_MAX);
    int64_t before = cost * SHORTER_SHARE, half = cost;

    if (job->client != worker->client) {
        before = clock_earlier(before, worker->pool->options.max_delay);
        half = clock_earlier(half, worker->pool->options.max_delay);
    }
    before -= used;
    half -= left;
    return before > half ? before : half;
}

/* Whether a large job may run inside the worker's now; for queue_take_inner(). */
static bool fits_inside(const void *worker, const struct sched_job *job) {
    return worker_find_wait(worker, job) <= 0;
}

/* Begins a job inside the worker's when it is its turn: a cheap one on the innermost
 * worker, or else a large one on the next. Cheap ones get at most half of the time, and
 * so do large ones, so that no number of them can hold up the outer one for long. Returns
 * the worker that has the job, or NULL. */
static struct sched_worker *begin_inner_job(struct sched_worker *worker) {
    static const struct sched_job least_large = {.cost = SCHED_CHEAP_NS + 1};
    struct sched_pool *pool = worker->pool;
    struct sched_worker *inner = worker->inner, *innermost = inner;
    int64_t used = sched_used_ns(worker), reached = worker->tag + used;
    bool may_be_large = inner->inner != NULL && fits_inside(worker, &least_large);
    bool may_be_cheap = worker->inner_ns - 2 * worker->large_ns <= used + SCHED_CHEAP_NS;

    size_t num_waiting = may_be_large ? queue_num_jobs(&pool->queue)
                                      : atomic_load(&pool->queue.num_jobs[SCHED_CHEAP]);
    if (num_waiting == 0 || (!may_be_large && !may_be_cheap))
        return NULL;
    while (innermost->inner != NULL)
        innermost = innermost->inner;

    pthread_mutex_lock(&pool->lock);
    struct sched_job *job = NULL;
    if (may_be_cheap)
        job = queue_take_inner(&pool->queue, SCHED_CHEAP, reached, NULL, NULL);
    if (job != NULL)
        inner = innermost;
    else if (may_be_large)
        job = queue_take_inner(&pool->queue, SCHED_LARGE, reached, fits_inside, worker);
    if (job != NULL)
        worker_begin_locked(inner, job);
    pthread_mutex_unlock(&pool->lock);
    return job != NULL ? inner : NULL;
}

/* An HTTP thread needs a core for a moment only. Linux takes the rest of its time slice
 * from a thread that yields, so one that yields too often hardly runs beside others. */
static void yield_core(struct sched_worker *worker) {
    if (worker->is_outer && clock_now_ns() >= worker->next_yield) {
        sched_yield();
        worker->next_yield = clock_now_ns() + YIELD_NS;
    }
}

void sched_checkpoint(void *context) {
    struct sched_worker *worker = context, *inner;

    yield_core(worker);
    while (worker->inner != NULL && (inner = begin_inner_job(worker)) != NULL) {
        worker_run(inner);

        int64_t took = clock_now_ns() - inner->begun;
        pthread_mutex_lock(&worker->pool->lock);
        worker_end_locked(inner);
        worker->inner_ns += took;
        worker->large_ns += inner->inner != NULL ? took : 0;
        worker->expected_end += took;
        pthread_mutex_unlock(&worker->pool->lock);
    }
    pace_restart();
}
