/* SPDX-License-Identifier: Apache-2.0 */
/* value.h: reads the values of a request that need a full parser, with jansson. */
#ifndef ATTND_WIRE_JSON_VALUE_H
#define ATTND_WIRE_JSON_VALUE_H

#include "wire/json/cursor.h"

#include <jansson.h>

/* Sets jansson's hash seed, and its allocator, which calls malloc() and notes a failure
 * for the thread. Called by wire_init(), before any other use of jansson. */
void wire_json_init(void);

/* Parses the value at `span` of the body, and refuses duplicate keys. Returns a new
 * reference, or NULL with *ret_problem set, with line and column: Malformed JSON,
 * Duplicate key, Out of range, Out of memory. Thread-safe.
 *
 * jansson 2.14's lexer mistakes a failed allocation for the end of the token, and may
 * then read a cut number without an error. So any failed allocation of this thread, which
 * the allocator of wire_json_init() notes, is Out of memory. */
json_t *wire_json_load(const char *body, const struct wire_span *span,
                       struct wire_problem *ret_problem);

/* For parsers that call jansson themselves: wire_json_watch() forgets earlier failures of
 * this thread; wire_json_ran_short() returns whether an allocation failed after it. */
void wire_json_watch(void);
bool wire_json_ran_short(void);

/* Refuses the key at `span`, quotes included, because its object already has it. */
bool wire_refuse_duplicate(const char *body, const struct wire_span *span,
                           struct wire_problem *ret_problem);

/* Returns a constant name: "integer", "number", "string", "array", "object", "boolean",
 * "null". */
const char *wire_json_type(const json_t *value);

#endif
