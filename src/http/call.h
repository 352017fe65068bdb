/* SPDX-License-Identifier: Apache-2.0 */
/* call.h: runs a request for attention on a worker, whatever its protocol. */
#ifndef ATTND_HTTP_CALL_H
#define ATTND_HTTP_CALL_H

#include "wire/protocol.h"

struct exchange;

/* How one request is read and answered. All is borrowed; the models must outlive the
 * exchange, the rest is constant. */
struct call_form {
    wire_read *read;
    const struct wire_writer *writer;
    size_t json_size; /* wire_input.json_size */
    const attn_model *const *models;
    size_t num_models;
};

/* On the HTTP thread, when the request is complete: suspends the connection and hands it
 * to the workers. A full queue makes the reply an error instead. */
void call_submit(struct exchange *exchange, const struct call_form *form);

#endif
