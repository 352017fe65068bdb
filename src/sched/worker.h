/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h: the worker that runs a job, and what the job calls on it. */
#pragma once

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
    int64_t next_yield;         /* clock_now_ns: not before */

    /* About the job that runs. The thread itself changes them under the pool's lock, and
     * reads them without it. */
    struct sched_job *job;
    const struct sched_client *client; /* of `job`, to be compared: it may be gone */
    int64_t begun;                     /* clock_now_ns */
    int64_t expected_end;              /* clock_now_ns; 0: no job runs */
    int64_t tag;                       /* start tag of `job` */
    /* Set by the job while its loops compute results of other jobs, too: no task of them
     * is omitted. */
    bool shares_loops;
    int64_t inner_ns; /* the time of inner jobs since it began */
    int64_t large_ns; /* the part of inner_ns that large ones took */

    atomic_int_fast64_t helped_ns; /* the time that other threads worked for `job` */
    size_t called; /* the last sched_call_on_each() that it has seen; under the lock */
};

/* Whether the result of a job is not wanted any more: cancelled, or past its deadline. */
bool sched_job_is_over(const struct sched_job *job);

/* --- for a job that runs, on its worker --- */

/* Whether a job waits. */
bool sched_any_waits(const struct sched_worker *worker);

/* Goes on with a part that costs more than the job was estimated to, and counts it as a
 * large job of its client. */
void sched_go_on(struct sched_worker *worker, int64_t cost);

/* Runs shorter jobs that wait, if it is their turn, on the inner workers. A large job
 * calls this about every SCHED_CHEAP_NS; sched_parallel_for() does between two tasks.
 * `worker` is void * so that the function can be a pace.checkpoint. */
void sched_checkpoint(void *worker);

/* Takes jobs of the group that wait, so that the worker runs them together with its own
 * job, and writes them to ret_jobs [max]. Returns how many; they have at most max_rows
 * rows in all. */
size_t sched_take_group(struct sched_worker *worker, uint64_t group, size_t max_rows,
                        struct sched_job **ret_jobs, size_t max);

/* Called before the result is handed over: the worker counts as idle from now on, so that
 * the next request of the same client is not refused for a job that has ended. A client
 * whose job is over early is charged only for the time that it has used. */
void sched_end_job(struct sched_worker *worker);

/* Returns the time in ns that the job took so far, without inner jobs, on its own thread;
 * worker->helped_ns is that on others, which helped with its loops. */
int64_t sched_used_ns(const struct sched_worker *worker);

/* --- for the pool; with its lock held, but for worker_run() --- */

/* Notes that a worker begins the job that it took from the queue. */
void worker_begin_locked(struct sched_worker *worker, struct sched_job *job);

/* Runs the job that the worker has begun. */
void worker_run(struct sched_worker *worker);

/* Notes that the worker's job has ended, unless that was noted already. */
void worker_end_locked(struct sched_worker *worker);

/* Returns how long in ns the job of an outer worker must run until a large one that waits
 * may run inside it; 0 or less: no longer. */
int64_t worker_find_wait(const struct sched_worker *worker, const struct sched_job *job);
