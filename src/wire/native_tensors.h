/* SPDX-License-Identifier: Apache-2.0 */
/* native_tensors.h: reads queries, keys and values and checks their sizes. */
#ifndef ATTND_WIRE_NATIVE_TENSORS_H
#define ATTND_WIRE_NATIVE_TENSORS_H

#include "base/arena.h"
#include "wire/problem.h"
#include "wire/tensor.h"

#include <attnd/model.h>
#include <jansson.h>

/* Keys that were left out are the queries, values that were left out are the keys: the
 * same memory, not a copy. */
struct wire_tensors {
    struct wire_tensor queries, keys, values;
};

/* Reads the three from the request's object, checked against the model and each other.
 * Returns false with *ret_problem set. */
bool wire_tensors_read(const json_t *root, const attn_model_info *model,
                       struct arena *arena, struct wire_tensors *ret_tensors,
                       struct wire_problem *ret_problem);

#endif
