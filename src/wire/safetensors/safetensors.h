/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: the safetensors of POST /v1/attention (docs/protocol.md), for the
 * server.
 *
 * The tensors of a request have the names of the JSON's fields, with query_lens and
 * key_lens for a batch without padding. Options are strings in __metadata__. */
#pragma once

#include "wire/protocol.h"

#define WIRE_SAFETENSORS_HEADER_MAX ((size_t)64 * 1024) /* bytes of a request's JSON */

/* With a model, without one, or of a capture. Does not copy float32 at a multiple of 4
 * bytes: wire_request.in_body. */
wire_read wire_safetensors_read;

/* The size of a reply is known from the start. */
extern const struct wire_writer wire_safetensors_writer;
