/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const part_names[] = {"layer", "attention", "projection"};

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread(const double *values, size_t count) {
    double sorted[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < count; i++)
        sorted[i] = values[i];
    qsort(sorted, count, sizeof *sorted, compare);
    return (struct bench_spread){sorted[0], sorted[count / 2], sorted[count - 1]};
}

double bench_ratio(const double *a, const double *b, size_t count) {
    double ratios[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < count; i++)
        ratios[i] = a[i] / b[i];
    return bench_spread(ratios, count).median;
}

/* The share of the peak that contender `c` reaches, round by round; of work really done.
 */
static double share_of_peak(const struct bench_report *report, size_t c) {
    double reached[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < report->num_rounds; i++)
        reached[i] = report->done_flop / report->contenders[c].seconds[i];
    return bench_ratio(reached, report->peak, report->num_rounds);
}

/* How many times as fast as the last contender, which is the baseline. */
static double over_baseline(const struct bench_report *report, size_t c) {
    return bench_ratio(report->contenders[report->num_contenders - 1].seconds,
                       report->contenders[c].seconds, report->num_rounds);
}

void bench_print_text(struct bench_report *report) {
    struct bench_spread peak = bench_spread(report->peak, report->num_rounds);
    printf("%s (%zu,%zu,%zu) %zu heads, %zu keys%s%s, %zu thread%s: %.3f GFLOP dense",
           part_names[report->part], report->sequences, report->query_len, report->width,
           report->heads, report->key_len, report->causal ? ", causal" : "",
           report->weights ? ", with weights" : "", report->threads,
           report->threads == 1 ? "" : "s", report->dense_flop * 1e-9);
    if (report->done_flop < report->dense_flop)
        printf(", %.3f of them needed", report->done_flop * 1e-9);
    printf("; %zu rounds\n  %-18s %47.1f GFLOP/s (%.1f..%.1f)\n", report->num_rounds,
           "multiply-add peak", peak.median * 1e-9, peak.min * 1e-9, peak.max * 1e-9);
    for (size_t c = 0; c < report->num_contenders; c++) {
        const struct bench_times *times = &report->contenders[c];
        struct bench_spread s = bench_spread(times->seconds, report->num_rounds);
        printf("  %-11s %-8s %-4s %9.3f ms (%.3f..%.3f) %8.1f GFLOP/s  %.2f of peak  "
               "%.2fx %s\n",
               times->name, times->cpu, times->precision, s.median * 1e3, s.min * 1e3,
               s.max * 1e3, report->done_flop / s.median * 1e-9, share_of_peak(report, c),
               over_baseline(report, c),
               report->contenders[report->num_contenders - 1].name);
    }
    fflush(stdout);
}

void bench_print_json(struct bench_report *report) {
    struct bench_spread peak = bench_spread(report->peak, report->num_rounds);
    printf("{\"part\":\"%s\",\"sequences\":%zu,\"query_len\":%zu,\"key_len\":%zu,"
           "\"width\":%zu,"
           "\"heads\":%zu,\"causal\":%s,\"fill\":%zu,\"weights\":%s,\"threads\":%zu,"
           "\"dense_gflop\":%.9g,\"done_gflop\":%.9g,\"rounds\":%zu,\"peak_gflops\":%.3f,"
           "\"results\":[",
           part_names[report->part], report->sequences, report->query_len,
           report->key_len, report->width, report->heads,
           report->causal ? "true" : "false", report->fill,
           report->weights ? "true" : "false", report->threads, report->dense_flop * 1e-9,
           report->done_flop * 1e-9, report->num_rounds, peak.median * 1e-9);
    for (size_t c = 0; c < report->num_contenders; c++) {
        const struct bench_times *times = &report->contenders[c];
        struct bench_spread s = bench_spread(times->seconds, report->num_rounds);
        printf("%s{\"name\":\"%s\",\"cpu\":\"%s\",\"precision\":\"%s\",\"median_ms\":%."
               "6f,\"min_ms\":%.6f,"
               "\"max_ms\":%.6f,\"gflops\":%.3f,\"of_peak\":%.4f,\"over_baseline\":%.4f}",
               c > 0 ? "," : "", times->name, times->cpu, times->precision,
               s.median * 1e3, s.min * 1e3, s.max * 1e3,
               report->done_flop / s.median * 1e-9, share_of_peak(report, c),
               over_baseline(report, c));
    }
    printf("]}\n");
    fflush(stdout);
}
