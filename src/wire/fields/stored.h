/* SPDX-License-Identifier: Apache-2.0 */
/* stored.h: what a request leaves out, because a capture that is kept has it. Each
 * function returns false with *ret_problem set. */
#pragma once

#include "wire/fields/given.h"
#include "wire/protocol.h"

/* Finds the layer of that name, of `size` bytes; the only one when `name` is NULL. Fails
 * with Unknown layer. */
bool wire_stored_find(const struct capture_layers *capture, const char *name, size_t size,
                      const struct capture_layer **ret_layer,
                      struct wire_problem *ret_problem);

/* Sets the options of given->stored. Those of the request are read afterwards. */
void wire_stored_set_options(struct wire_given *given, attn_request *batch);

/* Reads queries from `source`, or takes stored ones as query_rows say; keys and values
 * are stored. Reserves what it allocates, and the marks of selections: Out of range,
 * Missing key, Unknown key, Out of memory. */
bool wire_stored_read(const struct wire_input *input, wire_tensor_source *source,
                      const void *context, struct wire_given *given,
                      struct wire_tensors *ret_tensors, struct wire_problem *ret_problem);

/* Sets keys, values and positions of a request whose model and tensors are set. Those
 * positions that are sent are read afterwards. */
bool wire_stored_set_rows(const struct wire_given *given, struct arena *arena,
                          attn_request *batch, struct wire_problem *ret_problem);

/* Sets the stored bias of a request that has none: Missing key, Shape mismatch. */
bool wire_stored_set_bias(const struct wire_given *given, struct wire_request *request,
                          struct wire_problem *ret_problem);
