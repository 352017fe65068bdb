/* SPDX-License-Identifier: Apache-2.0 */
/* share.h: divides a step into tasks that threads of the caller share. How a step is
 * divided never changes a bit of what the native engine computes. */
#ifndef ATTND_MATH_RUN_SHARE_H
#define ATTND_MATH_RUN_SHARE_H

#include <attnd/attention.h>

/* Returns how many items a task has, of `count` items with so many operations in all. No
 * thread shall wait long for the last task of another. Nor shall a task take longer than
 * about 2 ms: between two tasks, a worker looks for cheap requests. */
size_t share_task_items(size_t count, double flops, size_t num_threads);

/* Calls task(data, index, thread) for every index below `count`: in parallel when
 * `flops`, the operations of all tasks together, are worth it, else here, in order.
 * `parallel` may be NULL. The caller of attn_run() may omit calls, when it does not want
 * the result any more. */
void share_tasks(const attn_parallel *parallel, double flops, size_t count,
                 void (*task)(void *data, size_t index, size_t thread), void *data);

#endif
