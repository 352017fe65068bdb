/* SPDX-License-Identifier: Apache-2.0 */
/* sets.c: attnd-bench --peaks, which measures the peaks of all sets of kernels. */
#include "base/error.h"
#include "bench/bench.h"

#include <stdio.h>

#define SETS_MAX 8

struct all_peaks {
    struct bench_peaks sets[SETS_MAX];
    size_t count;
};

static void run_alone(void *context, size_t count,
                      void (*task)(void *data, size_t index, size_t thread), void *data) {
    (void)context;
    for (size_t i = 0; i < count; i++)
        task(data, i, 0);
}

static bool time_all(void *context, size_t round) {
    static const attn_parallel alone = {1, run_alone, NULL};
    struct all_peaks *all = context;

    for (size_t i = 0; i < all->count; i++)
        bench_peaks_time(&all->sets[i], &alone, round);
    return true;
}

static bool is_chosen(const struct kernels *kernels) {
    return kernels_get(kernels->name, kernels->k_step == 2) == kernels;
}

static void print_text(const struct all_peaks *all, size_t rounds) {
    printf("multiply-add peaks of the sets of kernels, 1 thread; %zu round%s\n", rounds,
           plural_of(rounds));
    for (size_t i = 0; i < all->count; i++) {
        const struct bench_peaks *set = &all->sets[i];
        struct bench_spread registers = bench_spread(set->registers, rounds);
        struct bench_spread loaded = bench_spread(set->loaded, rounds);

        printf("  %-8s %-4s %8.1f GFLOP/s (%.1f..%.1f), loaded %.1f (%.1f..%.1f)%s\n",
               set->kernels->name, bench_peaks_precision(set), registers.median * 1e-9,
               registers.min * 1e-9, registers.max * 1e-9, loaded.median * 1e-9,
               loaded.min * 1e-9, loaded.max * 1e-9,
               is_chosen(set->kernels) ? "" : "  not used: slower than f32");
    }
}

static void print_json(const struct all_peaks *all, size_t rounds) {
    printf("{\"threads\":1,\"rounds\":%zu,\"sets\":[", rounds);
    for (size_t i = 0; i < all->count; i++) {
        const struct bench_peaks *set = &all->sets[i];
        printf("%s{\"cpu\":\"%s\",\"precision\":\"%s\",\"used\":%s,", i > 0 ? "," : "",
               set->kernels->name, bench_peaks_precision(set),
               is_chosen(set->kernels) ? "true" : "false");
        printf("\"peak_gflops\":%.3f,\"loaded_peak_gflops\":%.3f}",
               bench_spread(set->registers, rounds).median * 1e-9,
               bench_spread(set->loaded, rounds).median * 1e-9);
    }
    printf("]}\n");
}

int bench_peaks_run(const struct bench_config *config) {
    static struct all_peaks all; /* too large for a stack */
    const struct kernels *kernels;

    for (size_t i = 0; i < SETS_MAX && (kernels = kernels_runnable(i)) != NULL; i++)
        all.sets[all.count++].kernels = kernels;
    size_t rounds = bench_rounds(config->seconds, time_all, &all);
    (config->json ? print_json : print_text)(&all, rounds);
    fflush(stdout);
    return 0;
}
