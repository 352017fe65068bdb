/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h: how many requests a model had and how long they took, for GET /metrics
 * and for the statistics of the Open Inference Protocol.
 *
 * Workers and HTTP threads count, and HTTP threads read at any time. A reader may see
 * some numbers of a request and not yet the others. */
#pragma once

#include "models/facts.h"
#include "obs/counter.h"
#include "wire/oip/describe.h"

#define REQUEST_ROUTES_MAX   40
#define REQUEST_STATUSES_MAX 24
/* Counts as the status of a request that got no reply; it is never sent. */
#define REQUEST_NO_REPLY 499

/* Zeroed, there were none. */
struct request_counts {
    /* By position of the route; the last are of no route. */
    obs_counter counts[REQUEST_ROUTES_MAX + 1][REQUEST_STATUSES_MAX];
};

/* Counts a request; `route` is REQUEST_ROUTES_MAX when it has none. */
void request_counts_add(struct request_counts *counts, size_t route, int status);

/* Adds what `counts` has counted to `total`. */
void request_counts_sum(const struct request_counts *counts,
                        struct request_counts *total);

/* Returns the status at an index; 0 past the last. */
int request_status_at(size_t index);

/* What a run of the layer took, for all requests that were joined in it, in ns. */
struct model_run {
    int64_t decode, compute, encode;
};

/* Zeroed, it has counted nothing. */
struct model_stats {
    struct request_counts requests;
    struct wire_oip_statistics inference; /* of its requests for that */
};

/* Counts a request about the model, with the status of its reply or REQUEST_NO_REPLY. Any
 * thread may call it. */
void model_stats_count(struct model_stats *stats, const struct request_facts *facts,
                       int status);

/* Counts a run for `num_requests`, at most WIRE_OIP_BATCH_MAX. Any thread may call it. */
void model_stats_execute(struct model_stats *stats, size_t num_requests,
                         const struct model_run *took);
