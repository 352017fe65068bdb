/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.h: how often values fell between fixed bounds, and their sum. Thread-safe. */
#pragma once

#include "obs/counter.h"

#include <stddef.h>

#define OBS_BOUNDS_MAX 24

/* The bounds of histograms; constant. */
struct obs_scale {
    uint64_t bounds[OBS_BOUNDS_MAX]; /* [num_bounds], ascending; each is in its bucket */
    size_t num_bounds;
    double unit; /* what a value of 1 is when it is printed: 1e-9 for ns as seconds */
};

/* Zeroed, it has no values. */
struct obs_histogram {
    obs_counter buckets[OBS_BOUNDS_MAX + 1]; /* the last used is past all bounds */
    obs_counter sum;
};

/* Counts a value. */
void obs_histogram_count(struct obs_histogram *histogram, const struct obs_scale *scale,
                         uint64_t value);

/* Adds what a histogram has counted to `total`. */
void obs_histogram_add(const struct obs_histogram *histogram,
                       struct obs_histogram *total);

/* Returns how many values were counted: the sum of the buckets, so both agree for a total
 * while others count. */
uint64_t obs_histogram_values(const struct obs_histogram *histogram);
