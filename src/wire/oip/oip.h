/* SPDX-License-Identifier: Apache-2.0 */
/* oip.h: the Open Inference Protocol v2 over REST, with the binary tensor data extension
 * (docs/protocol-v2.md). */
#pragma once

#include "math/plan/results.h"
#include "wire/protocol.h"

#define WIRE_OIP_VERSION     "1" /* the only version that a model has */
#define WIRE_OIP_OUTPUTS_MAX NUM_RESULTS

/* The header that says how many bytes of a body are JSON; binary data follows them. */
#define WIRE_OIP_SIZE_HEADER "Inference-Header-Content-Length"

/* The members of a reply besides its numbers. */
struct wire_oip_reply {
    const char *id; /* [id_size] as JSON, quotes included; NULL: none */
    size_t id_size;
    size_t num_outputs; /* at least 1 */
    struct {
        enum result_id which; /* RESULT_OIP */
        bool binary;
    } outputs[WIRE_OIP_OUTPUTS_MAX];
};

/* Reads the value of WIRE_OIP_SIZE_HEADER for a body of `body_size` bytes.
 * Returns false with *ret_problem set (400) when it is not a number, is 0, or is more
 * than body_size. */
bool wire_oip_json_size(const char *value, size_t body_size, size_t *ret_json_size,
                        struct wire_problem *ret_problem);

/* Checks the body of a request to load or unload a model. It says nothing that attnd goes
 * by: a model has no dependents to unload. An empty one is fine. Errors as in
 * wire_oip_read_index(). */
bool wire_oip_read_change(const char *text, size_t size,
                          struct wire_problem *ret_problem);

/* Reads whether the body of POST /v2/repository/index selects only models that are ready.
 * It may be empty. Returns false with *ret_problem set (400). */
bool wire_oip_read_index(const char *text, size_t size, bool *ret_ready_only,
                         struct wire_problem *ret_problem);

/* POST /v2/models/NAME/infer; input->models has only this model. Binary float32 that is
 * aligned is not copied: wire_request.in_body. */
wire_read wire_oip_read;
extern const struct wire_writer wire_oip_writer;

/* {"error":"..."} */
extern const struct wire_error_format wire_oip_error_format;
