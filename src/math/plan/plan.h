/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: how attn_run() divides its work, and what its scratch memory must hold. make.c
 * fills in the parts of a plan in order: each part reads those above it. */
#pragma once

#include "math/kernels/kernels.h"
#include "math/plan/results.h"

#include <attnd/heads.h>

#define PLAN_ROWS_MIN        8    /* fewer rows cost as much: weights are read anyway */
#define PLAN_HEAD_ROWS       128  /* rows of a strip whose contributions are multiplied */
#define PLAN_DIRECT_KEYS_MIN 1024 /* fewest of a direct sequence, see rules.h */
#define PLAN_DIRECT_SHARE    4  /* Tq is at most D / 4, D of keys and values on average */
#define REDUCE_TOP_FLOATS    2  /* of a key and its weight */
#define REDUCE_SPANS_FEW     32 /* more are differences of sums up to each key */
#define PLAN_DIRECT_ROWS     16 /* queries of a head whose projections are one item */
#define PLAN_ARRAYS_MAX      44 /* in scratch memory */

/* The most ranges that H heads can form when a gap follows each range. */
#define PLAN_RANGES_MAX(num_heads) (((num_heads) + 1) / 2)
#define PLAN_RANGES                6 /* lists of them in struct run */

/* Returns how many words apart rows of `width` numbers are once they are converted, to
 * bfloat16 or to pieces of it. Rows that are a multiple of a page apart would share a few
 * sets of each cache. */
static inline size_t plan_converted_ld(const struct kernels *kernels, size_t width) {
    size_t steps = (width + kernels->step_numbers - 1) / kernels->step_numbers;
    return steps * kernels->step_words + ATTN_ALIGNMENT / sizeof(float);
}

/* A plan is for attn_run(), for attn_run() without direct sequences, or for
 * attn_heads_add(). */
enum plan_kind { PLAN_RUN, PLAN_PROJECTED, PLAN_HEADS };

/* How a sequence attends: each head by itself; the heads that share a key head together;
 * or directly, without projected keys and values. See plan_find_kind(). */
enum sequence_kind {
    SEQUENCE_HEADWISE,
    SEQUENCE_GROUPED,
    SEQUENCE_DIRECT,
    SEQUENCE_KINDS
};

/* Where a sequence is. */
struct sequence_position {
    size_t sequence;
    enum sequence_kind kind;
    size_t first_query, first_key; /* of the sequence, in the batch */
    size_t first_projected;        /* its first key among those that are projected */
    size_t first_value;  /* the first row of its projected values. In bfloat16 a row has
                           pairs of keys, which no two sequences share */
    size_t first_direct; /* its first row among those of direct sequences */
    size_t first_weight; /* of the sequence, in the result's weights */
    size_t first_score;  /* of the sequence, in the result's scores */
    size_t first_row;    /* among the queries that are selected */
    size_t first_block;  /* in the result's block_weights */
};

/* How far apart projected keys or values are, in floats. */
struct plan_rows {
    size_t head_ld; /* from a head to the next */
    size_t ld;      /* from a row to the next; rows of values may be pairs */
};

/* Follows from the model, and from the results that are wanted. */
struct plan_layer {
    size_t group;                  /* heads that share a key head, H / KV */
    size_t shared[SEQUENCE_KINDS]; /* heads that attend together */
    size_t score_width;            /* columns of projected queries, H * score_size */
    size_t key_width;              /* of projected keys, KV * score_size */
    size_t value_width;            /* of projected values, KV*D */
    size_t hidden;                 /* H*D */
    size_t num_scored;             /* heads whose scores are computed */
    size_t num_summed;             /* heads whose outputs are wanted */
    bool sums;                     /* whether weighted sums of values are needed */
    /* Sequences may be SEQUENCE_DIRECT, with so many queries at most: scores are made of
     * projections alone, without shared key heads, norms, rotations, positions, windows
     * and the like. A layer may have a scale of its own and a causal mask. */
    bool takes_direct;
    size_t direct_queries_max;
    bool takes_groups; /* sequences may be SEQUENCE_GROUPED */
    /* Keys and values of a head follow each other: [KV][projected_keys, score_size] and
     * [KV][value_rows, D]. Otherwise they are [projected_keys, key_width] and
     * [value_rows, value_width]. Attention then reads them more slowly. */
    bool by_head;
    /* Keys by head, and those that are given, are transposed in panels, see struct
     * query_panel, except with additive scoring and in sets of narrow tiles. Kept keys
     * always are. */
    bool key_panels;
    /* Keys that are given are copied by head: into panels, or to become float32; with
     * panels values are, too, whose rows may lie in a page each otherwise. Of kept ones
     * only those are that must become float32. Heads attend
     * in phases of so many key heads, whose copies share their memory. */
    bool packs, packs_values;
    size_t phase_heads;
    bool keys_in_bf16; /* kept keys are read as they are, see struct query_panel */
    /* Projected queries and keys are changed before the attention: normed or rotated.
     * Keys are then projected as rows, and go into panels afterwards. */
    bool finishes;
    /* Projected values are changed before the attention. They are projected as float
     * rows, and become pairs afterwards where the kernels read pairs. */
    bool finishes_values;
    bool norms_keys;     /* the norm before the layer is applied to keys and values too */
    bool gates;          /* heads' outputs are wanted, and gated */
    bool norms_sums;     /* heads' outputs are wanted, and normed */
    bool sums_in_result; /* heads' outputs are a result, and written there */
};

/* The sums over all sequences, and the largest of them. */
struct plan_batch {
    size_t num_queries, num_keys;
    size_t longest_query_len, longest_key_len;
    size_t results[NUM_RESULTS]; /* numbers in each */
    size_t num_panels;           /* panels of queries in all sequences, for one head */
    size_t projected_keys;       /* sum of Tk over the sequences that are not direct */
    size_t value_rows;           /* of their projected values, see first_value */
    size_t num_direct;           /* sequences */
    size_t direct_queries;       /* sum of Tq over the direct sequences */
    size_t direct_rows;          /* direct queries times scored heads */
    bool grouped;                /* whether any sequence is SEQUENCE_GROUPED */
    bool any_scores;   /* whether scores matter: a single key has weight 1 anyway */
    size_t panel_rows; /* queries of a panel, at most */
    /* The widest rows that panels make scores from, and that they sum. */
    size_t score_size, result_size;
    double pairs;        /* of a query and a key, in the sequences that are not direct */
    double direct_pairs; /* in the direct sequences */
    double masked_pairs; /* those of `pairs` that are masked one by one */
    double pair_flops;   /* of all `pairs`, besides their products, in one head */
    double panel_flops;  /* of the largest panel */
    double items_flops;  /* of all panels */
};

/* Sizes of arrays in scratch memory follow from these, see run/scratch.c. */
struct plan_scratch {
    /* Tables of rotations: one, or two when long sequences have other frequencies. None
     * when there are few rows. */
    size_t num_rotations;
    size_t direct_ld;      /* of the rows of direct sequences */
    size_t max_chunks;     /* of the keys of the longest sequence */
    size_t gather_keys;    /* longest sequence whose keys and values are gathered */
    bool splits;           /* chunks are tasks, because panels are few or large */
    size_t num_partials;   /* items of the attention, when it splits */
    size_t partial_floats; /* maximum, sum and outputs of panel_rows queries */
    size_t shared_panels;  /* whose weights are reduced when their chunks are merged */
    size_t num_strips;     /* of PLAN_HEAD_ROWS queries */
    size_t head_ld;        /* from a row of one head's inputs to the next, whole words */
};

/* Where the arrays of a run are in scratch memory. run/scratch.c lists them. */
struct plan_arrays {
    size_t count;
    struct {
        size_t member; /* of struct run, which points to it: an offset */
        size_t first;  /* of the memory, in floats */
    } items[PLAN_ARRAYS_MAX];
    size_t thread_floats; /* from an array of one thread to that of the next */
};

/* Floating-point operations of each step. */
struct plan_flops {
    double all, finish, fold, attend, merge, sum, finish_sums, heads, even;
};

struct plan {
    const attn_model *model;
    const attn_request *request;
    enum plan_kind kind;
    struct wanted_results wanted;
    size_t num_threads;
    struct plan_layer layer;
    struct plan_batch batch;
    struct plan_rows keys, values;
    struct plan_scratch scratch;
    struct plan_flops flops;
    struct plan_arrays arrays;
};

/* Returns how many rows are converted, and then projected, at a time: strips
 * that stay in the caches of all threads. */
static inline size_t plan_converted_rows(const struct plan *plan, size_t strip_rows) {
    return plan->num_threads > 1 ? 4 * plan->num_threads * strip_rows : strip_rows;
}

/* Returns how many floats apart rows of `key_len` weights are in a thread's scratch: an
 * odd number of cache lines, so that neighbours do not share the sets of a cache. */
static inline size_t plan_weights_ld(size_t key_len) {
    return ((key_len - 1) / 32 * 2 + 3) * (ATTN_ALIGNMENT / sizeof(float));
}

/* Returns whether any of the results are of a kind. */
static inline bool plan_wants(const struct plan *plan, enum result_kind kind) {
    return (plan->wanted.kinds & kind) != 0;
}

/* Makes a plan, but for its arrays. Errors: those of attn_plan(), and *ret_plan is
 * unspecified then. */
attn_status plan_make(const attn_model *model, const attn_request *request,
                      enum plan_kind kind, struct plan *ret_plan, attn_error *ret_error);
