/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.c: finds buckets by a plain search: most values are small. */
#include "obs/histogram.h"

void obs_histogram_count(struct obs_histogram *histogram, const struct obs_scale *scale,
                         uint64_t value) {
    size_t bucket = 0;
    while (bucket < scale->num_bounds && value > scale->bounds[bucket])
        bucket++;
    obs_add(&histogram->buckets[bucket], 1);
    obs_add(&histogram->sum, value);
}

void obs_histogram_add(const struct obs_histogram *histogram,
                       struct obs_histogram *total) {
    for (size_t i = 0; i <= OBS_BOUNDS_MAX; i++)
        obs_add(&total->buckets[i], obs_get(&histogram->buckets[i]));
    obs_add(&total->sum, obs_get(&histogram->sum));
}

uint64_t obs_histogram_values(const struct obs_histogram *histogram) {
    uint64_t values = 0;
    for (size_t i = 0; i <= OBS_BOUNDS_MAX; i++)
        values += obs_get(&histogram->buckets[i]);
    return values;
}
