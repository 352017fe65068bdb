/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: where the numbers of each head lie in the files of a layer, as JSON, so that
 * a program can cut heads out of them. */
#pragma once

#include "base/buf.h"
#include "weights/layer/layer.h"

/* Adds a list with an object for each tensor that has a part for each head: "array",
 * "name", "file", "shape", "dtype", "transposed", "heads", "rows", "first",
 * "group_heads", "group_rows", with the meaning of struct layer_linear, and "head" where
 * a tensor is of one head alone. Rows of the output projection are its inputs. Tables of
 * biases and norms over all heads have no such parts, and no object. */
void entry_print_tensors(const struct layer *layer, struct buf *text);
