/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: the report of attnd bench, its printing, and attnd bench --wire. */
#ifndef ATTND_CLI_BENCH_H
#define ATTND_CLI_BENCH_H

#include "cli/bench_rounds.h"
#include "config/config.h"

#include <stdbool.h>
#include <stddef.h>

/* What --part chooses, in the order of its words. */
enum bench_part { BENCH_LAYER, BENCH_ATTENTION, BENCH_PROJECTION };

#define BENCH_CONTENDERS_MAX 4

/* One of the contenders, which take turns, and its seconds in each round. */
struct bench_times {
    const char *name;      /* "native", "openblas", "cblas tiles" */
    const char *cpu;       /* instruction set; "" where BLAS chooses */
    const char *precision; /* "f32", "bf16" */
    bool by_head;          /* how projected keys and values lie, see struct plan */
    double seconds[BENCH_ROUNDS_MAX];
};

struct bench_report {
    size_t sequences, query_len, key_len, width, heads; /* the shape */
    enum bench_part part;
    bool causal, weights, strided;
    size_t fill; /* per cent of the keys that valid_lens keeps */
    size_t threads;
    double dense_flop; /* operations that the part needs without a mask */
    double done_flop;  /* those that it needs with the mask */
    size_t read_words; /* of projected keys and values that any query attends to */
    size_t num_rounds, num_contenders;
    struct bench_times contenders[BENCH_CONTENDERS_MAX];
    /* Operations per second of multiply-adds alone, as precise as the first contender. */
    double peak[BENCH_ROUNDS_MAX];
    /* Bytes per second that are read of so many words; of BENCH_ATTENTION alone. */
    double reading[BENCH_ROUNDS_MAX];
};

/* Runs attnd bench --wire, and returns the exit code. */
int bench_wire(const struct config *config);

/* Print a report to standard output, for people or as one line of JSON. */
void bench_print_text(const struct bench_report *report);
void bench_print_json(const struct bench_report *report);

#endif
