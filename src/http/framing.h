/* SPDX-License-Identifier: Apache-2.0 */
/* framing.h: what the headers say about where a message ends.
 *
 * libmicrohttpd 0.9.75 lets through messages that a proxy in front may delimit
 * differently, the ground of request smuggling (RFC 9112, section 11.2). They are refused
 * here. */
#ifndef ATTND_HTTP_FRAMING_H
#define ATTND_HTTP_FRAMING_H

#include "wire/problem.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct framing {
    bool chunked;            /* its size is not known */
    uint64_t content_length; /* bytes, when not chunked */
    bool expects_continue;   /* the client waits for a 100 before it sends the body */
};

/* Looks at every header. Returns false with *ret_problem set (400 or 417) when the
 * message is ambiguous: the connection must then be closed after the reply. */
bool framing_check(struct MHD_Connection *connection, struct framing *ret_framing,
                   struct wire_problem *ret_problem);

#endif
