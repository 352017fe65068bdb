/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: how attn_run() divides its scratch memory and its work. make.h makes one. */
#ifndef ATTND_MATH_PLAN_PLAN_H
#define ATTND_MATH_PLAN_PLAN_H

#include <attnd/heads.h>

#define PLAN_ROWS_MIN       8   /* fewer take as long: the weights must be read anyway */
#define PLAN_PANELS_COLUMNS 16  /* narrower tiles gain nothing from keys in panels */
#define PLAN_HEAD_ROWS      128 /* rows of a strip whose contributions are multiplied */

/* What a plan is for: attn_run(), the same without direct sequences, or
 * attn_heads_add(). */
enum plan_kind { PLAN_RUN, PLAN_PROJECTED, PLAN_HEADS };

#define PLAN_DIRECT_KEYS_MIN 1024 /* see plan_is_direct() */
#define PLAN_DIRECT_SHARE    4    /* likewise: Tq is at most D / 4 */
#define PLAN_DIRECT_ROWS     16   /* queries of a head whose projections are one item */

/* Ranges of H heads that are not next to each other. */
#define PLAN_RANGES_MAX(num_heads) (((num_heads) + 1) / 2)
#define PLAN_RANGES                6 /* lists of them in struct run */

/* Where a sequence is. */
struct sequence_position {
    size_t sequence;
    bool direct;                   /* see plan_is_direct() */
    bool grouped;                  /* see plan_is_grouped() */
    size_t first_query, first_key; /* of the sequence, in the batch */
    size_t first_projected;        /* likewise, among the keys that are projected */
    size_t first_direct;           /* likewise, among the rows of direct sequences */
    size_t first_weight;           /* of the sequence, in the result's weights */
};

/* Offsets into scratch, and strides, are in floats. */
struct plan {
    enum plan_kind kind;
    attn_sizes sizes;
    size_t group;       /* heads that share a key head, H / KV */
    size_t score_width; /* columns of projected queries, H * score_size */
    size_t key_width;   /* of projected keys, KV * score_size */
    size_t value_width; /* of projected values, KV*D */
    size_t hidden;      /* H*D */
    size_t queries;     /* [sum of Tq, score_width] */
    bool sums;          /* values are: outputs are wanted, or those of heads */
    /* Keys and values of a head follow each other: [KV][projected_keys, score_size] and
     * [KV][projected_keys, D]. Otherwise they are [projected_keys, key_width] and
     * [projected_keys, value_width]. Attention then reads them more slowly. */
    bool by_head;
    size_t key_ld; /* floats from a key to the next, of its head or of all */
    /* Keys by head are transposed in panels, see struct query_panel, except with additive
     * scoring and in sets of fewer than PLAN_PANELS_COLUMNS columns. */
    bool key_panels;
    /* Projected rows are changed before the attention: clipped, normed or rotated. Keys
     * are then projected as rows, and go into panels afterwards. */
    bool finishes;
    double finish_flops;
    size_t finish_tile; /* in a thread's scratch, see attend/finish.c */
    /* Tables of rotations, [num_rotations][ROTATE_STEP, rope_size] doubles: that of the
     * model's frequencies, and of the long ones. None for few rows. */
    size_t rotations, num_rotations;
    size_t keys, values;
    size_t projected_keys; /* sum of Tk over the sequences that are not direct */
    size_t num_direct;     /* sequences, see plan_is_direct() */
    size_t direct;         /* [direct_rows, direct_ld], see struct run */
    size_t direct_rows, direct_ld;
    size_t direct_queries;         /* sum of Tq over the direct sequences */
    double fold_flops, sums_flops; /* of run_fold_queries() and run_project_sums() */
    size_t converted; /* the largest input in bfloat16; nothing with float32 */
    size_t normed;    /* likewise, when the norm before the layer is applied */
    bool norms_keys;  /* that norm is applied to keys and values too */
    /* [sum of Tq, H*D], the heads' outputs. May be `queries` itself; unused without an
     * output projection. */
    size_t context;
    size_t ranges;         /* struct range [PLAN_RANGES][ceil(H / 2)], see run.h */
    size_t first_items;    /* [B + 1] size_t, see run.h */
    size_t sequences;      /* [B] struct sequence_position */
    size_t thread_scratch; /* [num_threads][thread_floats]: scratch of one thread each */
    size_t thread_floats;
    /* In a thread's scratch, after that of the kernels: one head's weights of a panel for
     * the mean, or gathered keys and values. */
    size_t thread_extra;
    size_t thread_chunks;  /* likewise, see attend/chunks.c; nothing without chunks */
    size_t thread_queries; /* likewise, [chunk_rows, D] of a group of heads; or nothing */
    size_t thread_bias;    /* likewise, see attend/bias.c; nothing without biases */
    size_t chunk_rows;     /* queries of a panel, at most */
    size_t max_chunks;     /* of the keys of the longest sequence */
    /* The widest rows that panels make scores from, and that they sum. */
    size_t score_size, result_size;
    double panel_flops; /* of the largest panel */
    double items_flops; /* of all panels */
    bool grouped;       /* any sequence is, see plan_is_grouped() */
    bool splits;        /* chunks are tasks, since there are few panels, or large ones */
    size_t partials;    /* [items of the attention][partial_floats] */
    size_t partial_floats; /* maximum, sum and outputs of chunk_rows queries */
    double merge_flops;
    size_t gather_keys; /* longest sequence whose keys and values fit there */
    size_t num_threads;
    size_t num_panels;   /* panels of queries in all sequences, for one head */
    double pairs;        /* of a query and a key, in the sequences that are not direct */
    double direct_pairs; /* in those that are */
    double masked_pairs; /* those of `pairs` that are masked one by one */
    double pair_flops;   /* of all `pairs`, besides their products, in one head */
    size_t num_scored;   /* heads whose scores are computed */
    size_t longest_query_len, longest_key_len;
    bool any_scores; /* matter: a single key gets all the weight, whatever its score */
    size_t head_indices, query_indices; /* see struct run; nothing without weights */
    double attend_flops;

    /* Of PLAN_HEADS alone; see struct run and heads/contribute.c. */
    size_t panel_sums, strip_products;
    size_t num_strips; /* of PLAN_HEAD_ROWS queries */
    size_t head_ld;    /* floats of a row of one head, whole words */
    size_t head_parts; /* in a thread's scratch */
    double heads_flops;
    size_t even_sums; /* [num_panels] attn_head_sums, see heads/even.c */
    double even_flops;
};

#endif
