/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h: reads the weights of a layer in the order in which the engine takes them. */
#pragma once

#include "weights/layer/layer.h"

/* Reads the heads of `linear`, whose tensors locate_tensors() has checked, one after the
 * other: ret_weight [num_heads * head_rows, in_size] and, where the linear has a bias,
 * ret_bias [num_heads * head_rows]. Errors: ATTN_E_NOMEM, those of safetensors_read(). */
attn_status gather_linear(const struct layer_linear *linear, float *ret_weight,
                          float *ret_bias, attn_error *ret_error);
