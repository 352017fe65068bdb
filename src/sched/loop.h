/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h: parallel loops of a job. */
#pragma once

#include "sched/worker.h"

/* A parallel loop, run by a job on its outer worker: calls task(data, index, thread) once
 * for every index below `count`, on this worker and on those without a job. When
 * sched_job_is_over(), the calls that are left are omitted. Nothing else runs after a
 * single call. Returns when all calls have returned. `thread` is the index of the worker
 * that runs the task. `worker` is the job's struct sched_worker; its type is void so that
 * the function can be an attn_parallel.run. */
void sched_parallel_for(void *worker, size_t count,
                        void (*task)(void *data, size_t index, size_t thread),
                        void *data);

/* For workers without a job: runs tasks of a loop, with the pool's lock released
 * meanwhile. Returns false when no loop has tasks left. */
bool loop_help_locked(struct sched_worker *worker);
