/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: reads from a safetensors body what attention weights are reduced to. */
#ifndef ATTND_WIRE_SAFETENSORS_REDUCE_H
#define ATTND_WIRE_SAFETENSORS_REDUCE_H

#include "wire/checks/reduce.h"
#include "wire/safetensors/options.h"
#include "wire/safetensors/tensors.h"

/* Reads spans, top_k, top_in, targets and block of a request whose tensors and `packed`
 * are set, and checks them against the words of need. Returns false with the problem of
 * the body set. */
bool wire_safetensors_reduce_read(const struct wire_safetensors_body *body,
                                  const struct wire_safetensors_options *texts,
                                  const struct wire_need *need,
                                  struct wire_request *request);

#endif
