/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c: the bounds of all histograms, and what the end of a request adds. */
#include "http/metrics/metrics.h"

#include "obs/process.h"

#include <stdlib.h>

#define US ((uint64_t)1000)
#define MS (1000 * US)
#define S  (1000 * MS)

/* From the smallest request to the longest that is worth an alert. */
static const struct obs_scale seconds = {
    {10 * US,   25 * US, 50 * US,   100 * US, 250 * US, 500 * US, 1 * MS,
     2500 * US, 5 * MS,  10 * MS,   25 * MS,  50 * MS,  100 * MS, 250 * MS,
     500 * MS,  1 * S,   2500 * MS, 5 * S,    10 * S,   30 * S,   60 * S},
    21,
    1e-9};
static const struct obs_scale rows = {
    {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536}, 9, 1};
static const struct obs_scale bytes = {{256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18,
                                        1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28,
                                        1 << 30},
                                       12,
                                       1};

const struct obs_scale *const metrics_scales[METRICS_NUM_HISTOGRAMS] = {
    [METRICS_TOTAL] = &seconds,  [METRICS_QUEUE] = &seconds,
    [METRICS_DECODE] = &seconds, [METRICS_COMPUTE] = &seconds,
    [METRICS_ENCODE] = &seconds, [METRICS_ROWS] = &rows,
    [METRICS_BODY] = &bytes,
};

attn_status metrics_create(size_t num_threads, struct metrics **ret_metrics) {
    struct metrics *metrics = calloc(1, sizeof *metrics);
    if (metrics == NULL)
        return ATTN_E_NOMEM;

    metrics->threads = calloc(num_threads, sizeof *metrics->threads);
    if (metrics->threads == NULL) {
        free(metrics);
        return ATTN_E_NOMEM;
    }
    metrics->num_threads = num_threads;
    metrics->start = obs_process_start();
    *ret_metrics = metrics;
    return ATTN_OK;
}

void metrics_destroy(struct metrics *metrics) {
    if (metrics == NULL)
        return;
    free(metrics->threads);
    free(metrics);
}

void metrics_count_end(struct metrics *metrics, struct metrics_thread *thread,
                       const struct request_facts *facts) {
    struct obs_histogram *histograms = thread->histograms[facts->route];
    const int64_t values[METRICS_NUM_HISTOGRAMS] = {
        [METRICS_TOTAL] = facts->total_ns,          [METRICS_QUEUE] = facts->queue_ns,
        [METRICS_DECODE] = facts->decode_ns,        [METRICS_COMPUTE] = facts->compute_ns,
        [METRICS_ENCODE] = facts->encode_ns,        [METRICS_ROWS] = (int64_t)facts->rows,
        [METRICS_BODY] = (int64_t)facts->body_bytes};

    /* What was not reached is 0. */
    for (size_t i = 0; i < METRICS_NUM_HISTOGRAMS; i++) {
        if (values[i] > 0)
            obs_histogram_count(&histograms[i], metrics_scales[i], (uint64_t)values[i]);
    }

    obs_add(&thread->ended[facts->end], 1);
    /* A worker reports a client that left as a deadline that is over. */
    if (facts->error == WIRE_NUM_ERRORS || facts->end == REQUEST_LEFT_COMPUTING)
        return;
    obs_add(&thread->errors[facts->error], 1);
    refusals_count(&metrics->refusals, facts->error);
}
