/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_check.h: queries, keys and values, held against the model and each other,
 * whatever they were read from. */
#ifndef ATTND_WIRE_TENSOR_CHECK_H
#define ATTND_WIRE_TENSOR_CHECK_H

#include "wire/problem.h"
#include "wire/request.h"
#include "wire/tensor.h"

#include <attnd/model.h>

/* Keys that were left out are the queries, values that were left out are the keys: the
 * same memory, not a copy. */
struct wire_tensors {
    struct wire_tensor queries, keys, values;
    bool keys_given, values_given;
};

/* Each checks one tensor, those before it having passed, and lets the one before stand in
 * where it was not given. Returns false with *ret_problem set: Shape mismatch, Too many
 * tokens, Missing key. Keys and values have a batch axis if queries have. */
bool wire_queries_check(const struct wire_tensors *tensors, const attn_model_info *model,
                        struct wire_problem *ret_problem);
bool wire_keys_check(struct wire_tensors *tensors, const attn_model_info *model,
                     struct wire_problem *ret_problem);
bool wire_values_check(struct wire_tensors *tensors, const attn_model_info *model,
                       struct wire_problem *ret_problem);

/* Makes the three the call's. */
void wire_request_set_tensors(const struct wire_tensors *tensors,
                              struct wire_request *request);

/* Checks that head_mask has one number for each head. Returns false with *ret_problem
 * set. */
bool wire_head_mask_check(size_t count, const attn_model_info *model,
                          struct wire_problem *ret_problem);

#endif
