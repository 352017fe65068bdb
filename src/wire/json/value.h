/* SPDX-License-Identifier: Apache-2.0 */
/* value.h: parses the strings of a request with jansson; they may have escapes and must
 * be UTF-8. */
#pragma once

#include "wire/json/cursor.h"

#include <jansson.h>

/* Parses the string at `span`, quotes included. Returns a new reference, or NULL with the
 * cursor's problem set, with line and column: Malformed JSON, Out of memory.
 * Thread-safe. */
json_t *wire_string_load(const struct wire_cursor *cursor, const struct wire_span *span);

/* Refuses the key at `span`, quotes included, because its object already has it. */
bool wire_refuse_duplicate(const struct wire_cursor *cursor,
                           const struct wire_span *span);
