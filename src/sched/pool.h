/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: a bounded queue of jobs and the worker threads that run them. */
#ifndef ATTND_SCHED_POOL_H
#define ATTND_SCHED_POOL_H

#include "sched/worker.h"

#include <attnd/status.h>

/* Starts the workers and waits until each has run on_start. The caller owns *ret_pool.
 * Returns ATTN_E_NOMEM, with no thread left running, when memory or a thread is
 * refused. */
attn_status sched_pool_create(const struct sched_options *options,
                              struct sched_pool **ret_pool);

/* Waits until every submitted job has run, then joins the workers. Accepts NULL. Nothing
 * may be submitted once it is called. */
void sched_pool_destroy(struct sched_pool *pool);

/* Reserves a slot for a job whose client and estimates are set; returns false when it
 * should not wait. An idle worker takes any job. Otherwise the queue may be full, or the
 * work before the job would take longer than max_delay; its own length does not count.
 * Nor does the rest of a job of another client that runs: it lets a large one run inside
 * once it has used max_delay.
 * The queue is full earlier for a client whose jobs wait in most of its slots, so that
 * others find one.
 * Each slot is then used by one sched_submit(). Thread-safe. */
bool sched_reserve(struct sched_pool *pool, const struct sched_job *job);

/* Hands a job over, into a slot reserved before; cannot fail. The slot is free again when
 * a worker takes the job. Thread-safe. */
void sched_submit(struct sched_pool *pool, struct sched_job *job);

/* Hands over a job that continues one that has run. Needs no slot, and is never refused:
 * what has begun holds memory until it is done. Thread-safe. */
void sched_resubmit(struct sched_pool *pool, struct sched_job *job);

/* Takes back a job that still waits and returns true; the caller then owns it. Otherwise
 * sets job->cancelled and returns false. The caller makes sure that the job exists.
 * Thread-safe. */
bool sched_cancel(struct sched_pool *pool, struct sched_job *job);

/* Calls call(context) once on each worker, between two of its jobs, and before any job
 * that is submitted later. Waits up to `wait_ns` for workers that are busy; those that
 * still are then are left out. Returns how many have called, when no call runs any more.
 * One thread at a time may call it. */
size_t sched_call_on_each(struct sched_pool *pool, void (*call)(void *context),
                          void *context, int64_t wait_ns);

/* Whether a client none of whose jobs waits or runs has used more than its share, so that
 * its next job comes after those of others. Thread-safe. */
bool sched_is_ahead(const struct sched_pool *pool, const struct sched_client *client);

/* How busy a pool is. */
struct sched_load {
    size_t num_workers;
    size_t num_busy;   /* workers that run a job, or help with one */
    size_t num_queued; /* jobs that wait */
    size_t num_slots;  /* that may wait */
    /* ns until all present work is done, as estimated, and sched_options.max_delay. */
    int64_t delay, max_delay;
};

/* Thread-safe. */
struct sched_load sched_get_load(struct sched_pool *pool);

/* Returns how many whole seconds a job whose client and estimates are set would wait, 1
 * to 30. Thread-safe. */
unsigned sched_retry_after(struct sched_pool *pool, const struct sched_job *job);

/* Whether nobody wants the result of a job: it was cancelled, or its deadline is over. */
bool sched_job_is_over(const struct sched_job *job);

/* --- for a job that runs, on its worker --- */

/* Whether a job waits. */
bool sched_any_waits(const struct sched_worker *worker);

/* Goes on with a part that costs more than the job was estimated to, and counts it as a
 * large job of its client. */
void sched_go_on(struct sched_worker *worker, int64_t cost);

/* Runs cheap jobs that wait, if it is their turn, on the inner worker. A large job calls
 * this about every SCHED_CHEAP_NS; sched_parallel_for() does between two tasks. */
void sched_checkpoint(struct sched_worker *worker);

/* As sched_checkpoint(), but leaves jobs of the group for sched_take_group(). */
void sched_run_others(struct sched_worker *worker, uint64_t group);

/* Takes jobs of the group that wait, so that the worker runs them together with its own
 * job, and writes them to ret_jobs [max]. Returns how many; they have at most max_rows
 * rows in all. */
size_t sched_take_group(struct sched_worker *worker, uint64_t group, size_t max_rows,
                        struct sched_job **ret_jobs, size_t max);

/* Declares whether the job's loops compute results of other jobs too. Then no task is
 * omitted. */
void sched_share_loops(struct sched_worker *worker, bool shared);

/* Called before the result is handed over: the worker counts as idle from now on, so that
 * the next request of the same client is not refused for a job that has ended. One that
 * is over early is charged to its client for what it has used. */
void sched_end_job(struct sched_worker *worker);

/* Return the time in ns that the job took so far: on its own thread, without inner jobs,
 * and on other threads that helped with its loops. */
int64_t sched_used_ns(const struct sched_worker *worker);
int64_t sched_helped_ns(const struct sched_worker *worker);

/* A parallel loop, run by a job on its outer worker: calls task(data, index, thread) once
 * for every index below `count`, on this worker and on those without a job. When
 * sched_job_is_over(), the calls that are left are omitted. Returns when all calls have
 * returned. `thread` is the index of the worker that runs the task. `worker` is the job's
 * struct sched_worker; its type is void so that the function can be an
 * attn_parallel.run. */
void sched_parallel_for(void *worker, size_t count,
                        void (*task)(void *data, size_t index, size_t thread),
                        void *data);

/* Returns how many workers there are. */
size_t sched_num_workers(const struct sched_pool *pool);

#endif
