/* SPDX-License-Identifier: Apache-2.0 */
/* share.c: gives tasks to the caller's parallel for loop, or runs them here. */
#include "math/run/run.h"

#include "base/pace.h"

#define SHARE_FLOPS      2e6 /* fewer are done faster by one thread */
#define TASKS_PER_THREAD 8
#define TASK_FLOPS_MAX   1e8
#define FLOPS_PER_STEP   64 /* a task is at most PACE_STEPS_MAX */

size_t share_task_items(size_t count, double flops, size_t num_threads) {
    size_t tasks = num_threads > 1 ? num_threads * TASKS_PER_THREAD : 1;
    double min_tasks = flops / TASK_FLOPS_MAX;

    if ((double)count <= min_tasks)
        return 1;
    if ((double)tasks < min_tasks)
        tasks = (size_t)min_tasks;
    return count > tasks ? count / tasks : 1;
}

void share_tasks(const attn_parallel *parallel, double flops, size_t count,
                 void (*task)(void *data, size_t index, size_t thread), void *data) {
    /* One task, too, since the caller omits it when nobody waits for the result. */
    bool shared = parallel != NULL && count > 0 && flops >= SHARE_FLOPS;
    if (shared)
        parallel->run(parallel->context, count, task, data);
    if (shared && count > 1)
        return;

    double steps = flops / (double)count / FLOPS_PER_STEP;
    for (size_t i = 0; i < count; i++) {
        if (!shared)
            task(data, i, 0);
        pace_add(steps < (double)PACE_STEPS ? (size_t)steps : PACE_STEPS);
    }
}
