/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: the parts of attnd-bench: its options, layers to time, and their report. */
#pragma once

#include "base/arena.h"
#include "bench/peaks.h"
#include "bench/rounds.h"
#include "config/compute.h"
#include "math/packed.h"

#include <attnd/attention.h>
#include <stdbool.h>
#include <stddef.h>

/* The choices of --part, in the order of its words. */
enum bench_part {
    BENCH_LAYER,
    BENCH_ATTENTION,
    BENCH_PROJECTION,
    BENCH_DOT_PRODUCT, /* this and the next one without a model */
    BENCH_STORED
};

extern const char *const bench_parts[]; /* the words of --part, then NULL */

/* The value of every option. */
struct bench_config {
    struct config_compute compute; /* first, see option_set */
    struct config_texts models;
    struct config_texts shapes;
    int part;        /* enum bench_part */
    size_t kv_heads; /* without a model; 0: as many as heads */
    bool causal;
    bool weights;
    bool json;
    size_t seconds; /* for each shape */
    bool help;
    bool version;
};

extern const struct option_set bench_options; /* they fill a struct bench_config */

#define BENCH_CONTENDERS_MAX 3

/* One of the contenders, which take turns, and its seconds in each round. */
struct bench_times {
    const char *name;      /* "native", "openblas" */
    const char *cpu;       /* instruction set */
    const char *precision; /* "f32", "bf16" */
    bool by_head;          /* how projected keys and values lie, see struct plan */
    size_t peaks;          /* which of the report's are those of its kernels */
    double seconds[BENCH_ROUNDS_MAX];
};

struct folder;
struct model_spec;

/* The numbers of a --shape. */
struct bench_shape {
    size_t sequences, query_len, key_len;
    size_t width, heads; /* 0: those of a --model */
};

/* A layer of a --model, or one that is made up. All memory is borrowed. */
struct bench_layer {
    const struct bench_shape *shape;
    const struct model_spec *spec; /* NULL: made up, of the sizes of the shape */
    const char *name;              /* in the report; NULL: made up */
    const struct folder *folder;   /* NULL: the path of `spec` is a file */
    size_t index;                  /* of the layer in the folder */
};

struct bench_report {
    const char *model;           /* of --model, with the layer; NULL: made up */
    const attn_model_info *info; /* of the first contender */
    size_t sequences, query_len, key_len;
    enum bench_part part;
    bool causal, weights;
    size_t threads;
    double dense_flop; /* operations that the part needs without a mask */
    double done_flop;  /* operations that it needs with the mask */
    size_t read_words; /* of projected keys and values that any query attends to */
    size_t num_rounds, num_contenders;
    struct bench_times contenders[BENCH_CONTENDERS_MAX];
    size_t num_peaks;
    struct bench_peaks peaks[BENCH_CONTENDERS_MAX]; /* each of another set of kernels */
    /* Bytes per second that reading as many words takes; of parts without projections. */
    double reading[BENCH_ROUNDS_MAX];
};

/* Creates the layer's model, which keeps its weights as they were loaded. The caller owns
 * *ret_model. Errors: those of attn_model_load() or folder_create_model(). */
attn_status bench_layer_create(const struct bench_layer *layer,
                               const attn_engine_options *engine, attn_model **ret_model,
                               attn_error *ret_error);

/* Sets the operations of the report's part, and the words that it reads. All sequences of
 * the request have the same lengths and positions; it has no valid_lens, and no positions
 * of keys. */
void bench_layer_count(const attn_model *model, const attn_request *request,
                       struct bench_report *report);

/* Makes keys that are kept, in float32 and in bfloat16, from `input`, which they borrow
 * and which has more numbers. Which number is where does not matter to a clock. They are
 * in `memory`. Returns ATTN_E_NOMEM when memory is short. */
attn_status bench_stored_make(const attn_model *model, size_t num_keys,
                              const float *input, struct arena *memory,
                              struct attn_packed ret_packed[2]);

/* Times the layer, and prints the report. Returns the exit code. */
int bench_layer_run(const struct bench_config *config, const struct bench_layer *layer);

/* Prints an error to standard error; returns `exit_code`. */
int bench_report_error(const char *text, int exit_code);

/* Returns whether a part has no model. */
static inline bool bench_is_given(enum bench_part part) {
    return part == BENCH_DOT_PRODUCT || part == BENCH_STORED;
}

/* Returns whether the report's part is compared with reading its keys and values. */
static inline bool bench_is_attention(const struct bench_report *report) {
    return report->part == BENCH_ATTENTION || bench_is_given(report->part);
}

/* Prints a report: as one line of JSON, or for people its fields, and a table for each
 * list. Returns the exit code. */
int bench_print(const struct bench_report *report, bool json);
