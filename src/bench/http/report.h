/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: prints steps, and draws them. */
#pragma once

#include "base/buf.h"
#include "bench/http/loop.h"

#define LOAD_QUANTILES 5

/* The percentiles of a report, as shares of 10,000, and their names: "99.9". */
extern const unsigned load_shares[LOAD_QUANTILES];
extern const char *const load_share_names[LOAD_QUANTILES];

/* Sets the latencies at load_shares, in ms; NAN where there are too few replies for one
 * to be above it. */
void load_report_quantiles(const struct load_histogram *latency,
                           double ret_ms[LOAD_QUANTILES]);

/* Returns whether every request of the step was sent once, and served. */
bool load_report_is_clean(const struct load_tally *tally);

/* Print a step to standard output: as a row, with the head of the table before the first,
 * or as one line of JSON. */
void load_report_head(const struct load_plan *plan, const char *url);
void load_report_text(const struct load_plan *plan, const struct load_tally *tally);
void load_report_json(const struct load_plan *plan, const struct load_tally *tally);

/* Appends the samples of step `index` as lines of CSV, with a head before the first. */
void load_report_samples(const struct load_tally *tally, size_t index, struct buf *csv);
