/* SPDX-License-Identifier: Apache-2.0 */
/* lens.h: reads what rows of a safetensors body have an integer for.
 *
 * Each function returns false with the body's problem set: Wrong dtype, Wrong type, Wrong
 * rank, Empty tensor, Out of range, Shape mismatch, Out of memory. */
#ifndef ATTND_WIRE_SAFETENSORS_LENS_H
#define ATTND_WIRE_SAFETENSORS_LENS_H

#include "wire/checks/tensor_check.h"
#include "wire/safetensors/tensors.h"

/* Reads valid_lens, which may be left out, into the batch, whose lengths are set. */
bool wire_safetensors_read_lens(const struct wire_safetensors_body *body,
                                const struct wire_tensor *queries, attn_request *batch);

/* Of a struct wire_safetensors_body, which is the context. */
wire_positions_source wire_safetensors_read_positions;

#endif
