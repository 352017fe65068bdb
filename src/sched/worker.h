/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h: what a job sees of the worker that runs it, and how a pool is made. */
#ifndef ATTND_SCHED_WORKER_H
#define ATTND_SCHED_WORKER_H

#include "base/arena.h"
#include "sched/queue.h"

struct sched_pool;

/* How many workers a thread has, one inside the other: one for a job of any length, one
 * for a much shorter job meanwhile, and one for cheap jobs. */
#define SCHED_LEVELS 3

/* Runs one job at a time. Between two tasks of a large one, its inner worker runs
 * others. */
struct sched_worker {
    struct sched_pool *pool;
    size_t index;               /* of the thread, 0..num_workers-1 */
    struct arena arena;         /* reset after every job */
    struct sched_worker *inner; /* NULL: this is the innermost, for cheap jobs alone */
    bool is_outer;              /* the outermost of its thread */

    /* About the job that runs. The thread itself changes them under the pool's lock, and
     * reads them without it. */
    struct sched_job *job;
    const struct sched_client *client; /* of `job`, to be compared: it may be gone */
    int64_t begun;                     /* clock_now_ns */
    int64_t expected_end;              /* likewise; 0: no job runs */
    int64_t tag;                       /* its start tag */
    bool shares_loops;                 /* its loops compute results of other jobs too */
    int64_t inner_ns;                  /* that inner jobs took since it began */
    int64_t large_ns;                  /* those of them that were large */

    atomic_int_fast64_t helped_ns; /* that other threads worked for it */
    size_t called; /* the last sched_call_on_each() that it has seen; under the lock */
};

struct sched_options {
    size_t num_workers; /* at least 1 */
    size_t queue_slots; /* jobs that may wait, at least 1 */
    int64_t max_delay;  /* ns of work before a job that waits */
    size_t arena_keep;  /* bytes that a worker keeps from job to job */
    /* Called once on every worker at the same time, or NULL; with `context`. */
    void (*on_start)(void *context);
    void *context;
};

#endif
