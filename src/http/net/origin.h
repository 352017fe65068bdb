/* SPDX-License-Identifier: Apache-2.0 */
/* origin.h: which web pages may use the server.
 *
 * A browser sends what any page asks it to, also to a server that only its own machine
 * reaches. It names the page's origin in the header Origin, and a page cannot change it.
 * So a request with an Origin needs one that is the server's own, or one that
 * --cors-origin allows. A program that is not a browser need not send it. */
#pragma once

#include "wire/problem.h"

#include <attnd/status.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

/* Scheme, host and port of a URL (RFC 6454). Its texts are borrowed. */
struct origin {
    const char *scheme, *host; /* [scheme_size], [host_size]; IPv6 in brackets */
    size_t scheme_size, host_size;
    unsigned port; /* without one: that of http or https, 0 for another scheme */
};

struct origins {
    struct origin *items; /* [count], owned */
    size_t count;
};

/* Reads the origins of --cors-origin, which borrow `texts`. The caller frees
 * ret_origins->items. Errors: ATTN_E_VALUE, with one line that names the text, or
 * ATTN_E_NOMEM. */
attn_status origins_read(char *const *texts, size_t count, struct origins *ret_origins,
                         attn_error *ret_error);

/* Whether the value of an Origin header is among `origins`. */
bool origin_is_in(const char *text, const struct origins *origins);

/* Whether the value of an Origin header names the server itself, which a request
 * addresses as host[:port], `size` bytes of text.
 *
 * The scheme may be http or https, since a proxy may speak TLS for the server. Over
 * loopback the host must be an IP address or localhost. An attacker can let any other
 * name resolve to 127.0.0.1, and a page that was loaded from that name would match
 * itself (DNS rebinding). */
bool origin_is_own(const char *text, const char *host, size_t size, bool over_loopback);

/* Checks the Origin of a request for `url`. *ret_cross is it when it is allowed and not
 * the server's own, borrowed from libmicrohttpd until the request ends; otherwise NULL.
 * Returns false with *ret_problem set (403) when it is neither. */
bool origin_check(struct MHD_Connection *connection, const char *url,
                  const struct origins *allowed, const char **ret_cross,
                  struct wire_problem *ret_problem);
