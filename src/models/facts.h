/* SPDX-License-Identifier: Apache-2.0 */
/* facts.h: what is known of one request, for those who watch: metrics, statistics, log.
 *
 * A member of the exchange, with the same owner. It is complete when the request ends;
 * what was not reached until then is 0. */
#pragma once

#include "wire/problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a request ended. All but the first mean that its connection was closed: by the
 * client, for being too slow, or because the server stops. */
enum request_end {
    REQUEST_REPLIED,        /* the whole reply was sent */
    REQUEST_LEFT_RECEIVING, /* closed before the request was complete */
    REQUEST_LEFT_WAITING,   /* before a worker took it */
    REQUEST_LEFT_COMPUTING, /* while a worker had it */
    REQUEST_LEFT_SENDING,   /* before the whole reply was sent */
    REQUEST_NUM_ENDS
};

struct request_facts {
    /* Position of the path's route, whatever the method; REQUEST_ROUTES_MAX: none. */
    size_t route;
    bool infers;           /* a worker computes replies of this route */
    const char *model;     /* a loaded one, borrowed from it; NULL: none is known */
    enum wire_error error; /* that the reply reports; WIRE_NUM_ERRORS: none */
    int status;            /* of HTTP; 0: there was no reply */
    enum request_end end;
    size_t body_bytes;  /* of the request, that arrived */
    size_t reply_bytes; /* that were handed to libmicrohttpd, without headers */
    size_t rows;        /* queries of all sequences of the batch; once it is planned */
    /* ns, set when a worker ends the request: waiting, and what each phase took. When
     * several are computed as one, each has an equal part of the computation. */
    int64_t queue_ns, decode_ns, compute_ns, encode_ns;
    int64_t total_ns; /* from the complete headers to the end of the reply */
};
