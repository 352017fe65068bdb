/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: reads from a safetensors body what belongs to the rows of a request: valid_lens
 * and positions, the heads and queries that are selected, and what their weights are
 * reduced to. */
#pragma once

#include "wire/checks/tensor_check.h"
#include "wire/safetensors/options.h"
#include "wire/safetensors/tensors.h"

/* Reads all of these of a request whose model, need_weights, tensors and `packed` are
 * set, and checks them against the words of need. What is left out stays as it is.
 * Returns false with the problem of the body set. */
bool wire_safetensors_read_rows(const struct wire_safetensors_body *body,
                                const struct wire_safetensors_options *options,
                                const struct wire_tensors *tensors,
                                const struct wire_need *need,
                                struct wire_request *request);
