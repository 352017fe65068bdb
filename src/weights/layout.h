/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: how attnd recognises the layout of a file, and what layer that is. */
#pragma once

#include "weights/layout_table.h"

/* Recognises the layout of the tensors under options->prefix, among those that are called
 * options->layout, or all when that is NULL; or makes the layout of the names that the
 * options have for tensors. What options lack, __metadata__ may have. A tensor that the
 * layout does not know is refused, since it might change the results, unless
 * options->layout was given: then it is ignored.
 *
 * *ret_layout and *ret_view borrow from `file`; of the layout that *ret_layout becomes
 * after a failure, the name is NULL where no layout fits, and the rest is unspecified.
 * Errors, each with the tensor, and the option to write where one helps: ATTN_E_VALUE for
 * the name of an unknown layout, or for options that do not go together; ATTN_E_FORMAT
 * when no layout fits, or several, or a tensor is unknown; ATTN_E_UNSUPPORTED for a
 * tensor whose effect attnd does not compute. */
attn_status layout_recognise(const struct safetensors *file,
                             const attn_model_options *options, struct layout *ret_layout,
                             struct tensor_view *ret_view, attn_error *ret_error);

/* Describes the layer, whose sizes its tensors tell: finds them all in `view`, which the
 * layout fits, and checks every shape, before memory is allocated for any of them.
 * Completes *layer, which borrows from the view; of its info, the name, the mask, the
 * context length and, unless 0, num_heads, rotation.base and head_norm.eps are given, and
 * the rest is 0. Keeps the first of all errors, with one line that names the tensor or
 * the option: ATTN_E_SHAPE, _FORMAT, _VALUE, _UNSUPPORTED. */
void layout_fill_layer(const struct layout *layout, const struct tensor_view *view,
                       struct layer *layer, attn_error *error);
