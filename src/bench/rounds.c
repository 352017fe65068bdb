/* SPDX-License-Identifier: Apache-2.0 */
/* rounds.c: the loop that measures time, and the medians of measurements. */
#include "bench/rounds.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS_MIN  5
#define SECONDS_MIN 0.01 /* of one measurement; shorter work is repeated */
#define WARM_UP     0.05 /* not counted: the CPU's clock still follows what ran before */

/* Runs for at least so many seconds. Returns the seconds of one run. */
static double time_runs(int64_t (*now)(void), void (*run)(void *context), void *context,
                        double seconds_min) {
    int64_t began = now(), elapsed;
    size_t runs = 0;

    do {
        run(context);
        runs++;
        elapsed = now() - began;
    } while ((double)elapsed < seconds_min * 1e9);
    return (double)elapsed * 1e-9 / (double)runs;
}

double bench_time(size_t threads, void (*run)(void *context), void *context) {
    int64_t (*now)(void) = threads == 1 ? clock_thread_ns : clock_now_ns;

    time_runs(now, run, context, WARM_UP);
    return time_runs(now, run, context, SECONDS_MIN);
}

size_t bench_rounds(size_t seconds, void (*run)(void *context, size_t index),
                    void *context) {
    size_t least = seconds == 0 ? 1 : ROUNDS_MIN, count = 0;
    int64_t end = clock_now_ns() + (int64_t)seconds * 1000000000;

    while (count < BENCH_ROUNDS_MAX && (count < least || clock_now_ns() < end))
        run(context, count++);
    return count;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread(const double *values, size_t count) {
    double sorted[BENCH_ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_doubles);
    return (struct bench_spread){sorted[0], sorted[count / 2], sorted[count - 1]};
}

double bench_ratio(const double *a, const double *b, size_t count) {
    double ratios[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < count; i++)
        ratios[i] = a[i] / b[i];
    return bench_spread(ratios, count).median;
}
