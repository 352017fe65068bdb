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

/* Moments at a mean rate: with equal gaps, or a Poisson process, which many clients make
 * that know nothing of each other, and whose gaps are exponential. */
struct load_arrivals {
    bool poisson;
    double gap_ns; /* the mean */
    double at_ns;  /* the last moment */
    uint64_t state;
};

/* Begins at moment 0, with `rate` moments a second. */
static inline struct load_arrivals load_arrivals_begin(bool poisson, double rate,
                                                       uint64_t seed) {
    return (struct load_arrivals){
        .poisson = poisson, .gap_ns = 1e9 / rate, .state = seed};
}

/* Returns the next moment, in ns since the start; never earlier than the one before. */
static inline int64_t load_arrivals_next(struct load_arrivals *arrivals) {
    double gaps = 1;
    if (arrivals->poisson) /* of a number in (0, 1] */
        gaps = -log(((double)(load_random(&arrivals->state) >> 11) + 1) * 0x1p-53);
    arrivals->at_ns += gaps * arrivals->gap_ns;
    return (int64_t)arrivals->at_ns;
}
