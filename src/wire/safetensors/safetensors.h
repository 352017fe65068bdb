/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: /v1/attention as safetensors (docs/protocol.md), as the server calls it.
 *
 * The tensors of a request are named as the keys of the JSON, with query_lens and
 * key_lens for batches without padding; options are strings in __metadata__. */
#ifndef ATTND_WIRE_SAFETENSORS_SAFETENSORS_H
#define ATTND_WIRE_SAFETENSORS_SAFETENSORS_H

#include "wire/protocol.h"

#define WIRE_SAFETENSORS_HEADER_MAX ((size_t)64 * 1024) /* bytes of a request's JSON */

/* float32 at a multiple of 4 bytes stays where it lies: wire_request.in_body. */
wire_read wire_safetensors_read;

/* The size of its replies is known at once. */
extern const struct wire_writer wire_safetensors_writer;

#endif
