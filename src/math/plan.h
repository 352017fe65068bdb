/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: how attn_run() divides its scratch memory and its work. */
#ifndef ATTND_MATH_PLAN_H
#define ATTND_MATH_PLAN_H

#include <attnd/heads.h>

#define PLAN_ROWS_MIN  8   /* fewer take as long: the weights must be read anyway */
#define PLAN_HEAD_ROWS 128 /* rows of a strip whose contributions are multiplied */

/* What a plan is for: attn_run(), or attn_heads_add(). */
enum plan_kind { PLAN_RUN, PLAN_HEADS };

/* Ranges of H heads that are not next to each other. */
#define PLAN_RANGES_MAX(num_heads) (((num_heads) + 1) / 2)

/* Offsets into scratch, and strides, are in floats. */
struct plan {
    enum plan_kind kind;
    attn_sizes sizes;
    size_t score_width; /* columns of projected queries and keys, H * score_size */
    size_t hidden;      /* H*D */
    size_t queries;     /* [sum of Tq, score_width] */
    /* Keys and values of a head follow each other: [H][sum of Tk, score_size] and
     * [H][sum of Tk, D]. Otherwise they are [sum of Tk, score_width] and
     * [sum of Tk, H*D]. Attention then reads them more slowly. */
    bool by_head;
    size_t keys, values;
    size_t converted; /* the largest input in bfloat16; nothing with float32 */
    /* [sum of Tq, H*D], the heads' outputs. May be `queries` itself; unused without an
     * output projection. */
    size_t context;
    size_t ranges;         /* struct range [3][ceil(H / 2)]: heads, see run.h */
    size_t first_parts;    /* [B + 1] size_t, see run.h */
    size_t thread_scratch; /* [num_threads][thread_floats]: scratch of one thread each */
    size_t thread_floats;
    /* In a thread's scratch, after that of the kernels: one head's weights of a panel for
     * the mean, or gathered keys and values. */
    size_t thread_extra;
    size_t thread_pieces; /* likewise, see attend/panel.c; nothing without pieces */
    size_t piece_rows;    /* queries of a panel, at most */
    size_t max_pieces;    /* of the keys of the longest sequence */
    bool splits;     /* pieces are tasks, since there are few panels for the threads */
    size_t partials; /* [pieces of all panels of all heads][partial_floats] */
    size_t partial_floats; /* maximum, sum and outputs of piece_rows queries */
    double merge_flops;
    size_t gather_keys; /* longest sequence whose keys and values fit there */
    size_t num_threads;
    size_t num_panels; /* panels of queries in all sequences, for one head */
    double pairs;      /* of a query and a key, in all sequences */
    size_t longest_query_len, longest_key_len;
    size_t head_slots, query_slots; /* see struct run; nothing without weights */
    double attend_flops;

    /* Of PLAN_HEADS alone; see struct run and heads/contribute.c. */
    size_t panel_sums, strip_products;
    size_t num_strips; /* of PLAN_HEAD_ROWS queries */
    size_t head_ld;    /* floats of a row of one head, whole words */
    size_t head_parts; /* in a thread's scratch */
    double heads_flops;
};

/* As attn_plan() or attn_heads_plan(), but also works out the offsets. */
attn_status plan_make(const attn_model *model, const attn_request *request,
                      enum plan_kind kind, struct plan *ret_plan, attn_error *ret_error);

/* Returns how many matrices of weights a sequence has in the result. */
size_t plan_weights_heads(const attn_model_info *info, const attn_request *request);

/* Returns how many rows each of these matrices has. */
size_t plan_weights_rows(const attn_request *request, size_t sequence);

#endif
