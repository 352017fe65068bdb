/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: reads what the reply of a request has, from JSON unless stated otherwise.
 *
 * Each function reads the value at `span`, and leaves its output untouched when the span
 * is empty. It returns false with the cursor's problem set. */
#pragma once

#include "math/plan/results.h"
#include "wire/json/cursor.h"
#include "wire/request.h"

/* Reads true, false or "mean": Wrong type, Malformed JSON, Out of memory. */
bool wire_need_weights_read(const struct wire_cursor *cursor,
                            const struct wire_span *span, attn_need_weights *ret_need);

/* The results that a request names in need. */
struct wire_need {
    bool given;            /* it is a request without a model, which has no outputs */
    bool has[NUM_RESULTS]; /* of several that share a word, the first */
};

/* Adds the word of `size` bytes. Returns false with *ret_problem set: Unknown output,
 * Duplicate output. */
bool wire_need_add(struct wire_need *need, const char *word, size_t size,
                   struct wire_problem *ret_problem);

/* Sets what the results are that the request needs. Where need_weights was set already,
 * it stays. */
void wire_need_apply(const struct wire_need *need, attn_request *batch);

/* Reads need, a list of these words: Unknown output, Duplicate output, Wrong type, Empty
 * tensor, Malformed JSON, Out of memory. */
bool wire_need_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    struct wire_need *need);

/* Refuses need_weights beside need: Outputs disagree. */
bool wire_refuse_both_needs(struct wire_problem *ret_problem);
