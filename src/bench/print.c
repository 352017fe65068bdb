/* SPDX-License-Identifier: Apache-2.0 */
/* print.c: prints the report of a layer, and errors. Programs read the words at the
 * start of the lines, ` ms` and the JSON fields, so these do not change. */
#include "bench/bench.h"

#include "base/error.h"

#include <stdio.h>

int bench_report_error(const char *text, int exit_code) {
    fprintf(stderr, "attnd-bench: %s\n", text);
    return exit_code;
}

/* Returns how much of a limit contender `c` reaches, which does `work` in each run. The
 * limit [num_rounds] is work per second. */
static double share_of(const struct bench_report *report, size_t c, double work,
                       const double *limit) {
    double reached[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < report->num_rounds; i++)
        reached[i] = work / report->contenders[c].seconds[i];
    return bench_ratio(reached, limit, report->num_rounds);
}

/* What is printed about a contender: the seconds of its rounds, and medians. */
struct figures {
    struct bench_spread s;
    double gflops, of_peak, of_loaded; /* of the work that the mask leaves */
    double over_baseline;              /* how many times as fast */
    double gb_per_s, of_reading;       /* of keys and values, as if each was read once */
};

static struct figures find_figures(const struct bench_report *report, size_t c) {
    const struct bench_times *times = &report->contenders[c];
    const struct bench_times *baseline = &report->contenders[report->num_contenders - 1];
    const struct bench_peaks *peaks = &report->peaks[times->peaks];
    bool halves = report->part == BENCH_STORED && times->precision[0] == 'b';
    double bytes = (double)report->read_words * (halves ? 2.0 : sizeof(float));
    struct bench_spread s = bench_spread(times->seconds, report->num_rounds);

    return (struct figures){
        .s = s,
        .gflops = report->done_flop / s.median * 1e-9,
        .of_peak = share_of(report, c, report->done_flop, peaks->registers),
        .of_loaded = share_of(report, c, report->done_flop, peaks->loaded),
        .over_baseline =
            bench_ratio(baseline->seconds, times->seconds, report->num_rounds),
        .gb_per_s = bytes / s.median * 1e-9,
        .of_reading = share_of(report, c, bytes, report->reading)};
}

static void print_text_peaks(const struct bench_report *report) {
    for (size_t i = 0; i < report->num_peaks; i++) {
        const struct bench_peaks *set = &report->peaks[i];
        struct bench_spread peak = bench_spread(set->registers, report->num_rounds);
        struct bench_spread loaded = bench_spread(set->loaded, report->num_rounds);

        printf("  %-18s  %-8s %-4s %30.1f GFLOP/s (%.1f..%.1f)", "multiply-add peak",
               set->kernels->name, bench_peaks_precision(set), peak.median * 1e-9,
               peak.min * 1e-9, peak.max * 1e-9);
        printf(", loaded %.1f (%.1f..%.1f)\n", loaded.median * 1e-9, loaded.min * 1e-9,
               loaded.max * 1e-9);
    }
}

/* Prints the line above the contenders, and the lines of the limits. */
static void print_text_head(const struct bench_report *report) {
    printf("%s %s%s(%zu,%zu,%zu) %zu head%s", bench_parts[report->part], report->model,
           report->model[0] != '\0' ? " " : "", report->sequences, report->query_len,
           report->width, report->heads, plural_of(report->heads));
    if (report->model[0] != '\0')
        printf(" of %zu, %zu key head%s", report->head_size, report->key_heads,
               plural_of(report->key_heads));
    printf(", %zu key%s", report->key_len, plural_of(report->key_len));
    if (bench_is_given(report->part) && report->key_heads < report->heads)
        printf(", %zu key head%s", report->key_heads, plural_of(report->key_heads));
    if (report->part == BENCH_ATTENTION)
        printf(", keys and values %s",
               report->contenders[0].by_head ? "by head (native)" : "strided");
    if (report->causal)
        printf(", causal");
    if (report->window > 0)
        printf(", window %zu", report->window);
    if (report->chunk > 0)
        printf(", chunks of %zu", report->chunk);
    if (report->weights)
        printf(", with weights");
    printf(", %zu thread%s: %.3f GFLOP dense", report->threads,
           plural_of(report->threads), report->dense_flop * 1e-9);
    if (report->done_flop < report->dense_flop)
        printf(", %.3f of them needed", report->done_flop * 1e-9);
    printf("; %zu round%s\n", report->num_rounds, plural_of(report->num_rounds));

    print_text_peaks(report);
    if (bench_is_attention(report)) {
        struct bench_spread reading = bench_spread(report->reading, report->num_rounds);
        printf("  %-18s %47.1f GB/s (%.1f..%.1f)\n", "read bandwidth",
               reading.median * 1e-9, reading.min * 1e-9, reading.max * 1e-9);
    }
}

void bench_print_text(const struct bench_report *report) {
    print_text_head(report);
    for (size_t c = 0; c < report->num_contenders; c++) {
        const struct bench_times *times = &report->contenders[c];
        const struct figures f = find_figures(report, c);

        printf("  %-11s %-8s %-4s %9.3f ms (%.3f..%.3f) ", times->name, times->cpu,
               times->precision, f.s.median * 1e3, f.s.min * 1e3, f.s.max * 1e3);
        printf("%8.1f GFLOP/s  %.2f of peak, %.2f of loaded", f.gflops, f.of_peak,
               f.of_loaded);
        if (report->has_baseline)
            printf("  %.2fx cblas tiles", f.over_baseline);
        if (bench_is_attention(report))
            printf("%7.1f GB/s  %.2f of reading", f.gb_per_s, f.of_reading);
        printf("\n");
    }
    if (!report->has_baseline)
        printf("  %-11s left out, since it computes layers of plain attention alone\n",
               "cblas tiles");
    fflush(stdout);
}

void bench_print_json(const struct bench_report *report) {
    const struct bench_peaks *peaks = &report->peaks[report->contenders[0].peaks];

    printf("{\"part\":\"%s\",", bench_parts[report->part]);
    if (report->model[0] != '\0')
        printf("\"model\":\"%s\",", report->model); /* no character needs an escape */
    printf("\"sequences\":%zu,\"query_len\":%zu,\"key_len\":%zu,\"width\":%zu,"
           "\"heads\":%zu,\"key_heads\":%zu,\"head_size\":%zu,\"window\":%zu,",
           report->sequences, report->query_len, report->key_len, report->width,
           report->heads, report->key_heads, report->head_size, report->window);
    printf("\"causal\":%s,\"weights\":%s,\"threads\":%zu,",
           report->causal ? "true" : "false", report->weights ? "true" : "false",
           report->threads);
    printf("\"dense_gflop\":%.9g,\"done_gflop\":%.9g,\"rounds\":%zu,",
           report->dense_flop * 1e-9, report->done_flop * 1e-9, report->num_rounds);
    printf("\"peak_gflops\":%.3f,\"loaded_peak_gflops\":%.3f,",
           bench_spread(peaks->registers, report->num_rounds).median * 1e-9,
           bench_spread(peaks->loaded, report->num_rounds).median * 1e-9);
    if (bench_is_attention(report))
        printf("\"read_gb_per_s\":%.3f,",
               bench_spread(report->reading, report->num_rounds).median * 1e-9);
    printf("\"results\":[");

    for (size_t c = 0; c < report->num_contenders; c++) {
        const struct bench_times *times = &report->contenders[c];
        const struct figures f = find_figures(report, c);
        printf("%s{\"name\":\"%s\",\"cpu\":\"%s\",\"precision\":\"%s\",",
               c > 0 ? "," : "", times->name, times->cpu, times->precision);
        printf("\"median_ms\":%.6f,\"min_ms\":%.6f,\"max_ms\":%.6f,\"gflops\":%.3f,"
               "\"of_peak\":%.4f,\"of_loaded_peak\":%.4f",
               f.s.median * 1e3, f.s.min * 1e3, f.s.max * 1e3, f.gflops, f.of_peak,
               f.of_loaded);
        if (report->has_baseline)
            printf(",\"over_baseline\":%.4f", f.over_baseline);
        if (bench_is_attention(report))
            printf(",\"by_head\":%s,\"gb_per_s\":%.6f,\"of_reading\":%.4f",
                   times->by_head ? "true" : "false", f.gb_per_s, f.of_reading);
        printf("}");
    }
    printf("]}\n");
    fflush(stdout);
}
