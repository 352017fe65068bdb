/* SPDX-License-Identifier: Apache-2.0 */
/* run.h: the steps of attn_run(), each divided into tasks of a parallel for loop. How a
 * step is divided never changes a bit of what the native engine computes. */
#ifndef ATTND_MATH_RUN_H
#define ATTND_MATH_RUN_H

#include "math/model.h"
#include "math/plan.h"

#include <stdint.h>

/* Operations that run_share() assumes for the conversion of one number to bfloat16. */
#define RUN_CONVERT_FLOPS 4

/* Ranges in order, none next to another. */
struct ranges {
    const struct range *items; /* [count] */
    size_t count;
};

/* Returns how many items all ranges have together. */
static inline size_t ranges_total(struct ranges ranges) {
    size_t total = 0;
    for (size_t i = 0; i < ranges.count; i++)
        total += ranges.items[i].end - ranges.items[i].first;
    return total;
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
    size_t before = 0;
    for (size_t i = 0; i < ranges.count && ranges.items[i].first <= item; i++) {
        if (item < ranges.items[i].end)
            return before + item - ranges.items[i].first;
        before += ranges.items[i].end - ranges.items[i].first;
    }
    return SIZE_MAX;
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

/* What every step of one call needs. */
struct run {
    const attn_model *model;
    const attn_request *request;
    const struct plan *plan;
    /* The heads whose scores are computed, those whose values are summed, and the words
     * of the latter in `context`, or one empty range. */
    struct ranges scored, summed, summed_words;
    /* The heads whose queries are projected, and the key heads whose keys and values are.
     * All queries and keys are, when a norm needs them. */
    struct ranges query_heads, key_heads, summed_keys;
    float *converted;     /* one input in bfloat16; unused with float32 */
    float *normed;        /* one input after the norm before the layer; or unused */
    double *rotations;    /* see plan->num_rotations; NULL: none */
    float *queries;       /* [sum of Tq, score_width] */
    float *keys, *values; /* see plan->by_head */
    /* [plan->direct_rows, direct_ld], of each direct sequence [scored heads, Tq]. First
     * W_k^T q of a head and query, [key_size]; then its sum of values, [value_size]. */
    float *direct;
    float *context; /* [sum of Tq, H*D]: the heads' outputs */
    float *weights; /* attn_result.weights; NULL when not wanted */
    float *lse;     /* attn_result.lse; likewise */
    /* Where a head's and a query's weights are among those that are selected, or -1; for
     * the mean, 0 for all heads. NULL when no weights are wanted. */
    int32_t *head_slots;  /* [H] */
    int32_t *query_slots; /* [longest Tq] */
    /* [panels of queries, H], written instead of weights; NULL when not wanted. */
    attn_head_sums *panel_sums;
    attn_head_sums *even_sums; /* [panels of queries], likewise */
    double *strip_products;    /* [strips][H + 1, H + 1], with panel_sums: see heads/ */
    float *partials;           /* results of the pieces of panels, when plan->splits */
    const struct sequence_position *sequences; /* [B] */
    size_t *first_items;   /* [B + 1]: items before each sequence, see attend/items.h */
    float *thread_scratch; /* [num_threads][plan->thread_floats] */
};

/* Returns whether the weights of a head are wanted, or sums that are made with them. */
static inline bool run_weighs_head(const struct run *run, size_t head) {
    return run->panel_sums != NULL || run->request->need_lse ||
           (run->head_slots != NULL && run->head_slots[head] >= 0);
}

/* Sets up a run of a plan. The caller sets `weights` when they are wanted, and `context`
 * where that is the outputs themselves. */
void run_init(struct run *run, const attn_model *model, const attn_request *request,
              const struct plan *plan, void *scratch);

/* Returns how many items a task has, of `count` items with so many operations in all. No
 * thread shall wait long for the last task of another. Nor shall a task take longer than
 * about 2 ms: between two tasks, a worker looks for cheap requests. */
size_t run_task_items(size_t count, double flops, size_t num_threads);

/* Calls task(data, index, thread) for every index below `count`: in parallel when
 * `flops`, the operations of all tasks together, are worth it, else here, in order. The
 * caller of attn_run() may omit calls, when it does not want the result any more. */
void run_share(const struct run *run, double flops, size_t count,
               void (*task)(void *data, size_t index, size_t thread), void *data);

/* The first step: projects queries, keys and values, which the norm before the layer
 * comes before; those that are the same tensor go together. Keys and values of direct
 * sequences are not projected. */
void run_project_inputs(const struct run *run);

/* The rest of it, where plan->places: clips, norms and rotates what was projected, and
 * writes keys into panels. */
void run_place_rows(const struct run *run);

/* The rest of it, for direct sequences: folds W_k into their queries. */
void run_fold_queries(const struct run *run);

/* The second step: every panel of queries of every head attends. Overwrites the queries,
 * and with bfloat16 the keys and values. */
void run_attend(const struct run *run);

/* The rest of it, for direct sequences: projects their weighted sums of values to the
 * heads' outputs. */
void run_project_sums(const struct run *run);

/* Copies the heads' outputs to `heads` [sum of Tq, H*D]. */
void run_copy_heads(const struct run *run, float *heads);

/* The third step: projects the heads' outputs to `outputs` [sum of Tq, out_size]; with
 * bfloat16 it overwrites them. Only for models with an output projection. */
void run_project_outputs(const struct run *run, float *outputs);

#endif
