/* SPDX-License-Identifier: Apache-2.0 */
/* arrivals.h: when the requests of an open loop are due, and random numbers, which are
 * the same for the same seed. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Returns the next of a sequence of 64 random bits; any `*state` is a seed (SplitMix64:
 * Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014). */
static inline uint64_t load_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* As many moments as a rate makes in a span of time, in ascending order: with equal gaps,
 * or drawn uniformly. The latter is a Poisson process whose count is known, as many
 * clients make that know nothing of each other. */
struct load_arrivals {
    bool poisson;
    uint64_t left; /* moments to come */
    double gap_ns; /* the mean */
    double at_ns;  /* the last moment */
    double end_ns; /* of the span */
};

#define LOAD_NEVER INT64_MAX

/* Begins a span, in ns, with `rate` moments a second. */
static inline struct load_arrivals load_arrivals_begin(bool poisson, double rate,
                                                       int64_t start, int64_t end) {
    double gap_ns = 1e9 / rate;
    return (struct load_arrivals){.poisson = poisson,
                                  .left =
                                      (uint64_t)llround((double)(end - start) / gap_ns),
                                  .gap_ns = gap_ns,
                                  .at_ns = (double)start - (poisson ? 0 : gap_ns),
                                  .end_ns = (double)end};
}

/* Returns the next moment, never earlier than the one before; LOAD_NEVER when all have
 * come. The least of n uniform moments is past a share 1 - u^(1/n) of the time. */
static inline int64_t load_arrivals_next(struct load_arrivals *arrivals,
                                         uint64_t *random) {
    if (arrivals->left == 0)
        return LOAD_NEVER;
    double gap_ns = arrivals->gap_ns;
    if (arrivals->poisson) { /* of a number in (0, 1] */
        double u = ((double)(load_random(random) >> 11) + 1) * 0x1p-53;
        gap_ns = (arrivals->end_ns - arrivals->at_ns) *
                 -expm1(log(u) / (double)arrivals->left);
    }
    arrivals->left--;
    arrivals->at_ns += gap_ns;
    return (int64_t)arrivals->at_ns;
}
