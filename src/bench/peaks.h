/* SPDX-License-Identifier: Apache-2.0 */
/* peaks.h: how many operations per second this CPU can do at all, by the multiply-adds of
 * a set of kernels. No product of matrices can be faster. */
#pragma once

#include "bench/rounds.h"
#include "math/kernels/kernels.h"

#include <attnd/attention.h>

/* The peaks of one set in each round, in operations per second. */
struct bench_peaks {
    const struct kernels *kernels;
    double registers[BENCH_ROUNDS_MAX]; /* factors stay in registers */
    double loaded[BENCH_ROUNDS_MAX];    /* they are in the first-level cache */
};

/* Measures both for a round, on all threads of `parallel`. */
void bench_peaks_time(struct bench_peaks *peaks, const attn_parallel *parallel,
                      size_t round);
