/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.h: a request while its fields are read, whatever its format. */
#pragma once

#include "wire/fields/given.h"
#include "wire/fields/source.h"

/* A request that is being read. */
struct wire_decoder {
    const struct wire_source *source;
    struct wire_request request;
    struct wire_need need;
    struct wire_given given; /* without a model */
    struct wire_tensors tensors;
};

/* Reads all fields of source->input into decoder->request, whose words of need may be set
 * already. Finds the model or the layer of a capture first, then reserves what reading
 * needs and `extra` bytes. Every size has been checked, so that attn_plan() can only fail
 * on overflow. Returns false with the problem of the source set. */
bool wire_decode(struct wire_decoder *decoder, size_t extra);
