/* SPDX-License-Identifier: Apache-2.0 */
/* inner.c: jobs that run inside a larger one, on the inner workers of its thread: which
 * may, and when. What it has used and what they took is changed under the pool's lock, by
 * its own thread alone. */
#include "base/clock.h"
#include "sched/pool.h"
#include "sched/pool_state.h"

#include <sched.h>

/* A large job runs inside another one that has used so many times as long already. */
#define SHORTER_SHARE 8

static int64_t min_ns(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max_ns(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* A client whose job is long must not keep large ones of others out for longer than they
 * may wait in the queue. So for these all times count as max_delay at most. Both
 * functions below state the same rule: SHORTER_SHARE, and that large jobs inside get half
 * of the time of the outer one, as far as it can be known before they have run. */
int64_t inner_find_wait(const struct sched_worker *worker, const struct sched_job *job) {
    const int64_t used = sched_used_ns(worker), left = used - worker->large_ns;
    int64_t cost = min_ns(job->cost + job->later, SCHED_COST_MAX);
    int64_t before = cost * SHORTER_SHARE, half = cost;

    if (job->client != worker->client) {
        before = min_ns(before, worker->pool->options.max_delay);
        half = min_ns(half, worker->pool->options.max_delay);
    }
    return max_ns(before - used, half - left);
}

/* Returns the most that a large job of the same client may cost, or one of another. */
static int64_t find_max_cost(const struct sched_worker *worker, int64_t used,
                             bool is_other) {
    const int64_t max_delay = worker->pool->options.max_delay;
    int64_t left = used - worker->large_ns;

    if (!is_other || used < max_delay)
        return min_ns(left, used / SHORTER_SHARE);
    return left < max_delay ? left : INT64_MAX;
}

/* Begins a job inside the worker's when it is its turn: a cheap one on the innermost
 * worker, else a large one. Cheap ones get half of the time at most, and so do large
 * ones, so that no number of them can hold up the outer one for long. Returns the worker
 * that has the job, or NULL. */
static struct sched_worker *begin_inner_job(struct sched_worker *worker,
                                            uint64_t except) {
    struct sched_pool *pool = worker->pool;
    struct sched_worker *inner = worker->inner, *innermost = inner;
    int64_t used = sched_used_ns(worker), reached = worker->tag + used;
    int64_t max_own = find_max_cost(worker, used, false);
    int64_t max_other = find_max_cost(worker, used, true);
    bool may_be_large = inner->inner != NULL && except == 0 && max_other > SCHED_CHEAP_NS;
    bool may_be_cheap = worker->inner_ns - 2 * worker->large_ns <= used + SCHED_CHEAP_NS;

    if (atomic_load(may_be_large ? &pool->num_queued : &pool->num_cheap) == 0 ||
        (!may_be_large && !may_be_cheap))
        return NULL;
    while (innermost->inner != NULL)
        innermost = innermost->inner;

    pthread_mutex_lock(&pool->lock);
    struct sched_job *job =
        may_be_cheap ? queue_take_cheap(&pool->queue, reached, except) : NULL;
    if (job != NULL)
        inner = innermost;
    else if (may_be_large)
        job =
            queue_take_shorter(&pool->queue, reached, worker->client, max_own, max_other);
    if (job != NULL)
        begin_job_locked(inner, job);
    pthread_mutex_unlock(&pool->lock);
    return job != NULL ? inner : NULL;
}

void sched_run_others(struct sched_worker *worker, uint64_t group) {
    struct sched_worker *inner;

    if (worker->is_outer)
        sched_yield(); /* an HTTP thread needs a core for a moment only */
    while (worker->inner != NULL && (inner = begin_inner_job(worker, group)) != NULL) {
        run_job(inner);

        int64_t took = clock_now_ns() - inner->begun;
        pthread_mutex_lock(&worker->pool->lock);
        end_job_locked(inner);
        worker->inner_ns += took;
        worker->large_ns += inner->inner != NULL ? took : 0;
        worker->expected_end += took;
        pthread_mutex_unlock(&worker->pool->lock);
    }
}
