/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h: the descriptions of the server and its models in the Open Inference
 * Protocol. Each printer adds one JSON text to `body`. Thread-safe for distinct
 * buffers. */
#pragma once

#include "base/buf.h"
#include "obs/counter.h"

#include <attnd/model.h>
#include <stdbool.h>

#define WIRE_OIP_BATCH_MAX 64 /* requests */

/* Of requests for inference. The last four are counted for successes only. */
enum wire_oip_time {
    WIRE_TIME_SUCCESS, /* from the complete request to the reply or its first piece */
    WIRE_TIME_FAIL,    /* that time of others; 0 where no worker had them */
    WIRE_TIME_QUEUE,   /* waiting for a worker, or while it ran cheaper requests */
    WIRE_TIME_INPUT,   /* reading the body */
    WIRE_TIME_INFER,   /* the layer */
    WIRE_TIME_OUTPUT,  /* writing the reply or its first piece */
    WIRE_NUM_TIMES
};

/* One model's requests for inference, as the statistics extension counts them. Any thread
 * may count and read; zeroed, there were none. */
struct wire_oip_statistics {
    obs_counter num_successes, num_failures;
    obs_counter ns[WIRE_NUM_TIMES];
    /* The executions of 1 request, of 2, ..., and what all their requests took. */
    struct wire_oip_batches {
        obs_counter count, input_ns, infer_ns, output_ns;
    } batches[WIRE_OIP_BATCH_MAX];
    obs_counter last; /* when the last inference ended, in ms since 1970 */
};

void wire_oip_print_server(struct buf *body);
void wire_oip_print_model(const attn_model_info *info, struct buf *body);
void wire_oip_print_ready(const attn_model_info *info, bool ready, struct buf *body);
void wire_oip_print_config(const attn_model_info *info, struct buf *body);

/* An element of {"model_stats":[...]}. */
void wire_oip_print_statistics(const attn_model_info *info,
                               const struct wire_oip_statistics *statistics,
                               struct buf *body);

/* An entry of the index: a model that is configured. */
struct wire_oip_listing {
    char name[ATTN_NAME_MAX + 1];
    const attn_model_info *info; /* of what is served, borrowed; NULL: not loaded */
    /* Why it is not loaded, or why a file that has changed is not; or "". */
    char reason[sizeof((attn_error *)0)->text];
};

/* The list of models, or of those that are ready: loaded, unless the server drains. */
void wire_oip_print_index(const struct wire_oip_listing *listings, size_t count,
                          bool draining, bool ready_only, struct buf *body);
