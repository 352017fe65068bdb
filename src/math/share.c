/* SPDX-License-Identifier: Apache-2.0 */
/* share.c: decides whether the threads of the caller share a step. */
#include "math/run.h"

#define SHARE_FLOPS 2e6 /* fewer are done faster by one thread */

void run_share(const struct run *run, double flops, size_t count,
               void (*task)(void *data, size_t index, size_t thread), void *data) {
    const attn_parallel *parallel = run->request->parallel;

    if (parallel != NULL && parallel->num_threads > 1 && count > 1 &&
        flops >= SHARE_FLOPS) {
        parallel->run(parallel->context, count, task, data);
        return;
    }
    for (size_t i = 0; i < count; i++)
        task(data, i, 0);
}
