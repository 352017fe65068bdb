/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: a bounded queue of jobs and the worker threads that run them. */
#ifndef ATTND_SCHED_POOL_H
#define ATTND_SCHED_POOL_H

#include "base/arena.h"

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

struct sched_pool;

/* What a worker thread owns; only that thread touches it. */
struct sched_worker {
    struct sched_pool *pool;
    size_t index;       /* 0..num_workers-1 */
    struct arena arena; /* reset after every job */
};

/* A unit of work, embedded in the submitter's own struct. */
struct sched_job {
    struct sched_job *next; /* the queue's, as is the next */
    bool has_slot;
    /* Called once on a worker with no lock held; afterwards the pool does not touch the
     * job, so `run` may hand it over or free it. */
    void (*run)(struct sched_job *job, struct sched_worker *worker);
};

struct sched_options {
    size_t num_workers;     /* at least 1 */
    size_t queue_slots;     /* jobs that may wait, at least 1 */
    size_t arena_keep;      /* bytes that a worker keeps from job to job */
    void (*on_start)(void); /* called once on every worker, all at once; may be NULL */
};

/* Starts the workers and waits until each has run on_start. The caller owns *ret_pool.
 * ATTN_E_NOMEM when a thread or memory cannot be had; nothing is left running then. */
attn_status sched_pool_create(const struct sched_options *options,
                              struct sched_pool **ret_pool);

/* Waits until every submitted job has run, then joins the workers. NULL is fine. Nobody
 * may submit any more. */
void sched_pool_destroy(struct sched_pool *pool);

/* Takes a place in the queue; false when it is full. Each place that was taken is either
 * used by one sched_submit() or given back by sched_release(). Thread-safe. */
bool sched_reserve(struct sched_pool *pool);
void sched_release(struct sched_pool *pool);

/* Hands a job over, into a place taken before; cannot fail. The place is free again once
 * a worker takes the job. Thread-safe. */
void sched_submit(struct sched_pool *pool, struct sched_job *job);

/* Hands over the next part of a job that has run before, in front of all that wait: what
 * was begun holds memory until it is done. Takes no place; cannot fail. Thread-safe. */
void sched_resubmit(struct sched_pool *pool, struct sched_job *job);

/* Called by a job on its worker: calls task(data, index, thread) once for every index below
 * `count`, on this worker and on those that have no job, and returns when all have
 * returned. `thread` is the index of the worker that runs the task. */
void sched_parallel_for(struct sched_worker *worker, size_t count,
                        void (*task)(void *data, size_t index, size_t thread),
                        void *data);

/* Returns how many workers there are. */
size_t sched_num_workers(const struct sched_pool *pool);

#endif
