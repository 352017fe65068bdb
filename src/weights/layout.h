/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: which tensor of a checkpoint is which model weight, and how attnd recognises
 * it. */
#ifndef ATTND_WEIGHTS_LAYOUT_H
#define ATTND_WEIGHTS_LAYOUT_H

#include "safetensors/file.h"

#include <stdbool.h>

/* The tensors of a file whose names begin with a prefix, in the order of their names. */
struct tensor_view {
    const struct safetensors_tensor *tensors; /* [count] */
    size_t count;
    size_t prefix_size; /* bytes to skip at the beginning of their names */
};

/* Linear maps of a layer, y = x W^T + b. */
enum linear_id {
    LINEAR_QUERY, /* the first three are in this order everywhere */
    LINEAR_KEY,
    LINEAR_VALUE,
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

/* Returns the tensor called prefix + name, or NULL. Takes logarithmic time. */
const struct safetensors_tensor *tensor_view_find(const struct tensor_view *view,
                                                  const char *name);

/* The same for a head's tensor; the number `head` replaces '#' in `pattern`. */
const struct safetensors_tensor *tensor_view_find_head(const struct tensor_view *view,
                                                       const char *pattern, size_t head);

/* Recognises the layout of the tensors under `prefix`, among the layouts called `name`,
 * or all layouts when `name` is NULL. Without a name, a tensor that the layout does not
 * know is refused, since it might change the results; with a name, it is ignored.
 *
 * On success *ret_layout is constant and *ret_view borrows from `file`. Errors, each with
 * the tensor, and the option to write where one helps: ATTN_E_VALUE for an unknown name;
 * ATTN_E_FORMAT when no layout fits, or several, or a tensor is unknown;
 * ATTN_E_UNSUPPORTED for a tensor whose effect attnd does not compute. */
attn_status layout_recognise(const struct safetensors *file, const char *prefix,
                             const char *name, const struct layout **ret_layout,
                             struct tensor_view *ret_view, attn_error *ret_error);

/* Returns the first layout of that name, which must be known; constant. */
const struct layout *layout_get(const char *name);

/* Counts the heads of a layout that has one set of tensors per head. They must be
 * numbered 0..H-1, and each must have every weight. Errors: ATTN_E_FORMAT, which names
 * the tensor that is missing. */
attn_status layout_count_heads(const struct layout *layout,
                               const struct tensor_view *view, size_t *ret_num_heads,
                               attn_error *ret_error);

#endif
