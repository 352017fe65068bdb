/* SPDX-License-Identifier: Apache-2.0 */
/* model_stats.c: counts with relaxed atomics, since no counter says anything about other
 * memory. */
#include "http/model_stats.h"

#include <time.h>

static void add_relaxed(atomic_uint_fast64_t *counter, uint64_t value) {
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static uint64_t load_relaxed(const atomic_uint_fast64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void model_stats_add(struct model_stats *stats, enum model_time time, int64_t ns) {
    add_relaxed(&stats->times[time].ns, ns > 0 ? (uint64_t)ns : 0);
    add_relaxed(&stats->times[time].count, 1);
}

void model_stats_execute(struct model_stats *stats, size_t num_requests,
                         const struct wire_oip_batch *took) {
    add_relaxed(&stats->batches[num_requests - 1].input_ns, took->input_ns);
    add_relaxed(&stats->batches[num_requests - 1].infer_ns, took->infer_ns);
    add_relaxed(&stats->batches[num_requests - 1].output_ns, took->output_ns);
    add_relaxed(&stats->batches[num_requests - 1].count, took->count);
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
    return (struct wire_oip_duration){load_relaxed(&stats->times[time].count),
                                      load_relaxed(&stats->times[time].ns)};
}

void model_stats_get(const struct model_stats *stats,
                     struct wire_oip_statistics *ret_statistics) {
    struct wire_oip_duration success = get_duration(stats, MODEL_SUCCESS);
    *ret_statistics = (struct wire_oip_statistics){
        .inference_count = success.count,
        .last_inference = load_relaxed(&stats->last),
        .success = success,
        .fail = get_duration(stats, MODEL_FAIL),
        .queue = get_duration(stats, MODEL_QUEUE),
        .compute_input = get_duration(stats, MODEL_INPUT),
        .compute_infer = get_duration(stats, MODEL_INFER),
        .compute_output = get_duration(stats, MODEL_OUTPUT),
    };
    for (size_t i = 0; i < WIRE_OIP_BATCH_MAX; i++) {
        struct wire_oip_batch *batch = &ret_statistics->batches[i];
        *batch = (struct wire_oip_batch){load_relaxed(&stats->batches[i].count),
                                         load_relaxed(&stats->batches[i].input_ns),
                                         load_relaxed(&stats->batches[i].infer_ns),
                                         load_relaxed(&stats->batches[i].output_ns)};
        ret_statistics->execution_count += batch->count;
    }
}
