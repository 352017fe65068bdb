/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: reads the options of a request that protocols share, from JSON unless stated
 * otherwise.
 *
 * Each function reads the value at `span`, and leaves its output untouched when the span
 * is empty. It returns false with the cursor's problem set. */
#ifndef ATTND_WIRE_OPTIONS_H
#define ATTND_WIRE_OPTIONS_H

#include "wire/json/cursor.h"
#include "wire/request.h"

/* Reads true, false or "mean": Wrong type, Malformed JSON, Out of memory. */
bool wire_need_weights_read(const struct wire_cursor *cursor,
                            const struct wire_span *span, attn_need_weights *ret_need);

/* The results that a request names in need, one word for each. */
struct wire_need {
    bool results[WIRE_NUM_RESULTS];
};

/* Adds the result that the `size` bytes of `word` name: outputs, weights, heads, lse.
 * Returns false with *ret_problem set: Unknown output, Duplicate output. */
bool wire_need_add(struct wire_need *need, const char *word, size_t size,
                   struct wire_problem *ret_problem);

/* Sets what the results are that the request needs. Where need_weights was set already,
 * it stays. */
void wire_need_apply(const struct wire_need *need, attn_request *batch);

/* Reads need, a list of these words: Unknown output, Duplicate output, Wrong type, Empty
 * tensor, Malformed JSON, Out of memory; and Outputs disagree when need_weights is there
 * as well. */
bool wire_need_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    const struct wire_span *need_weights, attn_request *batch);

/* Refuses need_weights beside need: Outputs disagree. */
bool wire_refuse_both_needs(struct wire_problem *ret_problem);

/* Reads window, an integer of 0..ATTN_POSITION_MAX: Wrong type, Wrong rank, Out of range,
 * Malformed JSON. */
bool wire_window_read(const struct wire_cursor *cursor, const struct wire_span *span,
                      size_t *ret_window);

/* Read timeout_ms, a number of milliseconds above 0; and timeout, an integer of
 * microseconds, of which 0 means none. Both are at most a day: Wrong type, Wrong rank,
 * Out of range, Malformed JSON. *ret_ns is at least 1 unless there is none. */
bool wire_timeout_ms_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns);
bool wire_timeout_us_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns);

/* Reads priority, an integer of 0..INT32_MAX, with the errors of window. */
bool wire_priority_read(const struct wire_cursor *cursor, const struct wire_span *span,
                        uint32_t *ret_priority);

#endif
