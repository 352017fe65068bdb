/* SPDX-License-Identifier: Apache-2.0 */
/* rounds.h: timing in rounds. Every contender runs once in each round. So each
 * ratio is of runs that are close in time, and a machine that drifts does not matter. */
#pragma once

#include <stddef.h>

#define BENCH_ROUNDS_MAX 1000

struct bench_spread {
    double min, median, max;
};

/* Returns into how many tasks work is divided that threads share. */
static inline size_t bench_num_tasks(size_t threads) {
    return 4 * threads;
}

/* Returns the seconds that one call of `run` takes; a short one is repeated. With one
 * thread, which is the caller, these are CPU time, so that other programs do not
 * count. */
double bench_time(size_t threads, void (*run)(void *context), void *context);

/* Calls run(context, index) for rounds 0, 1, ... until so many seconds are over, and at
 * least 5 times; once when they are 0. Returns how many rounds there were. */
size_t bench_rounds(size_t seconds, void (*run)(void *context, size_t index),
                    void *context);

/* Returns the spread of 1..BENCH_ROUNDS_MAX values. */
struct bench_spread bench_spread(const double *values, size_t count);

/* Returns the median of a / b, taken round by round. */
double bench_ratio(const double *a, const double *b, size_t count);
