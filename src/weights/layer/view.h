/* SPDX-License-Identifier: Apache-2.0 */
/* view.h: the tensors of a file, or of all shards of a folder, found by their names. */
#pragma once

#include "safetensors/file.h"

struct fp8;

/* Tensors whose names begin with a prefix; of all tensors the prefix is empty. */
struct tensor_view {
    const struct safetensors_tensor *tensors; /* [count], in strcmp() order of names */
    size_t count;
    size_t prefix_size; /* bytes to skip at the beginning of their names */
    /* How FP8 is read; NULL, as tensor_view_make() leaves it: not. */
    const struct fp8 *fp8;
};

/* Returns those of all tensors whose names begin with `prefix`, borrowed. */
struct tensor_view tensor_view_make(const struct tensor_view *all, const char *prefix);

/* Returns all tensors of a file, borrowed. */
struct tensor_view tensor_view_of(const struct safetensors *file);

/* Returns how many tensors have a name that sorts before prefix + name. Takes logarithmic
 * time, as the functions below do. */
size_t tensor_view_lower(const struct tensor_view *view, const char *name);

/* Returns the tensor called prefix + name; NULL: none, or no name. */
const struct safetensors_tensor *tensor_view_find(const struct tensor_view *view,
                                                  const char *name);

/* Returns the tensor called prefix + name, but with `number` in place of the last 0 of
 * the name that stands between dots; or NULL. */
const struct safetensors_tensor *tensor_view_find_numbered(const struct tensor_view *view,
                                                           const char *name,
                                                           size_t number);

/* Returns the tensor of head `head`, given that of head 0, or that of all heads when
 * `of_heads` is NULL. `first` may be NULL. */
const struct safetensors_tensor *
tensor_view_find_head(const struct tensor_view *of_heads,
                      const struct safetensors_tensor *first, size_t head);

enum { SHAPE_TEXT_SIZE = 64 };

/* Writes the shape of a tensor, "[2,3]"; a long one is cut. */
void tensor_print_shape(const struct safetensors_tensor *tensor,
                        char ret_text[SHAPE_TEXT_SIZE]);

#define TENSOR_ANY 0 /* any size but 0 */

/* Checks that a tensor, which may be NULL, is [*rows, *columns], or [*rows] when columns
 * is NULL; what is TENSOR_ANY becomes the tensor's size. Keeps the first of all errors:
 * ATTN_E_SHAPE, which names the tensor, and has `reason`: why it must have that shape. */
void tensor_fit(const struct safetensors_tensor *tensor, size_t *rows, size_t *columns,
                const char *reason, attn_error *error);
