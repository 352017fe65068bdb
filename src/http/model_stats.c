/* SPDX-License-Identifier: Apache-2.0 */
/* model_stats.c: counts with relaxed atomics, since no counter says anything about other
 * memory. */
#include "http/model_stats.h"

#include <time.h>

void model_stats_add(struct model_stats *stats, enum model_time time, int64_t ns) {
    atomic_fetch_add_explicit(&stats->times[time].ns, (uint64_t)(ns > 0 ? ns : 0),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&stats->times[time].count, 1, memory_order_relaxed);
}

void model_stats_execute(struct model_stats *stats) {
    atomic_fetch_add_explicit(&stats->executions, 1, memory_order_relaxed);
}

void model_stats_touch(struct model_stats *stats) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    atomic_store_explicit(&stats->last,
                          (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000,
                          memory_order_relaxed);
}

static struct wire_oip_duration get_duration(const struct model_stats *stats,
                                             enum model_time time) {
    return (struct wire_oip_duration){
        atomic_load_explicit(&stats->times[time].count, memory_order_relaxed),
        atomic_load_explicit(&stats->times[time].ns, memory_order_relaxed)};
}

void model_stats_get(const struct model_stats *stats,
                     struct wire_oip_statistics *ret_statistics) {
    struct wire_oip_duration success = get_duration(stats, MODEL_SUCCESS);
    *ret_statistics = (struct wire_oip_statistics){
        .inference_count = success.count,
        .execution_count = atomic_load_explicit(&stats->executions, memory_order_relaxed),
        .last_inference = atomic_load_explicit(&stats->last, memory_order_relaxed),
        .success = success,
        .fail = get_duration(stats, MODEL_FAIL),
        .queue = get_duration(stats, MODEL_QUEUE),
        .compute_input = get_duration(stats, MODEL_INPUT),
        .compute_infer = get_duration(stats, MODEL_INFER),
        .compute_output = get_duration(stats, MODEL_OUTPUT),
    };
}
