/* SPDX-License-Identifier: Apache-2.0 */
/* native.h: the JSON of POST /v1/attention (docs/protocol.md). */
#ifndef ATTND_WIRE_NATIVE_H
#define ATTND_WIRE_NATIVE_H

#include "base/arena.h"
#include "base/buf.h"
#include "wire/problem.h"

#include <attnd/attention.h>

#define WIRE_MAX_DEPTH 32 /* of nested arrays and objects */

/* A decoded request. All memory is the arena's. */
struct wire_call {
    const attn_model *model; /* borrowed from `models` */
    attn_request request;
    bool batched; /* false: answer without the batch axis; num_sequences is then 1 */
};

/* Looks over a body without decoding it: refuses what is nested too deeply and says how
 * many bytes decoding it will take at most, besides the body itself. Reads each byte
 * once, allocates nothing. Does not find syntax errors. Returns false with *ret_problem
 * set. Thread-safe. */
bool wire_native_scan(const char *body, size_t size, size_t *ret_decode_bytes,
                      struct wire_problem *ret_problem);

/* Decodes and checks a body that wire_native_scan() has accepted, against the
 * model that it names (or the only one). Every size in ret_call has been checked, so that
 * attn_plan() can only fail on overflow.
 *
 * Returns false with *ret_problem set (400, 404, or 503 when memory is short), ret_call
 * untouched. Thread-safe for distinct arenas. */
bool wire_native_decode(const char *body, size_t size, const attn_model *const *models,
                        size_t num_models, struct arena *arena,
                        struct wire_call *ret_call, struct wire_problem *ret_problem);

/* Returns the most bytes that the reply to a call of these sizes can take; SIZE_MAX when
 * that is too large to be computed. */
size_t wire_native_reply_bound(const struct wire_call *call, const attn_sizes *sizes);

/* Adds the reply's JSON to `body`. Returns false with *ret_problem set: 422 when a result
 * is not finite, 503 when memory is short; `body` then holds rubbish. Thread-safe for
 * distinct bodies. */
bool wire_native_encode(const struct wire_call *call, const attn_result *result,
                        struct buf *body, struct wire_problem *ret_problem);

#endif
