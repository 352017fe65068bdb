/* SPDX-License-Identifier: Apache-2.0 */
/* layout_table.h: which tensor of a checkpoint is which model weight. */
#pragma once

#include "weights/layer/layer.h"

#include <stdbool.h>

/* Linear maps of a layer, y = x W^T + b. */
enum linear_id {
    LINEAR_QUERY = LAYER_QUERY,
    LINEAR_KEY = LAYER_KEY,
    LINEAR_VALUE = LAYER_VALUE,
    LINEAR_HEAD_QUERY, /* one per head; applied after LINEAR_QUERY where both exist */
    LINEAR_HEAD_KEY,
    LINEAR_HEAD_VALUE,
    LINEAR_PACKED, /* rows of query, key and value, in this order */
    LINEAR_OUTPUT,
    NUM_LINEARS
};

/* Names of tensors. In the names of one head's tensors, '#' is the head's number. */
struct linear_names {
    const char *weight; /* [out, in]; required unless NULL */
    const char *bias;   /* [out]; a file need not have it; NULL: no such tensor */
};

struct layout {
    const char *name;
    bool causal; /* by default */
    struct linear_names linears[NUM_LINEARS];
    const char *ignored;    /* a tensor that does not change the results, or NULL */
    const char *refused[2]; /* tensors that would change the results */
};

/* Additive scoring, on top of any layout: all three or none. */
#define LAYOUT_ADDITIVE_QUERY "attention.W_q.weight" /* [A, D] */
#define LAYOUT_ADDITIVE_KEY   "attention.W_k.weight" /* [A, D] */
#define LAYOUT_ADDITIVE_SCORE "attention.w_v.weight" /* [1, A] or [A] */

/* Finds a head's tensor; the number `head` replaces '#' in `pattern`. NULL: none. */
const struct safetensors_tensor *tensor_view_find_head(const struct tensor_view *view,
                                                       const char *pattern, size_t head);

/* --- the table --- */

#define LAYOUT_TABLE_SIZE 6
#define LAYOUT_NAME_SIZE  64 /* bytes of a tensor's name, terminator included */

/* What the layouts are called, for errors. */
#define LAYOUT_NAMES "d2l, torch, llms_from_scratch, llms_from_scratch_wrapper, two_stage"

extern const struct layout layout_table[LAYOUT_TABLE_SIZE];

/* Returns whether the layout has that name; all have it when it is NULL. */
bool layout_is_called(const struct layout *layout, const char *name);

/* Writes the name of a head's tensor: `pattern` with the head's number for '#'. */
void layout_head_name(const char *pattern, size_t head, char ret_name[LAYOUT_NAME_SIZE]);

/* Returns whether `name` is `pattern` with a number for '#', without leading zeros. Sets
 * *ret_head to that number, or to 0 where the pattern has no '#'. */
bool layout_name_matches(const char *name, const char *pattern, size_t *ret_head);

/* Returns the nth name that the layout requires, or NULL past the last one. A name with
 * '#' stands for the name of head 0. */
const char *layout_required_name(const struct layout *layout, size_t nth,
                                 char buffer[LAYOUT_NAME_SIZE]);

/* Returns how many required tensors the view has. *ret_absent is how many it lacks, and
 * ret_missing the name of the first that it lacks, where there is one. */
size_t layout_count_present(const struct layout *layout, const struct tensor_view *view,
                            size_t *ret_absent, char ret_missing[LAYOUT_NAME_SIZE]);

/* Returns whether the layout reads a tensor of that name, or knows one that it ignores,
 * too. */
bool layout_uses(const struct layout *layout, const char *name);
bool layout_knows(const struct layout *layout, const char *name);

/* Returns whether the view has every required tensor. */
bool layout_fits(const struct layout *layout, const struct tensor_view *view);
