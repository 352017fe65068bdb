/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a request that was read, whatever it was read from. */
#ifndef ATTND_WIRE_REQUEST_H
#define ATTND_WIRE_REQUEST_H

#include <attnd/attention.h>

struct wire_oip_reply;

/* Which of the weights the reply has, in the order of the lists: distinct indices, in
 * range. A list that is NULL means all. */
struct wire_selection {
    const size_t *heads; /* [num_heads] */
    size_t num_heads;
    const size_t *queries; /* [num_queries], of each sequence */
    size_t num_queries;
};

/* A decoded request. All memory is the arena's, or the body's where `in_body`. */
struct wire_request {
    const attn_model *model; /* borrowed from wire_input.models */
    attn_request batch;
    struct wire_selection selection;
    bool batched; /* false: answer without the batch axis; num_sequences is then 1 */
    const struct wire_oip_reply
        *oip;     /* of wire/oip/oip.h; NULL: another protocol's request */
    bool packed;  /* lengths came as tensors, and go back so where a reply has such */
    bool in_body; /* tensors lie in the body, which has to stay until they are used */
};

#endif
