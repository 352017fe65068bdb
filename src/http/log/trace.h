/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h: by which names a request is known to others: its id and its trace.
 *
 * X-Request-Id is the client's own when it has 1 to 128 visible ASCII characters;
 * otherwise one is made of 128 random bits, in hex. W3C Trace Context defines
 * traceparent: https://www.w3.org/TR/trace-context/. */
#ifndef ATTND_HTTP_LOG_TRACE_H
#define ATTND_HTTP_LOG_TRACE_H

#include <microhttpd.h>
#include <stddef.h>

#define TRACE_ID_HEADER     "X-Request-Id"
#define TRACE_PARENT_HEADER "traceparent"

#define TRACE_ID_MAX   128 /* characters of an id that is taken */
#define TRACE_ID_BYTES 16  /* that one which is made is printed from */

/* A thread's random bytes for ids to come. One system call is for several ids; so many
 * bytes come whole or not at all. Zeroed, it has none. */
struct trace_source {
    unsigned char bytes[256];
    size_t num_left;
};

/* Texts that are "" are not known. They are copies: libmicrohttpd may reuse the memory of
 * the headers before the request ends. */
struct trace {
    char id[TRACE_ID_MAX + 1];
    char trace_id[32 + 1], span_id[16 + 1]; /* of traceparent */
};

/* Reads the headers of a request. There is no id only where the system refuses random
 * numbers. */
void trace_begin(struct trace *ret_trace, struct MHD_Connection *connection,
                 struct trace_source *source);

#endif
