/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a decoded request, the same for all protocols. */
#pragma once

#include <attnd/attention.h>
#include <stdint.h>

struct wire_oip_reply;

/* All memory is the arena's, or the body's if `in_body`. */
struct wire_request {
    const attn_model *model; /* borrowed from wire_input.models */
    attn_request batch;
    bool batched; /* false: num_sequences is 1, and the reply has no batch axis */
    const struct wire_oip_reply *oip; /* see wire/oip/oip.h; NULL in other protocols */
    bool lens_sent; /* lengths are tensors, in the request and in a safetensors reply */
    bool in_body;   /* tensors are in the body, which must stay until they are used */
    int64_t timeout_ns; /* how long the client waits from acceptance on; 0: no limit */
    const char *note;   /* of its rows, see model_find_note(); NULL: none */
    size_t priority;    /* among its client's requests: 1 is first, 0 (default) last */
};
