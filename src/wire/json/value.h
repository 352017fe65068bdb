/* SPDX-License-Identifier: Apache-2.0 */
/* value.h: what attnd has jansson do: parse the strings of a request, which may have
 * escapes and must be UTF-8. */
#ifndef ATTND_WIRE_JSON_VALUE_H
#define ATTND_WIRE_JSON_VALUE_H

#include "wire/json/cursor.h"

#include <jansson.h>

/* Sets jansson's hash seed, and its allocator, which calls malloc() and notes a failure
 * for the thread. Called by wire_init(), before any other use of jansson. */
void wire_json_init(void);

/* Parses the string at `span`, quotes included. Returns a new reference, or NULL with the
 * cursor's problem set, with line and column: Malformed JSON, Out of memory. Thread-safe.
 *
 * jansson 2.14's lexer mistakes a failed allocation for the end of the token, and may
 * then read a cut value without an error. So any failed allocation of this thread, which
 * the allocator of wire_json_init() notes, is Out of memory. */
json_t *wire_string_load(const struct wire_cursor *cursor, const struct wire_span *span);

/* For parsers that call jansson themselves: wire_json_watch() forgets earlier failures of
 * this thread; wire_json_ran_short() returns whether an allocation failed after it. */
void wire_json_watch(void);
bool wire_json_ran_short(void);

/* Refuses the key at `span`, quotes included, because its object already has it. */
bool wire_refuse_duplicate(const struct wire_cursor *cursor,
                           const struct wire_span *span);

#endif
