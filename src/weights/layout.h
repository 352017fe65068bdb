/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: how attnd recognises the layout of a file. */
#pragma once

#include "weights/layout_table.h"

/* Recognises the layout of the tensors under `prefix`, among the layouts called `name`,
 * or all layouts when `name` is NULL. Without a name, a tensor that the layout does not
 * know is refused, since it might change the results; with a name, it is ignored.
 *
 * On success *ret_layout is constant and *ret_view borrows from `file`; after a failure
 * both are unspecified. Errors, each with the tensor, and the option to write where one
 * helps: ATTN_E_VALUE for an unknown name; ATTN_E_FORMAT when no layout fits, or several,
 * or a tensor is unknown; ATTN_E_UNSUPPORTED for a tensor whose effect attnd does not
 * compute. */
attn_status layout_recognise(const struct safetensors *file, const char *prefix,
                             const char *name, const struct layout **ret_layout,
                             struct tensor_view *ret_view, attn_error *ret_error);
