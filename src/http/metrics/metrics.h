/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h: what is counted about requests, for GET /metrics.
 *
 * Each HTTP thread counts for itself, so that they do not take cache lines from each
 * other; a reader adds up. Requests about a model are counted with the model
 * (models/stats.h). So the memory for all labels is fixed. */
#pragma once

#include "base/log.h"
#include "models/facts.h"
#include "models/stats.h"
#include "obs/histogram.h"

struct exchange;

/* The histograms of each route. */
enum metrics_histogram {
    METRICS_TOTAL,
    METRICS_QUEUE,
    METRICS_DECODE,
    METRICS_COMPUTE,
    METRICS_ENCODE,
    METRICS_ROWS,
    METRICS_BODY,
    METRICS_NUM_HISTOGRAMS
};

extern const struct metrics_family {
    const char *name, *help;
    const struct obs_scale *scale;
} metrics_families[METRICS_NUM_HISTOGRAMS];

/* The counts of one HTTP thread. Zeroed, it has counted nothing. */
struct metrics_thread {
    obs_counter begun;                   /* requests whose headers were complete */
    obs_counter ended[REQUEST_NUM_ENDS]; /* by enum request_end */
    obs_counter errors[WIRE_NUM_ERRORS]; /* that were reported */
    struct request_counts requests;      /* about no loaded model */
    struct obs_histogram histograms[REQUEST_ROUTES_MAX + 1][METRICS_NUM_HISTOGRAMS];
};

/* One for all threads of the server. */
struct metrics {
    size_t num_threads;
    double start;             /* of the process, in seconds since 1970, or NAN */
    struct log_limit refused; /* requests, because of a limit */
    obs_counter reported[WIRE_NUM_ERRORS]; /* errors that lines about them have told of */
    struct metrics_thread threads[];       /* [num_threads] */
};

/* The caller frees what it returns: NULL when memory is short. */
struct metrics *metrics_create(size_t num_threads);

/* route.handle of GET /metrics (print.c). */
bool metrics_handle(struct exchange *exchange, struct wire_problem *ret_problem);

/* Counts a request that has ended; `thread` is its HTTP thread's. */
void metrics_count_end(struct metrics *metrics, struct metrics_thread *thread,
                       const struct request_facts *facts);

/* Returns how often an error was reported to clients. */
uint64_t metrics_sum_errors(const struct metrics *metrics, enum wire_error error);

/* Returns a word for an error that reports a limit of the server; NULL for others. */
const char *metrics_refusal_reason(enum wire_error error);

/* Warns of requests that were refused because of a limit. Any number may be in a second,
 * so at most one line in ten seconds says how many there were since the last, and why.
 * Costs one load when there is nothing. Thread-safe. */
void metrics_warn_of_refusals(struct metrics *metrics);
