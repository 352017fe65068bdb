/* SPDX-License-Identifier: Apache-2.0 */
/* framing.h: finds from its headers where a request ends, and refuses it when they are
 * ambiguous.
 *
 * libmicrohttpd 0.9.75 accepts requests that a proxy in front of it may delimit
 * differently. That is the basis of request smuggling (RFC 9112, section 11.2), so such
 * requests are refused here.
 *
 * 0.9.75 does not report what it tolerates: a NUL byte, a line that ends in LF alone, a
 * header that is folded. But it leaves the lines of a request where they were received,
 * in one piece of memory, and writes zeros over what separates their parts. So each part
 * must begin where the one before has ended. Only pointers are compared; no byte is read
 * that was not received. Other versions are arranged differently, and those from 1.0.0
 * on refuse such requests themselves, so nothing is compared there. */
#pragma once

#include "wire/problem.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#define FRAMING_QUERY_MAX 24 /* bytes that are kept of a query, with a terminator */

/* The target of a request as it was received, query included. Borrowed from libmicrohttpd
 * until the request ends. Belongs to a connection, and to its HTTP thread. */
struct framing_target {
    const char *start;
    size_t size; /* up to the first zero, which is its end unless it has a NUL byte */
    bool valid;  /* every character may be in a target */
    char query[FRAMING_QUERY_MAX]; /* the begin of what follows '?', or "" */
};

/* The request line as the handler gets it. */
struct framing_line {
    const char *method, *url, *version;
};

struct framing {
    bool chunked;            /* the body's size is not known in advance */
    uint64_t content_length; /* bytes, unless chunked */
    bool expects_continue;   /* the client waits for 100 before it sends the body */
    bool close;              /* the connection must be closed after the reply */
};

/* Finds out which libmicrohttpd is used. Call it before the first daemon starts. */
void framing_init(void);

/* Returns MHD_OPTION_STRICT_FOR_CLIENT. That of 0.9.75 makes it look for Host, also when
 * it refuses a request for its cookies, and then it closes the connection without a
 * reply. framing_check() looks for Host anyway. */
int framing_strictness(void);

/* Notes the target that MHD_OPTION_URI_LOG_CALLBACK gets. It copies the begin of the
 * query. In 0.9.75 it also cuts the query off: a request with more arguments than its
 * connection has memory for would get no reply. */
void framing_note_target(struct framing_target *target, const char *text);

/* Checks the request line and every header. Returns false with *ret_problem set: 400 for
 * what is ambiguous or malformed, 417 for an Expect other than 100-continue. The
 * connection must then be closed after the reply. */
bool framing_check(struct MHD_Connection *connection, const struct framing_target *target,
                   const struct framing_line *line, struct framing *ret_framing,
                   struct wire_problem *ret_problem);

/* Returns the path of an URL, which may also be a whole one ("http://host/path"; RFC
 * 9112, section 3.2.2). */
const char *framing_path(const char *url);

/* Returns host[:port] of a whole URL, *ret_size bytes of it; NULL for a path. */
const char *framing_host(const char *url, size_t *ret_size);
