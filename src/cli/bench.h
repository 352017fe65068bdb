/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: what attnd bench measured. */
#ifndef ATTND_CLI_BENCH_H
#define ATTND_CLI_BENCH_H

#include "config/config.h"

#include <stdbool.h>
#include <stddef.h>

enum bench_part { BENCH_LAYER, BENCH_ATTENTION, BENCH_PROJECTION };

#define BENCH_ROUNDS_MAX     1000
#define BENCH_CONTENDERS_MAX 4

/* One thing that is timed; all take turns, round by round. */
struct bench_times {
    const char *name;      /* "native", "openblas", "cblas tiles" */
    const char *cpu;       /* instruction set; "" where BLAS chooses */
    const char *precision; /* "f32", "bf16" */
    double seconds[BENCH_ROUNDS_MAX];
};

struct bench_report {
    size_t sequences, query_len, key_len, width, heads; /* the shape */
    enum bench_part part;
    bool causal, weights;
    size_t fill; /* per cent */
    size_t threads;
    double dense_flop; /* what the part takes without a mask */
    double done_flop;  /* what it takes with the mask */
    size_t num_rounds, num_contenders;
    struct bench_times contenders[BENCH_CONTENDERS_MAX];
    double peak[BENCH_ROUNDS_MAX]; /* multiply-add peak in the precision that was asked
                                      for, operations a second, each round */
};

struct bench_spread {
    double min, median, max;
};

/* The spread of 1..BENCH_ROUNDS_MAX values. */
struct bench_spread bench_spread(const double *values, size_t count);

/* The median of a / b taken round by round, so that a machine that drifts does not
 * matter. */
double bench_ratio(const double *a, const double *b, size_t count);

/* attnd bench --wire: returns the exit code. */
int bench_wire(const struct config *config);

/* Print a report to standard output, for people or as one line of JSON. */
void bench_print_text(struct bench_report *report);
void bench_print_json(struct bench_report *report);

#endif
