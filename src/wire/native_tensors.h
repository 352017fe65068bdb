/* SPDX-License-Identifier: Apache-2.0 */
/* native_tensors.h: reads queries, keys and values and checks their sizes. */
#ifndef ATTND_WIRE_NATIVE_TENSORS_H
#define ATTND_WIRE_NATIVE_TENSORS_H

#include "wire/native.h"
#include "wire/tensor_check.h"

/* Reads the three of a body's members, checked against the model and each other. Returns
 * false with *ret_problem set. */
bool wire_tensors_read(const char *body, const struct wire_span members[WIRE_NUM_MEMBERS],
                       const attn_model_info *model, struct arena *arena,
                       struct wire_tensors *ret_tensors,
                       struct wire_problem *ret_problem);

#endif
