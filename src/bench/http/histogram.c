/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.c: see histogram.h. */
#include "bench/http/histogram.h"

/* Returns the bucket of a duration: the octave, then the 11 leading bits. */
static size_t bucket_of(uint64_t ns) {
    unsigned bits = 64 - (unsigned)__builtin_clzll(ns | 1);
    unsigned shift = bits > 11 ? bits - 11 : 0;
    return shift * LOAD_OCTAVE_BUCKETS + (size_t)(ns >> shift);
}

/* Returns the largest duration of a bucket. */
static uint64_t bucket_end(size_t bucket) {
    size_t shift =
        bucket < 2 * LOAD_OCTAVE_BUCKETS ? 0 : bucket / LOAD_OCTAVE_BUCKETS - 1;
    return ((uint64_t)(bucket - shift * LOAD_OCTAVE_BUCKETS + 1) << shift) - 1;
}

void load_histogram_add(struct load_histogram *histogram, uint64_t ns) {
    if (ns > LOAD_NS_MAX)
        ns = LOAD_NS_MAX;
    histogram->counts[bucket_of(ns)]++;
    histogram->total++;
    histogram->sum += (double)ns;
    if (ns > histogram->max)
        histogram->max = ns;
}

uint64_t load_histogram_quantile(const struct load_histogram *histogram, unsigned share) {
    uint64_t rank = (histogram->total * share + 9999) / 10000, below = 0;

    for (size_t i = 0; i < LOAD_BUCKETS; i++) {
        below += histogram->counts[i];
        if (below >= rank && below > 0)
            return bucket_end(i) < histogram->max ? bucket_end(i) : histogram->max;
    }
    return 0;
}
