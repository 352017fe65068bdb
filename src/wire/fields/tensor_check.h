/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_check.h: reads queries, keys and values in one order for all protocols, and
 * checks them against the model and each other. */
#pragma once

#include "base/arena.h"
#include "wire/problem.h"
#include "wire/request.h"
#include "wire/tensor.h"

#include <attnd/model.h>

/* Keys that were left out are the queries, and values that were left out are the keys: in
 * the same memory, not a copy. */
struct wire_tensors {
    struct wire_tensor queries, keys, values;
    bool keys_sent, values_sent;
};

enum wire_tensor_id { WIRE_TENSOR_QUERIES, WIRE_TENSOR_KEYS, WIRE_TENSOR_VALUES };

/* Reads one tensor of a request, which must have from `min_levels` to `max_levels` axes
 * (WIRE_LEVELS_...). *ret_sent is false, and nothing is read, when the request does not
 * have it. Returns false with the problem of the context set. */
typedef bool wire_tensor_source(const void *context, enum wire_tensor_id id,
                                size_t min_levels, size_t max_levels, bool *ret_sent,
                                struct wire_tensor *ret_tensor);

/* Reads queries, keys and values from `source`, and checks each against the model and
 * those before it. Keys and values must have a batch axis exactly when queries have one.
 * A tensor that is left out is replaced by the one before it. Returns false with
 * *ret_problem set, by the source or here: Shape mismatch, Too many tokens, Missing
 * key. */
bool wire_tensors_read(wire_tensor_source *source, const void *context,
                       const attn_model_info *model, struct wire_tensors *ret_tensors,
                       struct wire_problem *ret_problem);

/* Returns the length that all sequences have, or WIRE_SHAPE_ANY when they differ. */
size_t wire_tensor_len(const struct wire_tensor *tensor);

/* Checks that keys and values have as many sequences as queries, and values as many rows
 * as keys: Shape mismatch. */
bool wire_tensors_check_lens(const struct wire_tensors *tensors,
                             struct wire_problem *ret_problem);

/* Sets the three tensors of the request. */
void wire_request_set_tensors(const struct wire_tensors *tensors,
                              struct wire_request *request);

/* Checks that all numbers that can reach the results of a request are finite. The mask
 * hides rows of keys and values that no query of their sequence attends to, and queries
 * without a valid key, which attend to all values alike; their numbers may be anything.
 * Where key positions do not ascend, only valid_lens hide rows.
 * Returns false with *ret_problem set: Out of range. */
bool wire_finite_check(const struct wire_tensors *tensors,
                       const struct wire_request *request,
                       struct wire_problem *ret_problem);
