/* SPDX-License-Identifier: Apache-2.0 */
/* framing.h: finds from its headers where a request ends, and refuses it when they are
 * ambiguous.
 *
 * libmicrohttpd 0.9.75 accepts requests that a proxy in front of it may delimit
 * differently. That is the basis of request smuggling (RFC 9112, section 11.2), so such
 * requests are refused here. */
#ifndef ATTND_HTTP_FRAMING_H
#define ATTND_HTTP_FRAMING_H

#include "wire/problem.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

struct framing {
    bool chunked;            /* the body's size is not known in advance */
    uint64_t content_length; /* bytes, unless chunked */
    bool expects_continue;   /* the client waits for 100 before it sends the body */
};

/* Checks every header. Returns false with *ret_problem set: 400 for headers that are
 * ambiguous or malformed, 417 for an Expect other than 100-continue. The connection must
 * then be closed after the reply. */
bool framing_check(struct MHD_Connection *connection, struct framing *ret_framing,
                   struct wire_problem *ret_problem);

#endif
