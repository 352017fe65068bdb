/* SPDX-License-Identifier: Apache-2.0 */
/* model_stats.h: what a model's requests took, counted by workers and read by HTTP
 * threads at any time. Numbers of one request that are read while it is being counted may
 * not all be in yet. */
#ifndef ATTND_HTTP_MODEL_STATS_H
#define ATTND_HTTP_MODEL_STATS_H

#include "wire/oip/describe.h"

#include <stdatomic.h>

enum model_time {
    MODEL_SUCCESS, /* from the complete request to the reply, or its first piece */
    MODEL_FAIL,    /* likewise, when it is refused on the worker */
    MODEL_QUEUE,   /* of it, waiting for a worker; as what follows, of successes only */
    MODEL_INPUT,   /* reading the body */
    MODEL_INFER,   /* the layer */
    MODEL_OUTPUT,  /* writing the reply, or its first piece */
    MODEL_NUM_TIMES
};

struct model_stats {
    struct {
        atomic_uint_fast64_t count, ns;
    } times[MODEL_NUM_TIMES];
    atomic_uint_fast64_t last; /* ms since 1970 */
};

/* Counts one request's time. Any thread. */
void model_stats_add(struct model_stats *stats, enum model_time time, int64_t ns);

/* Notes that an inference ends now. Any thread. */
void model_stats_touch(struct model_stats *stats);

/* Any thread. */
void model_stats_get(const struct model_stats *stats,
                     struct wire_oip_statistics *ret_statistics);

#endif
