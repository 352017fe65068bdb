/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c: the bounds of all histograms, and what the end of a request adds. */
#include "http/metrics/metrics.h"

#include "obs/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WARN_AGAIN_NS 10000000000

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

const struct metrics_family metrics_families[METRICS_NUM_HISTOGRAMS] = {
    [METRICS_TOTAL] = {"attnd_request_duration_seconds",
                       "From the headers of a request to the end of its reply.",
                       &seconds},
    [METRICS_QUEUE] = {"attnd_request_queue_seconds", "Waiting for workers.", &seconds},
    [METRICS_DECODE] = {"attnd_request_decode_seconds", "Reading the body.", &seconds},
    [METRICS_COMPUTE] = {"attnd_request_compute_seconds", "Computing the layer.",
                         &seconds},
    [METRICS_ENCODE] = {"attnd_request_encode_seconds",
                        "Writing the reply, or its first piece.", &seconds},
    [METRICS_ROWS] = {"attnd_request_rows", "Queries of a request, of all sequences.",
                      &rows},
    [METRICS_BODY] = {"attnd_request_body_bytes", "Bytes of the body of a request.",
                      &bytes},
};

struct metrics *metrics_create(size_t num_threads) {
    struct metrics *metrics =
        calloc(1, sizeof *metrics + num_threads * sizeof metrics->threads[0]);
    if (metrics == NULL)
        return NULL;
    metrics->num_threads = num_threads;
    metrics->start = obs_process_start();
    return metrics;
}

void metrics_count_end(struct metrics *metrics, struct metrics_thread *thread,
                       const struct request_facts *facts) {
    struct obs_histogram *histograms = thread->histograms[facts->route];
    const int64_t values[METRICS_NUM_HISTOGRAMS] = {
        [METRICS_TOTAL] = facts->total_ns,          [METRICS_QUEUE] = facts->queue_ns,
        [METRICS_DECODE] = facts->decode_ns,        [METRICS_COMPUTE] = facts->compute_ns,
        [METRICS_ENCODE] = facts->encode_ns,        [METRICS_ROWS] = (int64_t)facts->rows,
        [METRICS_BODY] = (int64_t)facts->body_bytes};

    /* A phase that was not reached took 0. */
    for (size_t i = 0; i < METRICS_NUM_HISTOGRAMS; i++) {
        if (values[i] > 0)
            obs_histogram_count(&histograms[i], metrics_families[i].scale,
                                (uint64_t)values[i]);
    }

    obs_add(&thread->ended[facts->end], 1);
    /* A worker reports a client that left as a deadline that is over. */
    if (facts->error == WIRE_NUM_ERRORS || facts->end == REQUEST_LEFT_COMPUTING)
        return;
    obs_add(&thread->errors[facts->error], 1);
    if (metrics_refusal_reason(facts->error) != NULL)
        log_limit_count(&metrics->refused);
}

uint64_t metrics_sum_errors(const struct metrics *metrics, enum wire_error error) {
    uint64_t sum = 0;
    for (size_t i = 0; i < metrics->num_threads; i++)
        sum += obs_get(&metrics->threads[i].errors[error]);
    return sum;
}

const char *metrics_refusal_reason(enum wire_error error) {
    static const char *const reasons[WIRE_NUM_ERRORS] = {
        [WIRE_E_BODY_TOO_LARGE] = "body_too_large",
        [WIRE_E_REQUEST_TOO_LARGE] = "request_too_large",
        [WIRE_E_REPLY_TOO_LARGE] = "reply_too_large",
        [WIRE_E_TOO_MANY_REQUESTS] = "too_many_requests",
        [WIRE_E_QUEUE_FULL] = "queue_full",
        [WIRE_E_OUT_OF_MEMORY] = "out_of_memory",
        [WIRE_E_CAPTURE_TOO_LARGE] = "capture_too_large",
        [WIRE_E_CAPTURES_FULL] = "captures_full",
    };
    return reasons[error];
}

void metrics_warn_of_refusals(struct metrics *metrics) {
    if (log_limit_take(&metrics->refused, WARN_AGAIN_NS) == 0)
        return;

    char reasons[256] = "";
    size_t size = 0;
    uint64_t total = 0;
    for (enum wire_error i = 0; i < WIRE_NUM_ERRORS; i++) {
        const char *reason = metrics_refusal_reason(i);
        uint64_t sum = metrics_sum_errors(metrics, i);
        uint64_t count = sum - atomic_exchange(&metrics->reported[i], sum);
        if (reason == NULL || count == 0)
            continue;
        total += count;
        if (size < sizeof reasons)
            size +=
                (size_t)snprintf(reasons + size, sizeof reasons - size, "%s%s %" PRIu64,
                                 size > 0 ? ", " : "", reason, count);
    }
    if (total > 0) /* 0: an earlier line has told of all of them */
        log_write(LOG_WARN, "requests were refused", LOG_NUMBER("count", total),
                  LOG_TEXT("reasons", reasons));
}
