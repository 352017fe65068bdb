/* SPDX-License-Identifier: Apache-2.0 */
/* native.h: the JSON of POST /v1/attention and its routes (docs/protocol.md). The server
 * needs only the functions and the table at the end; tests and the benchmark read in two
 * steps. */
#pragma once

#include "wire/json/cursor.h"
#include "wire/protocol.h"

/* The members of a request's object. */
enum wire_native_member {
    WIRE_NATIVE_MODEL,
    WIRE_NATIVE_QUERIES,
    WIRE_NATIVE_KEYS,
    WIRE_NATIVE_VALUES,
    WIRE_NATIVE_VALID_LENS,
    WIRE_NATIVE_POSITIONS,
    WIRE_NATIVE_KEY_POSITIONS,
    WIRE_NATIVE_CAUSAL,
    WIRE_NATIVE_WINDOW,
    WIRE_NATIVE_NEED,
    WIRE_NATIVE_NEED_WEIGHTS,
    WIRE_NATIVE_HEAD_MASK,
    WIRE_NATIVE_WEIGHTS_HEADS,
    WIRE_NATIVE_WEIGHTS_QUERIES,
    WIRE_NATIVE_TIMEOUT_MS,
    WIRE_NATIVE_PRIORITY,
    WIRE_NATIVE_SPANS,
    WIRE_NATIVE_TOP_K,
    WIRE_NATIVE_TOP_IN,
    WIRE_NATIVE_TARGETS,
    WIRE_NATIVE_BLOCK,
    WIRE_NATIVE_NUM_HEADS, /* from here on without a model only */
    WIRE_NATIVE_NUM_KV_HEADS,
    WIRE_NATIVE_SCALE,
    WIRE_NATIVE_SOFTCAP,
    WIRE_NATIVE_SINKS,
    WIRE_NATIVE_SLOPES,
    WIRE_NATIVE_BIAS,
    WIRE_NATIVE_LAYER, /* from here on of a capture only */
    WIRE_NATIVE_QUERY_ROWS,
    WIRE_NATIVE_NUM_MEMBERS
};

/* What was found in a body. Points into it. */
struct wire_native_scan {
    /* start is NULL: left out, or null. */
    struct wire_span members[WIRE_NATIVE_NUM_MEMBERS];
    bool heads_axis;    /* the heads are an axis of queries, keys and values */
    bool targets_alone; /* see struct wire_input; false after a scan */
    /* The most that decoding needs besides the body. If weights_heads is present and the
     * model has over 64 heads, add a byte for each head. */
    size_t decode_bytes;
};

/* Finds the members of a body without reading their values, and how much memory reading
 * them needs, so that it can be reserved. Allocates nothing, except for a key that has
 * escapes. Returns false with *ret_problem set: Malformed JSON, Wrong type, Unknown key
 * or Duplicate key in the request's own object, or Nested too deeply. Thread-safe. */
bool wire_native_scan(const char *body, size_t size, struct wire_native_scan *ret_scan,
                      struct wire_problem *ret_problem);

/* The same of a request without a model; `stored`: of one that asks a capture. */
bool wire_native_scan_given(const char *body, size_t size, bool stored,
                            struct wire_native_scan *ret_scan,
                            struct wire_problem *ret_problem);

/* Decodes a body that was scanned, and checks it against the model that it names, or the
 * only one. All sizes of the request are checked, so that attn_plan() can fail only on
 * overflow. Returns false with *ret_problem set (400, 404, or 503 when memory is short).
 * Thread-safe for distinct arenas. */
bool wire_native_decode(const char *body, const struct wire_native_scan *scan,
                        const attn_model *const *models, size_t num_models,
                        struct arena *arena, struct wire_request *ret_request,
                        struct wire_problem *ret_problem);

/* --- for the server --- */

wire_read wire_native_read;
/* POST /v1/attention/dot-product, and attention of the capture of the input. */
wire_read wire_native_read_given;
extern const struct wire_writer wire_native_writer;
