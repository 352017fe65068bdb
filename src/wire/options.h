/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: reads from JSON the options of a request that protocols share.
 *
 * Each function reads the value at `span`, and leaves its output untouched when the span
 * is empty. It returns false with the cursor's problem set. */
#ifndef ATTND_WIRE_OPTIONS_H
#define ATTND_WIRE_OPTIONS_H

#include "wire/json/cursor.h"

#include <attnd/attention.h>
#include <stdint.h>

/* Reads true, false or "mean": Wrong type, Malformed JSON, Out of memory. */
bool wire_need_weights_read(const struct wire_cursor *cursor,
                            const struct wire_span *span, attn_need_weights *ret_need);

/* Read timeout_ms, a number of milliseconds above 0; and timeout, an integer of
 * microseconds, of which 0 means none. Both are at most a day: Wrong type, Wrong rank,
 * Out of range, Malformed JSON. *ret_ns is at least 1 unless there is none. */
bool wire_timeout_ms_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns);
bool wire_timeout_us_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns);

/* Reads priority, an integer of 0..INT32_MAX: likewise. */
bool wire_priority_read(const struct wire_cursor *cursor, const struct wire_span *span,
                        uint32_t *ret_priority);

#endif
