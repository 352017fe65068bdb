/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: the worker threads, and the bounded queue of the jobs that they run. */
#pragma once

#include "sched/options.h"
#include "sched/worker.h"

#include <attnd/status.h>

/* Starts the workers. The caller owns *ret_pool. Returns ATTN_E_NOMEM or ATTN_E_IO, with
 * no thread left running, when memory or a thread is refused. */
attn_status sched_pool_create(const struct sched_options *options,
                              struct sched_pool **ret_pool);

/* Waits until every submitted job has run, then joins the workers. Accepts NULL. Nothing
 * may be submitted once it is called. */
void sched_pool_destroy(struct sched_pool *pool);

/* Reserves a slot for a job whose client and estimates are set; returns false when it
 * should not wait. An idle worker takes any job. Otherwise the queue may be full, or the
 * work before the job would take longer than max_delay; its own length does not count.
 * Nor does the rest of a job of another client that runs: it lets a large one run inside
 * once it has used max_delay. The queue is full earlier for a client whose jobs wait in
 * most of its slots, so that others find one. The slot is free again when a worker takes
 * the job. Thread-safe. */
bool sched_reserve(struct sched_pool *pool, struct sched_job *job);

/* Hands a job over; cannot fail. A job that continues one that has run needs no slot:
 * what has begun holds memory until it is done. When it was cancelled as it ran, it is a
 * cheap one, so that it ends soon. Thread-safe. */
void sched_submit(struct sched_pool *pool, struct sched_job *job);

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

/* The same of a member, among those of its client. Thread-safe. */
bool sched_member_is_ahead(const struct sched_client *client,
                           const struct sched_member *member);

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

/* Returns how many workers there are. */
size_t sched_num_workers(const struct sched_pool *pool);
