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

/* Of requests for inference. The last four are counted for successes only. */
enum model_time {
    MODEL_SUCCESS, /* from the complete request to the reply or its first piece */
    MODEL_FAIL,    /* that time of others; 0 where no worker had them */
    MODEL_QUEUE,   /* waiting for a worker, or while it ran cheaper requests */
    MODEL_INPUT,   /* reading the body */
    MODEL_INFER,   /* the layer */
    MODEL_OUTPUT,  /* writing the reply or its first piece */
    MODEL_NUM_TIMES
};

/* Zeroed, it has counted nothing. */
struct model_stats {
    struct request_counts requests;
    obs_counter num_successes, num_failures; /* of requests for inference */
    obs_counter ns[MODEL_NUM_TIMES];
    struct {
        obs_counter count, input_ns, infer_ns, output_ns;
    } batches[WIRE_OIP_BATCH_MAX];
    atomic_uint_fast64_t last; /* when the last inference ended, in ms since 1970 */
};

/* Counts a request about the model, with the status of its reply or REQUEST_NO_REPLY. Any
 * thread may call it. */
void model_stats_count(struct model_stats *stats, const struct request_facts *facts,
                       int status);

/* Counts runs of the layer for `num_requests` that were joined, at most
 * WIRE_OIP_BATCH_MAX, and what they took. Any thread may call it. */
void model_stats_execute(struct model_stats *stats, size_t num_requests,
                         const struct wire_oip_batch *took);

/* Reads all counters. Any thread may call it. */
void model_stats_get(const struct model_stats *stats,
                     struct wire_oip_statistics *ret_statistics);
