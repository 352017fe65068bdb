/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.h: counts durations in log-linear buckets, so that every quantile is known to
 * three significant digits, whatever the range. (Debian 12 has no HdrHistogram for C.) */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Durations are ns; longer ones count as this, 73 minutes. */
#define LOAD_NS_MAX (((uint64_t)1 << 42) - 1)

/* Below 2^11 each ns has a bucket; above, each octave has 2^10, so a bucket is narrower
 * than a thousandth of its values. */
#define LOAD_OCTAVE_BUCKETS ((size_t)1 << 10)
#define LOAD_BUCKETS        ((42 - 11 + 2) * LOAD_OCTAVE_BUCKETS)

/* Zeroed, it has no values. */
struct load_histogram {
    uint64_t counts[LOAD_BUCKETS];
    uint64_t total;
    uint64_t max; /* the largest value itself */
    double sum;
};

/* Counts a duration of `ns`. */
void load_histogram_add(struct load_histogram *histogram, uint64_t ns);

/* Returns the duration that at least `share` of every 10,000 values do not exceed,
 * rounded up by less than a thousandth; 0 when there are no values. 9990 is the 99.9th
 * percentile. */
uint64_t load_histogram_quantile(const struct load_histogram *histogram, unsigned share);
