/* SPDX-License-Identifier: Apache-2.0 */
/* print.c: prints reports, and errors. Programs read the fields of JSON, so these do not
 * change. For people the same fields are lines and tables. */
#include "bench/bench.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define DUMP_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(9))

int bench_report_error(const char *text, int exit_code) {
    fprintf(stderr, "attnd-bench: %s\n", text);
    return exit_code;
}

/* --- for people --- */

/* Prints a number, a text, true or false. Texts are on the left of their column. */
static void print_value(const json_t *value, int width) {
    if (json_is_real(value))
        printf("%*.5g", width, json_real_value(value));
    else if (json_is_integer(value))
        printf("%*" JSON_INTEGER_FORMAT, width, json_integer_value(value));
    else if (json_is_string(value))
        printf("%-*s", width, json_string_value(value));
    else
        printf("%*s", width, json_is_true(value) ? "true" : "false");
}

/* Prints a list of objects that have the same names, which are its head. */
static void print_table(json_t *rows) {
    const char *name;
    json_t *value;

    for (size_t i = 0; i <= json_array_size(rows); i++) {
        json_object_foreach(json_array_get(rows, i > 0 ? i - 1 : 0), name, value) {
            int width = (int)strlen(name) > 8 ? (int)strlen(name) : 8;
            printf("  ");
            if (i > 0)
                print_value(value, width);
            else
                printf(json_is_string(value) ? "%-*s" : "%*s", width, name);
        }
        printf("\n");
    }
}

static void print_text(json_t *report) {
    const char *name, *separator = "";
    json_t *value;

    json_object_foreach(report, name, value) {
        if (json_is_array(value))
            continue;
        printf("%s%s ", separator, name);
        print_value(value, 0);
        separator = ", ";
    }
    printf("\n");
    json_object_foreach(report, name, value) {
        if (json_is_array(value))
            print_table(value);
    }
}

/* --- reports --- */

/* Returns how much of a limit contender `c` reaches, which does `work` in each run. The
 * limit [num_rounds] is work per second. */
static double share_of(const struct bench_report *report, size_t c, double work,
                       const double *limit) {
    double reached[BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < report->num_rounds; i++)
        reached[i] = work / report->contenders[c].seconds[i];
    return bench_ratio(reached, limit, report->num_rounds);
}

/* Operations are those that the mask leaves. Keys and values count as if each was read
 * once. */
static json_t *pack_contender(const struct bench_report *report, size_t c) {
    const struct bench_times *times = &report->contenders[c];
    const struct bench_times *baseline = &report->contenders[report->num_contenders - 1];
    const struct bench_peaks *peaks = &report->peaks[times->peaks];
    bool halves = report->part == BENCH_STORED && times->precision[0] == 'b';
    double bytes = (double)report->read_words * (halves ? 2.0 : sizeof(float));
    struct bench_spread s = bench_spread(times->seconds, report->num_rounds);
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "name", times->name, "cpu",
        times->cpu, "precision", times->precision, "median_ms", s.median * 1e3, "min_ms",
        s.min * 1e3, "max_ms", s.max * 1e3, "gflops", report->done_flop / s.median * 1e-9,
        "of_peak", share_of(report, c, report->done_flop, peaks->registers),
        "of_loaded_peak", share_of(report, c, report->done_flop, peaks->loaded));

    if (strcmp(baseline->name, "openblas") == 0)
        json_object_set_new(row, "over_baseline",
                            json_real(bench_ratio(baseline->seconds, times->seconds,
                                                  report->num_rounds)));
    if (bench_is_attention(report))
        json_object_update_new(
            row, json_pack("{s:b, s:f, s:f}", "by_head", times->by_head, "gb_per_s",
                           bytes / s.median * 1e-9, "of_reading",
                           share_of(report, c, bytes, report->reading)));
    return row;
}

static json_t *pack_peaks(const struct bench_report *r) {
    json_t *list = json_array();

    for (size_t i = 0; i < r->num_peaks; i++) {
        const struct bench_peaks *peaks = &r->peaks[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:f, s:f}", "cpu", peaks->kernels->name, "precision",
                      peaks->kernels->k_step == 2 ? "bf16" : "f32", "peak_gflops",
                      bench_spread(peaks->registers, r->num_rounds).median * 1e-9,
                      "loaded_peak_gflops",
                      bench_spread(peaks->loaded, r->num_rounds).median * 1e-9));
    }
    return list;
}

static json_t *pack_layer(const struct bench_report *r) {
    const struct bench_peaks *peaks = &r->peaks[r->contenders[0].peaks];
    const attn_model_info *info = r->info;
    const struct {
        const char *name;
        size_t value;
    } sizes[] = {{"sequences", r->sequences},     {"query_len", r->query_len},
                 {"key_len", r->key_len},         {"width", info->width.query},
                 {"heads", info->num_heads},      {"key_heads", info->num_kv_heads},
                 {"head_size", info->width.head}, {"window", info->mask.window},
                 {"chunk", info->mask.chunk},     {"threads", r->threads},
                 {"rounds", r->num_rounds}};
    json_t *root =
        json_pack("{s:s, s:s*}", "part", bench_parts[r->part], "model", r->model);
    json_t *rows = json_array();

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        json_object_set_new(root, sizes[i].name,
                            json_integer((json_int_t)sizes[i].value));
    for (size_t c = 0; c < r->num_contenders; c++)
        json_array_append_new(rows, pack_contender(r, c));
    if (bench_is_attention(r))
        json_object_set_new(
            root, "read_gb_per_s",
            json_real(bench_spread(r->reading, r->num_rounds).median * 1e-9));
    json_object_update_new(
        root, json_pack("{s:b, s:b, s:f, s:f, s:f, s:f, s:o, s:o}", "causal", r->causal,
                        "weights", r->weights, "dense_gflop", r->dense_flop * 1e-9,
                        "done_gflop", r->done_flop * 1e-9, "peak_gflops",
                        bench_spread(peaks->registers, r->num_rounds).median * 1e-9,
                        "loaded_peak_gflops",
                        bench_spread(peaks->loaded, r->num_rounds).median * 1e-9, "peaks",
                        pack_peaks(r), "results", rows));
    return root;
}

int bench_print(const struct bench_report *report, bool json) {
    json_t *root = pack_layer(report);

    if (root == NULL)
        return bench_report_error("out of memory", 1);
    if (!json)
        print_text(root);
    else if (json_dumpf(root, stdout, DUMP_FLAGS) == 0)
        printf("\n");
    fflush(stdout);
    json_decref(root);
    return 0;
}
