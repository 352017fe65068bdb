/* SPDX-License-Identifier: Apache-2.0 */
/* warm_up.c: calls on each worker, between two of its jobs. */
#include "models/warm_up.h"

#include "base/clock.h"
#include "base/log.h"
#include "models/generation.h"

#define LONGEST_NS ((int64_t)100000000)
#define WAIT_NS    ((int64_t)1000000000)

/* sched_call_on_each() */
static void warm_up_for_entries(void *context) {
    const struct catalogue_entries *entries = context;
    const int64_t begun = clock_now_ns();
    size_t count = 0;

    for (size_t i = 0; i < entries->count && clock_now_ns() - begun < LONGEST_NS; i++) {
        if (!entries->items[i].is_new)
            continue;
        generation_warm_up_model(entries->items[i].model);
        count++;
    }
    log_write(LOG_DEBUG, "worker warmed up", LOG_NUMBER("models", count),
              LOG_NUMBER("microseconds", (clock_now_ns() - begun) / 1000));
}

void warm_up_workers(struct sched_pool *pool, struct catalogue_entries *entries) {
    bool any_new = false;
    for (size_t i = 0; i < entries->count; i++)
        any_new = any_new || entries->items[i].is_new;
    if (any_new && pool != NULL)
        sched_call_on_each(pool, warm_up_for_entries, entries, WAIT_NS);
}
