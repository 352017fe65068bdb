/* SPDX-License-Identifier: Apache-2.0 */
/* assemble.h: makes a model from the tensors of a recognised layout. */
#ifndef ATTND_WEIGHTS_ASSEMBLE_H
#define ATTND_WEIGHTS_ASSEMBLE_H

#include "weights/layout.h"

#include <attnd/model.h>

/* Checks every shape, then creates the model and reads its weights.
 *
 * `info` gives name, causal, context_length and, unless 0, num_heads; the rest comes from
 * the tensors. A second projection inside each head is multiplied into the first one
 * (math/fold.h). The caller owns *ret_model. Errors, each naming the tensor or the
 * option: ATTN_E_SHAPE, _FORMAT, _VALUE, those of safetensors_read() and of
 * attn_model_create(). */
attn_status assemble_model(const struct safetensors *file, const struct layout *layout,
                           const struct tensor_view *view, const attn_model_info *info,
                           attn_model **ret_model, attn_error *ret_error);

#endif
