/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: a bounded queue of jobs and the worker threads that run them. */
#ifndef ATTND_SCHED_POOL_H
#define ATTND_SCHED_POOL_H

#include "base/arena.h"

#include <attnd/status.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct sched_pool;

/* What a worker thread owns; no other thread touches it. */
struct sched_worker {
    struct sched_pool *pool;
    size_t index;       /* 0..num_workers-1 */
    struct arena arena; /* reset after every job */
};

/* A unit of work, embedded in the submitter's own struct. */
struct sched_job {
    struct sched_job *next; /* used by the queue, as is has_slot */
    bool has_slot;
    /* The submitter no longer wants the result, so `run` may end early. Cleared by the
     * submitter, set by sched_cancel(). */
    atomic_bool cancelled;
    /* Called once, on a worker, with no lock held. The pool does not touch the job after
     * that, so `run` may hand it over or free it. */
    void (*run)(struct sched_job *job, struct sched_worker *worker);
};

struct sched_options {
    size_t num_workers;     /* at least 1 */
    size_t queue_slots;     /* jobs that may wait, at least 1 */
    size_t arena_keep;      /* bytes that a worker keeps from job to job */
    void (*on_start)(void); /* called once on every worker at the same time, or NULL */
};

/* Starts the workers and waits until each has run on_start. The caller owns *ret_pool.
 * Returns ATTN_E_NOMEM, with no thread left running, when memory or a thread is
 * refused. */
attn_status sched_pool_create(const struct sched_options *options,
                              struct sched_pool **ret_pool);

/* Waits until every submitted job has run, then joins the workers. Accepts NULL. Nothing
 * may be submitted once it is called. */
void sched_pool_destroy(struct sched_pool *pool);

/* Reserves a slot in the queue; returns false when the queue is full. Each slot is then
 * used by one sched_submit() or released by sched_release(). Thread-safe. */
bool sched_reserve(struct sched_pool *pool);
void sched_release(struct sched_pool *pool);

/* Hands a job over, into a slot reserved before; cannot fail. The slot is free again when
 * a worker takes the job. Thread-safe. */
void sched_submit(struct sched_pool *pool, struct sched_job *job);

/* Hands over a job that continues one that has run, in front of all that wait: what has
 * begun holds memory until it is done. Needs no slot; cannot fail. Thread-safe. */
void sched_resubmit(struct sched_pool *pool, struct sched_job *job);

/* Takes back a job that was submitted and whose `run` has not returned it yet. Returns
 * true when the job still waited: `run` is then never called. Otherwise sets
 * job->cancelled and returns false. Thread-safe. */
bool sched_cancel(struct sched_pool *pool, struct sched_job *job);

/* A parallel loop, run by a job on its worker: calls task(data, index, thread) once for
 * every index below `count`, on this worker and on those without a job. Returns when all
 * calls have returned. `thread` is the index of the worker that runs the task. `worker`
 * is the job's struct sched_worker; its type is void so that the function can be an
 * attn_parallel.run. */
void sched_parallel_for(void *worker, size_t count,
                        void (*task)(void *data, size_t index, size_t thread),
                        void *data);

/* Returns how many workers there are. */
size_t sched_num_workers(const struct sched_pool *pool);

#endif
