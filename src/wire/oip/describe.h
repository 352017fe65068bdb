/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h: the descriptions of the server and its models in the Open Inference
 * Protocol. Each printer adds one JSON text to `body`. Thread-safe for distinct
 * buffers. */
#pragma once

#include "base/buf.h"

#include <attnd/model.h>
#include <stdint.h>

struct wire_oip_duration {
    uint64_t count, ns;
};

#define WIRE_OIP_BATCH_MAX 64 /* requests */

/* The executions for one number of requests, and what all their requests took in ns. */
struct wire_oip_batch {
    uint64_t count, input_ns, infer_ns, output_ns;
};

/* One model's requests for inference, as the statistics extension counts them. */
struct wire_oip_statistics {
    uint64_t inference_count, execution_count, last_inference; /* ms since 1970 */
    struct wire_oip_duration success, fail, queue;
    struct wire_oip_duration compute_input, compute_infer, compute_output;
    struct wire_oip_batch batches[WIRE_OIP_BATCH_MAX]; /* of 1 request, of 2, ... */
};

void wire_oip_print_server(struct buf *body);
void wire_oip_print_model(const attn_model_info *info, struct buf *body);
void wire_oip_print_ready(const attn_model_info *info, bool ready, struct buf *body);
void wire_oip_print_config(const attn_model_info *info, struct buf *body);

/* {"model_stats":[...]} of `count` models. */
void wire_oip_print_statistics(const attn_model *const *models,
                               const struct wire_oip_statistics *statistics, size_t count,
                               struct buf *body);

/* An entry of the index: a model that is configured. */
struct wire_oip_listing {
    char name[ATTN_NAME_MAX + 1];
    bool loaded;
    /* Why it is not loaded, or why a file that has changed is not; or "". */
    char reason[sizeof((attn_error *)0)->text];
};

/* The list of models, or of those that are ready: loaded, unless the server drains. */
void wire_oip_print_index(const struct wire_oip_listing *listings, size_t count,
                          bool draining, bool ready_only, struct buf *body);
