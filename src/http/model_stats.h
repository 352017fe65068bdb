/* SPDX-License-Identifier: Apache-2.0 */
/* model_stats.h: how many requests a model had and how long they took.
 *
 * Workers count, and HTTP threads read at any time. A reader may see some numbers of a
 * request and not yet the others. */
#ifndef ATTND_HTTP_MODEL_STATS_H
#define ATTND_HTTP_MODEL_STATS_H

#include "wire/oip/describe.h"

#include <stdatomic.h>

/* The last four are counted for successes only. */
enum model_time {
    MODEL_SUCCESS, /* from the complete request to the reply or its first piece */
    MODEL_FAIL,    /* likewise, of a request that the worker refused */
    MODEL_QUEUE,   /* waiting for a worker, or while it ran cheaper requests */
    MODEL_INPUT,   /* reading the body */
    MODEL_INFER,   /* the layer */
    MODEL_OUTPUT,  /* writing the reply or its first piece */
    MODEL_NUM_TIMES
};

struct model_stats {
    struct {
        atomic_uint_fast64_t count, ns;
    } times[MODEL_NUM_TIMES];
    struct {
        atomic_uint_fast64_t count, input_ns, infer_ns, output_ns;
    } batches[WIRE_OIP_BATCH_MAX];
    atomic_uint_fast64_t last; /* when the last inference ended, in ms since 1970 */
};

/* Counts one request and its time in nanoseconds. Any thread may call it. */
void model_stats_add(struct model_stats *stats, enum model_time time, int64_t ns);

/* Counts runs of the layer for `num_requests` that were joined, at most
 * WIRE_OIP_BATCH_MAX, and what they took. Any thread may call it. */
void model_stats_execute(struct model_stats *stats, size_t num_requests,
                         const struct wire_oip_batch *took);

/* Records that an inference ends now. Any thread may call it. */
void model_stats_touch(struct model_stats *stats);

/* Reads all counters. Any thread may call it. */
void model_stats_get(const struct model_stats *stats,
                     struct wire_oip_statistics *ret_statistics);

#endif
