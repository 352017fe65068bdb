/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: which tensor of a checkpoint is which weight, and how that is recognised. */
#ifndef ATTND_WEIGHTS_LAYOUT_H
#define ATTND_WEIGHTS_LAYOUT_H

#include "safetensors/file.h"

#include <stdbool.h>

/* The tensors of a file whose names begin with a prefix, in the order of their names. */
struct tensor_view {
    const struct safetensors_tensor *tensors; /* [count] */
    size_t count;
    size_t prefix_size; /* bytes of their names to skip */
};

/* Linear maps of a layer, y = x W^T + b. */
enum linear_id {
    LINEAR_QUERY, /* the first three are in this order everywhere */
    LINEAR_KEY,
    LINEAR_VALUE,
    LINEAR_HEAD_QUERY, /* one per head; on top of LINEAR_QUERY when both are there */
    LINEAR_HEAD_KEY,
    LINEAR_HEAD_VALUE,
    LINEAR_PACKED, /* rows of query, key and value, in this order */
    LINEAR_OUTPUT,
    NUM_LINEARS
};

/* Names of tensors; in those of heads '#' stands for the head's number. */
struct linear_names {
    const char *weight; /* [out, in]; required unless NULL */
    const char *bias;   /* [out]; may be absent from a file; NULL: there is none */
};

struct layout {
    const char *name;
    bool causal; /* by default */
    struct linear_names linears[NUM_LINEARS];
    const char *ignored;    /* a tensor that does not matter to the results, or NULL */
    const char *refused[2]; /* tensors that would change the results */
};

/* Additive scoring, on top of any layout: all three or none. */
#define LAYOUT_ADDITIVE_QUERY "attention.W_q.weight" /* [A, D] */
#define LAYOUT_ADDITIVE_KEY   "attention.W_k.weight" /* [A, D] */
#define LAYOUT_ADDITIVE_SCORE "attention.w_v.weight" /* [1, A] or [A] */

/* Makes the view of the tensors under `prefix`. */
struct tensor_view tensor_view_make(const struct safetensors *file, const char *prefix);

/* Returns the tensor called prefix + name, or NULL. Takes logarithmic time. */
const struct safetensors_tensor *tensor_view_find(const struct tensor_view *view,
                                                  const char *name);

/* The same for a head's tensor: '#' in `pattern` stands for the number `head`. */
const struct safetensors_tensor *tensor_view_find_head(const struct tensor_view *view,
                                                       const char *pattern, size_t head);

/* Recognises the layout of the tensors under `prefix`, among those called `name`, or all
 * when that is NULL. When it is NULL, a tensor that the layout does not know is refused,
 * since it might change the results; otherwise such tensors are ignored.
 *
 * Returns ATTN_OK with *ret_layout constant and *ret_view borrowing from `file`;
 * ATTN_E_VALUE for an unknown name; ATTN_E_FORMAT when no layout fits, or several, or a
 * tensor is unknown; ATTN_E_UNSUPPORTED for a tensor that attnd cannot honour. The error
 * says which tensor and which option settle it. */
attn_status layout_recognise(const struct safetensors *file, const char *prefix,
                             const char *name, const struct layout **ret_layout,
                             struct tensor_view *ret_view, attn_error *ret_error);

/* Counts the heads of a layout that has one set of tensors per head: they must be
 * numbered 0..H-1 and each must have every weight. ATTN_E_FORMAT names the tensor that
 * is missing. */
attn_status layout_count_heads(const struct layout *layout,
                               const struct tensor_view *view, size_t *ret_num_heads,
                               attn_error *ret_error);

#endif
