/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h: how many requests a model had and how long they took, for GET /metrics
 * and for the statistics of the Open Inference Protocol.
 *
 * Workers and HTTP threads count, and HTTP threads read at any time. A reader may see
 * some numbers of a request and not yet the others. */
#ifndef ATTND_MODELS_STATS_H
#define ATTND_MODELS_STATS_H

#include "models/facts.h"
#include "models/requests.h"
#include "wire/oip/describe.h"

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

#endif
