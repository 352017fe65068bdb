/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h: reads the weights of a layer in the order in which the engine takes them. */
#pragma once

#include "weights/layer/layer.h"

/* Reads the heads of `linear`, whose shapes have been checked, one after the other:
 * ret_weight [num_heads * head_rows, in_size] and, where the linear or its stage has a
 * bias, ret_bias [num_heads * head_rows], else NULL. The stage is multiplied into the
 * heads (math/fold.h). Errors, which name the tensor: ATTN_E_NOMEM, ATTN_E_VALUE for a
 * product that is too large for float32, those of safetensors_read(). */
attn_status gather_linear(const struct layer_linear *linear, float *ret_weight,
                          float *ret_bias, attn_error *ret_error);
