/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h: the descriptions of the server and its models in the Open Inference
 * Protocol. Each printer adds one JSON text to `body`, and returns ATTN_OK or
 * ATTN_E_NOMEM. Thread-safe for distinct buffers. */
#ifndef ATTND_WIRE_OIP_DESCRIBE_H
#define ATTND_WIRE_OIP_DESCRIBE_H

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

attn_status wire_oip_print_server(struct buf *body);
attn_status wire_oip_print_model(const attn_model_info *info, struct buf *body);
attn_status wire_oip_print_ready(const attn_model_info *info, bool ready,
                                 struct buf *body);
attn_status wire_oip_print_config(const attn_model_info *info, struct buf *body);

/* {"model_stats":[...]} of `count` models. */
attn_status wire_oip_print_statistics(const attn_model *const *models,
                                      const struct wire_oip_statistics *statistics,
                                      size_t count, struct buf *body);

/* The list of models, all of them ready or all unavailable. */
attn_status wire_oip_print_index(const attn_model *const *models, size_t count,
                                 bool ready, struct buf *body);

#endif
