/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h: by which names a request is known to others: its id and its trace.
 *
 * X-Request-Id is the client's own when it has 1 to 128 visible ASCII characters;
 * otherwise one is made of 128 random bits, in hex. traceparent is that of W3C Trace
 * Context, https://www.w3.org/TR/trace-context/. */
#ifndef ATTND_HTTP_LOG_TRACE_H
#define ATTND_HTTP_LOG_TRACE_H

#include <microhttpd.h>
#include <stddef.h>

#define TRACE_ID_HEADER     "X-Request-Id"
#define TRACE_PARENT_HEADER "traceparent"

#define TRACE_MADE_SIZE 32  /* characters of an id that is made */
#define TRACE_ID_MAX    128 /* of one that is taken */

/* A thread's random bytes for ids to come. One system call is for several ids; so many
 * bytes come whole or not at all. Zeroed, it has none. */
struct trace_source {
    unsigned char bytes[256];
    size_t num_left;
};

struct trace {
    const char *id;     /* the header's value, or made_id; NULL: none could be made */
    const char *parent; /* a valid value of traceparent, or NULL */
    char made_id[TRACE_MADE_SIZE + 1];
};

/* Reads the headers of a request. What is taken is borrowed from libmicrohttpd until the
 * request ends. An id cannot be made only where the system refuses random numbers. */
void trace_begin(struct trace *ret_trace, struct MHD_Connection *connection,
                 struct trace_source *source);

#endif
