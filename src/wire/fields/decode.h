/* SPDX-License-Identifier: Apache-2.0 */
/* decode.h: reads the fields of a request, whatever its format. */
#pragma once

#include "wire/fields/decoder.h"

/* Reads all fields of source->input into decoder->request, whose words of need may be set
 * already. Finds the model or the layer of a capture first, then reserves what reading
 * needs and `extra` bytes. Every size has been checked, so that attn_plan() can only fail
 * on overflow. Returns false with the problem of the source set. */
bool wire_decode(struct wire_decoder *decoder, size_t extra);
