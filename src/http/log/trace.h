/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h: the id and the trace of a request, by which other programs refer to it.
 *
 * The client's X-Request-Id is the id if it has 1 to 128 visible ASCII characters.
 * Otherwise the id is 128 random bits in hex. W3C Trace Context defines traceparent:
 * https://www.w3.org/TR/trace-context/. */
#pragma once

#include <microhttpd.h>
#include <stddef.h>

#define TRACE_ID_HEADER     "X-Request-Id"
#define TRACE_PARENT_HEADER "traceparent"

#define TRACE_ID_MAX   128 /* characters of a client's id */
#define TRACE_ID_BYTES 16  /* random bytes of an id that is made here */

/* A thread's random bytes for its next ids; one getrandom() fetches them for 16 ids. Up
 * to 256 bytes it delivers whole or not at all. A zeroed source has no bytes. */
struct trace_source {
    unsigned char bytes[256];
    size_t num_left;
};

/* An empty text means that there is no such value. The texts are copies, as libmicrohttpd
 * may reuse the memory of the headers before the request ends. */
struct trace {
    char id[TRACE_ID_MAX + 1];
    char trace_id[32 + 1], span_id[16 + 1]; /* of traceparent */
};

/* Reads the headers of a request to a trace that is zeroed. The id is "" only when one
 * must be made and the system refuses random bytes. */
void trace_begin(struct trace *trace, struct MHD_Connection *connection,
                 struct trace_source *source);
