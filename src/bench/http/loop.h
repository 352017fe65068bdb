/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h: one step of a load: some seconds at one rate, or of one number of clients. */
#pragma once

#include "bench/http/histogram.h"
#include "bench/http/requests.h"

#include <attnd/status.h>
#include <stdbool.h>
#include <stdio.h>

/* How a request ended: with a status, from 100 to 999, or by one of these. */
enum load_outcome {
    LOAD_TIMED_OUT,
    LOAD_MISREAD, /* a reply that is not understood */
    LOAD_LOST,    /* refused, reset, or closed before the whole reply */
    LOAD_STATUS_MIN = 100,
    LOAD_OUTCOMES = 1000
};

/* Returns whether a request was served: a status from 200 to 299. */
static inline bool load_is_served(int outcome) {
    return outcome >= 200 && outcome < 300;
}

struct load_plan {
    const struct load_target *target;     /* borrowed */
    const struct load_requests *requests; /* borrowed */
    double rate; /* of an open loop, requests a second; 0: a closed loop */
    bool poisson;
    size_t connections; /* at most; of a closed loop: the clients */
    bool fresh;         /* a connection for each request */
    int64_t warmup_ns, window_ns;
    int64_t timeout_ns; /* of a client, from when it sends its request */
    uint64_t seed;
    FILE *samples; /* gets a line of CSV for each measured request; NULL: none */
    size_t index;  /* of the step, for the samples */
};

/* How the requests ended that were due in the window. */
struct load_tally {
    struct load_histogram latency;    /* of replies with a status from 200 to 299 */
    struct load_histogram lateness;   /* how late requests were sent although there was a
                                     * connection: what the generator adds itself */
    uint64_t outcomes[LOAD_OUTCOMES]; /* how many there were of each */
    uint64_t resent; /* once more, when a connection that had carried a reply
                                  * was closed: the server may have read the first */
    uint64_t waited; /* were due while all connections were busy */
    uint64_t sent;   /* requests that were begun in the window */
    uint64_t served; /* replies from 200 to 299 that ended in the window */
    int lost_errno;  /* of the last one lost; 0: closed by the server */
    int64_t cpu_ns;  /* of the thread, until the window ended */
};

/* Runs a step in the calling thread, until each request has an outcome: for the warm-up,
 * the window, and twice the timeout at most. Adds to *tally. Errors, with a line:
 * ATTN_E_NOMEM, ATTN_E_IO. */
attn_status load_run_step(const struct load_plan *plan, struct load_tally *tally,
                          attn_error *ret_error);
