/* SPDX-License-Identifier: Apache-2.0 */
/* run.h: what the steps of attn_run() have in common: the request, its plan, the arrays
 * of scratch, the heads that are computed, and how threads share a step. How a step is
 * divided never changes a bit of what the native engine computes. */
#pragma once

#include "math/model.h"
#include "math/plan/plan.h"

#include <stdint.h>

/* Operations that share_tasks() assumes for the conversion of one number to bfloat16. */
#define RUN_CONVERT_FLOPS 4

/* Ranges in order, none next to another. */
struct ranges {
    const struct range *items; /* [count] */
    size_t count;
};

/* Adds an item to ranges in the memory `items`: the last one again, or one behind it. */
static inline void ranges_add(struct ranges *ranges, struct range *items, size_t item) {
    ranges->items = items;
    if (ranges->count == 0 || items[ranges->count - 1].end < item)
        items[ranges->count++].first = item;
    items[ranges->count - 1].end = item + 1;
}

/* Returns how many items below `item` are in the ranges. */
static inline size_t ranges_below(struct ranges ranges, size_t item) {
    size_t count = 0;
    for (size_t i = 0; i < ranges.count && ranges.items[i].first < item; i++) {
        size_t end = ranges.items[i].end < item ? ranges.items[i].end : item;
        count += end - ranges.items[i].first;
    }
    return count;
}

/* Returns how many items all ranges have together. */
static inline size_t ranges_total(struct ranges ranges) {
    return ranges_below(ranges, SIZE_MAX);
}

/* Returns item number `index` of all ranges together. */
static inline size_t ranges_item(struct ranges ranges, size_t index) {
    const struct range *range = ranges.items;
    for (; index >= range->end - range->first; range++)
        index -= range->end - range->first;
    return range->first + index;
}

/* Returns which of the items of all ranges `item` is, or SIZE_MAX. */
static inline size_t ranges_find(struct ranges ranges, size_t item) {
    size_t before = ranges_below(ranges, item);
    return ranges_below(ranges, item + 1) > before ? before : SIZE_MAX;
}

/* Arrays of a thread's scratch. Four steps have the same memory in turn. */
struct run_thread {
    /* The attention. */
    float *kernels;
    float *total;     /* merged results of a panel, and one chunk's outputs */
    float *chunks;    /* [max_chunks] maxima and sums of the chunks */
    float *queries;   /* of a group of heads; or nothing */
    float *bias;      /* see attend/bias.c; nothing without biases */
    float *positions; /* see attend/bias.c; nothing without terms of content */
    float *weights;   /* of a panel, unless they are a result */
    float *top;       /* the largest weights of a row */
    float *prefix;    /* float64: sums of a row up to each key, with many spans */
    float *gathered;  /* keys and values of a head; none with the mean */
    /* Finishing rows. */
    float *rotation;
    float *tile; /* [KEY_BLOCK, score_size] */
    /* Summing direct sequences. */
    float *sums;
    /* heads/contribute.c. */
    float *inputs, *parts;
};

/* One call, as every step needs it. Arrays are those of scratch.c, unless stated
 * otherwise. */
struct run {
    const attn_model *model;
    const attn_request *request;
    const struct plan *plan; /* own_plan */
    /* The heads whose scores are computed, those whose values are summed, and the words
     * of the latter in `context`, or one empty range. */
    struct ranges scored, summed, summed_words;
    /* The heads whose queries are projected, and the key heads whose keys and values are.
     * All queries and keys are, when a norm needs them. */
    struct ranges query_heads, key_heads, summed_keys;
    float *converted; /* a part of an input, when engine_converts() */
    float *normed;    /* one input after the norm before the layer; or unused */
    float *latents;   /* latent rows of one input; or unused */
    /* [plan->scratch.num_rotations][ROTATE_STEP, rotation.size]; NULL: none */
    double *rotations;
    /* The request's own when they are given, but for keys that are packed. */
    float *queries;       /* [sum of Tq, score_width] */
    float *keys, *values; /* see plan->layer.by_head */
    /* Where plan->layer.finishes_values: [KV][projected_keys, D] by head, else
     * [projected_keys, value_width]. They are the values where kernels do not read
     * pairs. */
    float *value_rows;
    /* [direct_rows, direct_ld], of each direct sequence [scored heads, Tq]. First W_k^T q
     * of a head and query, [key_size]; then its sum of values, [value_size]. */
    float *direct;
    float *gates;   /* [sum of Tq, H*D], before sigmoid: only of summed heads */
    float *context; /* [sum of Tq, H*D]: the heads' outputs */
    float *weights; /* attn_result.weights; NULL when not wanted */
    float *lse;     /* attn_result.lse; NULL when not wanted */
    /* Where a head's and a query's weights are among those that are selected, or -1: by
     * the query's row, and by how many rows come after it, backwards from the end. NULL
     * when no weights are wanted. */
    int32_t *head_indices;  /* [H] */
    int32_t *query_indices; /* [2 * longest Tq] */
    /* The results of reducing weights, and the sums of attend/reduce.h, laid out as
     * received and block_weights of the result. */
    const attn_result *reduced;
    double *received, *blocks;
    struct range panels; /* that attend in this step, where sums go on from it */
    struct range phase;  /* key heads that attend now; see plan->layer.phase_heads */
    /* [panels of queries, H], written instead of weights; NULL when not wanted. */
    attn_head_sums *panel_sums;
    attn_head_sums *even_sums; /* [panels of queries], with panel_sums */
    /* With panel_sums: of each key how far the next marked one is, 0 for a marked key;
     * the ids, NULL when not known; the bits of the places of ids that a row has, see
     * attend/tokens.h; and of the keys that a row attends to, those without a mark. */
    int32_t *to_mark, *ids; /* [sum of Tk] */
    uint8_t *id_places;     /* [sum of Tq] */
    float *rest_logs;       /* [sum of Tq], ln of how many keys without a mark */
    double *strip_products; /* [strips][H + 1, H + 1], with panel_sums: see heads/ */
    float *one_head;        /* selected rows of one head's outputs, with contributions */
    float *no_bias;         /* zeros in place of that of the output projection */
    float *partials;        /* results of the chunks of panels, when they are tasks */
    /* [shared_panels, panel_rows], to be reduced; weights are those of threads else. */
    float *shared_weights;
    struct range *ranges;                /* PLAN_RANGES lists of them */
    struct sequence_position *sequences; /* [B] */
    size_t *first_items;      /* [B + 1]: items before each sequence, see run_items() */
    struct run_thread thread; /* of thread 0; see run_thread() for others */
    struct plan own_plan;
};

/* Returns which of the selected queries one is, by its row in the sequence; or -1. */
static inline int32_t run_find_query(const struct run *run, size_t sequence,
                                     size_t query) {
    size_t after = run->request->query_lens[sequence] - query;
    int32_t index = run->query_indices[query];

    return index >= 0
               ? index
               : run->query_indices[2 * run->plan->batch.longest_query_len - after];
}

/* Returns a thread's own, of an array of run->thread. */
static inline float *run_thread(const struct run *run, size_t thread, float *array) {
    return array + thread * run->plan->arrays.thread_floats;
}

/* Returns the share of operations that the key heads of this phase have. */
static inline double run_phase_flops(const struct run *run, double flops) {
    return flops * (double)(run->phase.end - run->phase.first) /
           (double)run->model->info.num_kv_heads;
}

/* Plans, see plan_make(), and lays out the scratch memory: attn_plan(), in full. Who
 * looks at the plan copies it from ret_sizes->plan. */
attn_status run_plan(const attn_model *model, const attn_request *request,
                     enum plan_kind kind, attn_sizes *ret_sizes, attn_error *ret_error);

/* Sets up a run of the plan of run_plan(), with the results that are wanted. */
void run_init(struct run *run, const attn_model *model, const attn_request *request,
              const attn_sizes *sizes, void *scratch, const attn_result *result);

/* Finds where weights and scores of the heads and queries that are selected go. Only with
 * results by row, before the attention. */
void run_find_rows(struct run *run);

/* Returns how many items a task has, of `count` items with so many operations in all. No
 * thread shall wait long for the last task of another. Nor shall a task take longer than
 * about 2 ms: between two tasks, a worker looks for cheap requests. */
size_t share_task_items(size_t count, double flops, size_t num_threads);

/* Calls task(data, index, thread) for every index below `count`: in parallel when
 * `flops`, the operations of all tasks together, are worth it, else here, in order.
 * `parallel` may be NULL. The caller of attn_run() may omit calls, when it does not want
 * the result any more. */
void share_tasks(const attn_parallel *parallel, double flops, size_t count,
                 void (*task)(void *data, size_t index, size_t thread), void *data);

/* Calls work() for all items of a step, of so many operations in all: with some items of
 * one sequence at a time, by their numbers in the sequence. count() returns how many
 * items a sequence has. run->first_items says how many are before each sequence, until
 * the next call. */
void run_items(const struct run *run, double flops,
               size_t (*count)(const struct run *run, size_t sequence),
               void (*work)(const struct run *run, const struct sequence_position *at,
                            struct range items, size_t thread));

/* The first step: projects queries, also to gates, keys and values, which the norm before
 * the layer comes before; those that are the same tensor go together. Keys and values of
 * direct sequences are not projected. */
void run_project_inputs(const struct run *run);

/* The first step of a layer without projections, in each phase: where layer.packs, copies
 * the keys of heads whose scores are computed, and where layer.packs_values, values. */
void run_pack_keys(const struct run *run);

/* The last of the second step: gates the heads' outputs, and norms them, where the layer
 * does. Makes those of heads that are left out 0. */
void run_finish_sums(const struct run *run);

/* Projects all queries, keys and values once more, to where `result` has them. */
void run_write_projections(const struct run *run, const attn_result *result);

/* Copies the heads' outputs to `outputs` [sum of Tq, H*D]. */
void run_copy_heads(const struct run *run, float *outputs);

/* Projects `rows` rows of x, of which only some words are read, to y [rows, linear->out],
 * whose rows are y_ld apart. */
void run_project_rows(const struct run *run, const struct linear *linear, const float *x,
                      size_t rows, struct ranges words, float *y, size_t y_ld);

/* The third step: projects the heads' outputs to `outputs` [sum of Tq, out_size]. Only
 * for models with an output projection. */
void run_project_outputs(const struct run *run, float *outputs);

/* Returns the output projection without its bias. It borrows run->no_bias. */
struct linear run_output_without_bias(const struct run *run);

/* Projects the outputs of each selected head by itself, without the bias, for the
 * selected queries: `contributions` is that of attn_result. */
void run_contribute(const struct run *run, float *contributions);
