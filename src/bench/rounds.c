/* SPDX-License-Identifier: Apache-2.0 */
/* rounds.c: the loops that measure time, and the medians of their measurements. */
#include "bench/rounds.h"

#include "base/clock.h"

#include <stdlib.h>

#define SECONDS_MIN 0.01 /* of one measurement; shorter work is repeated */
#define WARM_UP     0.05 /* not counted: the CPU's clock still follows what ran before */
#define ROUNDS_MIN  5

/* Runs for at least so many seconds. Returns the seconds of one run, or -1. */
static double time_runs(int64_t (*now)(void), bool (*run)(void *context), void *context,
                        double seconds_min) {
    int64_t began = now(), elapsed;
    size_t runs = 0;

    do {
        if (!run(context))
            return -1;
        runs++;
        elapsed = now() - began;
    } while ((double)elapsed < seconds_min * 1e9);
    return (double)elapsed * 1e-9 / (double)runs;
}

double bench_time(size_t threads, bool (*run)(void *context), void *context) {
    int64_t (*now)(void) = threads == 1 ? clock_thread_ns : clock_now_ns;

    if (time_runs(now, run, context, WARM_UP) < 0)
        return -1;
    return time_runs(now, run, context, SECONDS_MIN);
}

size_t bench_rounds(size_t seconds, bool (*round)(void *context, size_t index),
                    void *context) {
    int64_t end = clock_now_ns() + (int64_t)seconds * 1000000000;
    size_t count = 0, least = seconds == 0 ? 1 : ROUNDS_MIN;

    while (count < BENCH_ROUNDS_MAX && (count < least || clock_now_ns() < end)) {
        if (!round(context, count))
            return 0;
        count++;
    }
    return count;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread(const double *values, size_t count) {
    double sorted[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < count; i++)
        sorted[i] = values[i];
    qsort(sorted, count, sizeof *sorted, compare_doubles);
    return (struct bench_spread){sorted[0], sorted[count / 2], sorted[count - 1]};
}

double bench_ratio(const double *a, const double *b, size_t count) {
    double ratios[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < count; i++)
        ratios[i] = a[i] / b[i];
    return bench_spread(ratios, count).median;
}
