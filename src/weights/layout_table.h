/* SPDX-License-Identifier: Apache-2.0 */
/* layout_table.h: which tensor of a checkpoint is which model weight. */
#pragma once

#include "weights/layer/layer.h"

#include <stdbool.h>

/* Linear maps of a layer, y = x W^T + b. */
enum linear_id {
    LINEAR_QUERY = ATTN_QUERY,
    LINEAR_KEY = ATTN_KEY,
    LINEAR_VALUE = ATTN_VALUE,
    LINEAR_HEAD_QUERY, /* one per head; applied after LINEAR_QUERY where both exist */
    LINEAR_HEAD_KEY,
    LINEAR_HEAD_VALUE,
    LINEAR_PACKED, /* rows of query, key and value, in this order */
    LINEAR_OUTPUT,
    NUM_LINEARS
};

/* Names of tensors. One that begins with "heads.0." stands for those of all heads. */
struct linear_names {
    const char *weight; /* [out, in]; required unless NULL */
    const char *bias;   /* [out]; a file need not have it; NULL: no such tensor */
};

#define LAYOUT_HEADS "heads."

struct layout {
    const char *name;
    bool causal;     /* by default */
    bool wide;       /* LINEAR_PACKED has three equal parts, and need not be square */
    bool turned;     /* all weights are [in, out] where LINEAR_PACKED is [E, 3E] */
    bool own;        /* its names are options, and borrowed from the file */
    bool transposed; /* all weights are [in, out] */
    struct linear_names linears[NUM_LINEARS];
    const char *norms[2];   /* weights of the RMS norms of queries and keys, or NULL */
    const char *ignored;    /* a tensor that does not change the results, or NULL */
    const char *refused[2]; /* tensors that would change the results */
};

#define LAYOUT_TABLE_SIZE 8

/* The names of the layouts, for errors. */
#define LAYOUT_NAMES                                                                     \
    "d2l, torch, llms_from_scratch, llms_from_scratch_wrapper, two_stage, timm, nanogpt"

extern const struct layout layout_table[LAYOUT_TABLE_SIZE];

/* Additive scoring, on top of any layout: all three or none. */
#define LAYOUT_ADDITIVE_QUERY "attention.W_q.weight" /* [A, D] */
#define LAYOUT_ADDITIVE_KEY   "attention.W_k.weight" /* [A, D] */
#define LAYOUT_ADDITIVE_SCORE "attention.w_v.weight" /* [1, A] or [A] */

extern const char *const layout_additive[3];

/* Returns whether the layout has that name; all have it when it is NULL. */
bool layout_is_called(const struct layout *layout, const char *name);

/* Returns whether `name` is `pattern`, or that with the number of another head, without
 * leading zeros. Sets *ret_head to that number, or to 0 without heads. A pattern of NULL
 * matches nothing. */
bool layout_name_matches(const char *name, const char *pattern, size_t *ret_head);

/* How many of the tensors that a layout requires are there. */
struct layout_scan {
    size_t present, absent;
    const char *missing; /* the first that is absent, or NULL */
};

/* Looks up all tensors that the layout requires, in a view. */
struct layout_scan layout_scan_view(const struct layout *layout,
                                    const struct tensor_view *view);

/* Returns whether the view has every required tensor. */
bool layout_fits(const struct layout *layout, const struct tensor_view *view);

/* Returns the first name that the layout requires. */
const char *layout_first_name(const struct layout *layout);

/* Returns whether the layout reads a tensor of that name, or knows one that it ignores,
 * too. */
bool layout_uses(const struct layout *layout, const char *name);
bool layout_knows(const struct layout *layout, const char *name);
