/* SPDX-License-Identifier: Apache-2.0 */
/* results.h: the results that a request may ask for, in one table: planning, memory,
 * joined requests, words of need, selections and replies read its rows. Thread-safe. */
#pragma once

#include <attnd/attention.h>
#include <string.h>

struct arena;

#define RESULT_AXES_MAX 4 /* of one sequence */

/* In the order of replies. */
enum result_id {
    RESULT_OUTPUTS,
    RESULT_WEIGHTS,
    RESULT_HEADS,
    RESULT_LSE,
    RESULT_SCORES,
    RESULT_SPAN_WEIGHTS,
    RESULT_TOP_KEYS,
    RESULT_TOP_WEIGHTS,
    RESULT_TARGET_WEIGHTS,
    RESULT_RECEIVED,
    RESULT_ENTROPY,
    RESULT_BLOCK_WEIGHTS,
    RESULT_CONTRIBUTIONS,
    RESULT_PROJECTED_QUERIES,
    RESULT_PROJECTED_KEYS,
    RESULT_PROJECTED_VALUES,
    NUM_RESULTS
};

enum result_axis {
    AXIS_NONE, /* ends the list */
    AXIS_QUERIES,
    AXIS_ROWS, /* selected queries */
    AXIS_KEYS,
    AXIS_HEADS,
    AXIS_SELECTED, /* heads */
    AXIS_MATRICES, /* selected heads; no axis for their mean */
    AXIS_KEY_HEADS,
    AXIS_HEAD_SIZE,
    AXIS_SCORE_SIZE,
    AXIS_OUT_SIZE,
    AXIS_SPANS,
    AXIS_RANGES, /* of top_in; no axis without it */
    AXIS_TOP,
    AXIS_ROW_BLOCKS,
    AXIS_KEY_BLOCKS
};

/* Properties of a result, as bits. */
enum result_kind {
    RESULT_JOINED = 1,     /* requests that want it can be joined */
    RESULT_SELECTED = 2,   /* has selected heads and queries alone */
    RESULT_BY_ROW = 4,     /* is made of weights or scores, row by row */
    RESULT_WEIGHED = 8,    /* needs weights one by one */
    RESULT_REDUCED = 16,   /* is what weights are reduced to */
    RESULT_SUMMED = 32,    /* adds up over queries, so that panels attend in order */
    RESULT_PROJECTED = 64, /* needs a model: other requests do not have its word */
    RESULT_OIP = 128       /* is an output of the Open Inference Protocol */
};

struct result {
    const char *name;                       /* in replies */
    const char *word;                       /* of need; NULL: that of the row before */
    enum result_axis axes[RESULT_AXES_MAX]; /* of one sequence */
    unsigned kinds;                         /* bits of enum result_kind */
    size_t numbers, count; /* where attn_result and attn_sizes have them, offsets */
    size_t flag;           /* of attn_request, an offset; 0: it wants it in another way */
    double flops;          /* of each weight, where they depend on nothing else */
    bool integers;         /* int64_t, else float */
    bool nullable;         /* -INFINITY, and the integer -1, are results */
};

extern const struct result result_table[NUM_RESULTS];

/* The results that a request wants. Borrows both. */
struct wanted_results {
    const attn_model_info *info;
    const attn_request *request;
    bool has[NUM_RESULTS];
    unsigned kinds;      /* of all of these */
    bool selects_heads;  /* attn_request.weights_heads say whose */
    size_t num_selected; /* heads */
};

/* Returns whether a request wants a result. */
bool result_wanted(const attn_request *request, enum result_id id);

/* Finds the results that a request wants, and what follows from them. */
void results_find(const attn_model_info *info, const attn_request *request,
                  struct wanted_results *ret_wanted);

/* Writes the shape of a result of one sequence, and returns its rank: 2 at least. */
size_t results_shape(const struct wanted_results *wanted, enum result_id id,
                     size_t sequence, size_t ret_shape[RESULT_AXES_MAX]);

/* Adds how many numbers the wanted results of a sequence have. Returns false when that
 * overflows. */
bool results_add(const struct wanted_results *wanted, size_t sequence,
                 size_t counts[NUM_RESULTS]);

/* Returns the size of an axis that the model decides; 0: a request does. */
size_t result_model_axis(const attn_model_info *info, enum result_axis axis);

/* Returns the least of some lengths; SIZE_MAX for none. */
size_t results_shortest(const size_t *lens, size_t count);

/* Returns the most that top_k may be: what each range of top_in, or else each sequence,
 * has of keys. */
size_t results_top_max(const attn_request *request);

/* Returns how many queries are selected of a sequence. */
size_t result_rows(const attn_request *request, size_t sequence);

/* Returns how many blocks have `count` rows or keys, of which there may be none. */
size_t result_blocks(const attn_request *request, size_t count);

static inline size_t result_number_bytes(enum result_id id) {
    return result_table[id].integers ? sizeof(int64_t) : sizeof(float);
}

/* Returns where a result has its numbers; NULL where it is not wanted. */
static inline void *result_numbers(const attn_result *result, enum result_id id) {
    void *numbers;
    memcpy(&numbers, (const char *)result + result_table[id].numbers, sizeof numbers);
    return numbers;
}

static inline void result_set_numbers(attn_result *result, enum result_id id,
                                      void *numbers) {
    memcpy((char *)result + result_table[id].numbers, &numbers, sizeof numbers);
}

/* Returns how many numbers a result has. */
static inline size_t result_count(const attn_sizes *sizes, enum result_id id) {
    size_t count;
    memcpy(&count, (const char *)sizes + result_table[id].count, sizeof count);
    return count;
}

/* Adds the bytes of all results, which saturate, to *bytes. */
void results_add_bytes(const attn_sizes *sizes, size_t *bytes);

/* Allocates all results, where NULL stands for none; false when memory is short. */
bool results_alloc(struct arena *arena, const attn_sizes *sizes, attn_result *ret_result);

static inline void result_set_count(attn_sizes *sizes, enum result_id id, size_t count) {
    memcpy((char *)sizes + result_table[id].count, &count, sizeof count);
}

/* Returns the flag that says that a result is wanted; NULL: there is none. */
static inline bool *result_flag(attn_request *request, enum result_id id) {
    size_t flag = result_table[id].flag;
    return flag > 0 ? (bool *)request + flag : NULL;
}
