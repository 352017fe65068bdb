/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: reads from JSON the options of a request that its protocols share.
 *
 * Each function reads the value at `span`, and leaves its output untouched when the span
 * is empty. It returns false with the cursor's problem set. */
#ifndef ATTND_WIRE_OPTIONS_H
#define ATTND_WIRE_OPTIONS_H

#include "wire/json/cursor.h"

#include <attnd/attention.h>

/* Reads true, false or "mean": Wrong type, Malformed JSON, Out of memory. */
bool wire_need_weights_read(const struct wire_cursor *cursor,
                            const struct wire_span *span, attn_need_weights *ret_need);

#endif
