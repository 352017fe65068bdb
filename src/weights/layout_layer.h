/* SPDX-License-Identifier: Apache-2.0 */
/* layout_layer.h: describes the layer of a single file, whose sizes its tensors tell. */
#pragma once

#include "weights/layer/layer.h"
#include "weights/layout_table.h"

/* Finds all tensors of the layer in `view`, which the layout fits, and checks every
 * shape, before memory is allocated for any of them. Completes *layer, which borrows from
 * the view; of its info, the name, the mask, the context length and, unless 0, num_heads,
 * rotation.base and head_norm.eps are given, and the rest is 0. Keeps the first of all
 * errors, with one line that names the tensor or the option: ATTN_E_SHAPE, _FORMAT,
 * _VALUE, _UNSUPPORTED, _OVERFLOW. */
void layout_fill_layer(const struct layout *layout, const struct tensor_view *view,
                       struct layer *layer, attn_error *error);
