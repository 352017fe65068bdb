/* SPDX-License-Identifier: Apache-2.0 */
/* ref_round.h: where the oracle rounds as engines do. --precision bf16 rounds the factors
 * of every product to bfloat16 and sums in float32: see attn_engine_options.precision.
 * Neither the order of a sum nor the way that kernels run is part of that. */
#ifndef ATTND_TESTS_REF_ROUND_H
#define ATTND_TESTS_REF_ROUND_H

#include "base/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the oracle rounds. All 0: not at all. */
struct ref_rounding {
    bool weights, rows; /* model weights, and all other factors, are bfloat16 */
    bool projected;     /* the keys of every sequence are projected */
    /* Each sum is off by up to so much of the magnitudes that it adds up, at random: an
     * engine sums in float32, in an order of its own. Numbers beside the middle between
     * two bfloat16 are then rounded up or down. */
    double nudge;
    uint64_t state; /* of the random numbers; not 0 with a nudge */
};

/* Returns a number as float32, rounded to the nearest bfloat16, ties to even. */
static inline double ref_round(double number) {
    return isfinite(number) ? (double)dtype_round_bf16((float)number) : number;
}

/* Returns a factor, which may be rounded. */
static inline double ref_factor(bool rounds, double number) {
    return rounds ? ref_round(number) : number;
}

/* Returns a random number from -1 to 1. */
static inline double ref_random(struct ref_rounding *rounding) {
    uint64_t x = rounding->state; /* xorshift64 (Marsaglia 2003) */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    rounding->state = x;
    return (double)(x >> 11) * 0x1p-52 - 1;
}

/* Returns a sum whose parts have so much magnitude together. */
static inline double ref_nudge(struct ref_rounding *rounding, double sum,
                               double magnitude) {
    if (rounding->nudge == 0)
        return sum;
    return sum + rounding->nudge * ref_random(rounding) * magnitude;
}

/* Returns the weights of a row as factors of values: `weights` itself, or `memory`
 * [count]. They are rounded relative to the largest of their chunk up to the end of their
 * block; with a nudge, relative to anything, as other kernels may have it. */
static inline const double *ref_round_weights(struct ref_rounding *rounding,
                                              const double *weights, size_t count,
                                              size_t block, size_t chunk,
                                              double *memory) {
    double unit = rounding->nudge == 0 ? 1 : exp2(ref_random(rounding)), max = 0;

    if (!rounding->rows)
        return weights;
    for (size_t first = 0; first < count; first += block) {
        size_t end = first + block < count ? first + block : count;
        if (first % chunk == 0)
            max = 0;
        for (size_t k = first; k < end; k++)
            max = fmax(max, weights[k]);
        for (size_t k = first; k < end; k++)
            memory[k] = max > 0 ? ref_round(weights[k] / max * unit) * max / unit : 0;
    }
    return memory;
}

#endif
