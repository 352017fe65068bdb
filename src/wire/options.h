/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: reads the options of a request that protocols share, from JSON unless stated
 * otherwise.
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

/* Reads a finite number of float32: Wrong type, Wrong rank, Out of range, Malformed
 * JSON. */
bool wire_number_read(const struct wire_cursor *cursor, const struct wire_span *span,
                      const char *field, double *ret_number);

/* Reads an integer of 1..INT32_MAX, with the errors of window. `thing` says what it is:
 * "a number of heads". */
bool wire_count_read(const struct wire_cursor *cursor, const struct wire_span *span,
                     const char *field, const char *thing, size_t *ret_count);

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
