/* SPDX-License-Identifier: Apache-2.0 */
#include "math/run.h"

#define SHARE_FLOPS 2e6 /* less is done faster alone */

void run_share(const struct run *run, double flops, size_t count,
               void (*task)(void *data, size_t index, size_t slot), void *data) {
    const attn_crew *crew = run->request->crew;
    if (crew != NULL && crew->num_slots > 1 && count > 1 && flops >= SHARE_FLOPS) {
        crew->run(crew->context, count, task, data);
        return;
    }
    for (size_t i = 0; i < count; i++)
        task(data, i, 0);
}
