/* SPDX-License-Identifier: Apache-2.0 */
/* peaks.c: measures the multiply-add peaks of a set of kernels. */
#include "bench/peaks.h"

#include "base/clock.h"

#include <string.h>

#define TASK_NS 200000 /* at least so long is a task, of which there are many */

struct peak_run {
    const struct kernels *kernels;
    const attn_parallel *parallel;
    const float *factors; /* [KERNEL_PEAK_WORDS]; NULL: they stay in registers */
    size_t count;         /* rounds of multiply-adds in a task */
};

/* Runs a task. Returns the operations of one round. */
static size_t multiply_for_peak(const struct peak_run *run) {
    float numbers[] = {0.999F, 0.001F, 1.0F}; /* towards 1: neither large nor subnormal */

    if (run->factors != NULL)
        return run->kernels->multiply_add_loaded(run->count, run->factors);
    return run->kernels->multiply_add(run->count, numbers);
}

static void run_task(void *data, size_t index, size_t thread) {
    (void)index;
    (void)thread;
    multiply_for_peak(data);
}

static void run_tasks(void *context) {
    struct peak_run *run = context;
    run->parallel->run(run->parallel->context,
                       bench_num_tasks(run->parallel->num_threads), run_task, run);
}

static double time_peak(struct peak_run run) {
    size_t flop; /* of a round */
    int64_t began;

    do {
        run.count = run.count > 0 ? 2 * run.count : 100;
        began = clock_thread_ns();
        flop = multiply_for_peak(&run);
    } while (clock_thread_ns() - began < TASK_NS);
    size_t threads = run.parallel->num_threads;
    return (double)flop * (double)run.count * (double)bench_num_tasks(threads) /
           bench_time(threads, run_tasks, &run);
}

/* Makes numbers between 1 and 2, or -1 and -2, both as float32 and as pairs of bfloat16.
 * They look random: the clock of a CPU depends on what it multiplies. */
static void make_factors(float ret_factors[KERNEL_PEAK_WORDS]) {
    uint32_t x = 12345;

    for (size_t i = 0; i < KERNEL_PEAK_WORDS; i++) {
        x = x * 1664525 + 1013904223; /* as noise_fill() */
        uint32_t word = 0x3f803f80U | ((x >> 8 | x << 24) & 0x807f807fU);
        memcpy(ret_factors + i, &word, sizeof word);
    }
}

void bench_peaks_time(struct bench_peaks *peaks, const attn_parallel *parallel,
                      size_t round) {
    const struct kernels *kernels = peaks->kernels;
    float factors[KERNEL_PEAK_WORDS] __attribute__((aligned(ATTN_ALIGNMENT)));

    make_factors(factors);
    peaks->registers[round] = time_peak((struct peak_run){kernels, parallel, NULL, 0});
    peaks->loaded[round] = time_peak((struct peak_run){kernels, parallel, factors, 0});
}
