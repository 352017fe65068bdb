/* SPDX-License-Identifier: Apache-2.0 */
/* json_value.h: what is missing from jansson's own interface. */
#ifndef ATTND_WIRE_JSON_VALUE_H
#define ATTND_WIRE_JSON_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Parses a body of any JSON type, refusing duplicate keys. Returns a new reference, or
 * NULL with either *ret_no_memory set or *ret_error filled in. Thread-safe.
 *
 * jansson 2.14's lexer takes a failed allocation for the end of the token and may then
 * read a cut number without an error. So the first call gives jansson an allocator that
 * notes failures for its thread (and takes memory from malloc, as before). */
json_t *wire_json_load(const char *body, size_t size, bool *ret_no_memory,
                       json_error_t *ret_error);

/* Returns a constant name: "integer", "number", "string", "array", "object", "boolean",
 * "null". */
const char *wire_json_type(const json_t *value);

/* Returns how many lists are inside each other along the first elements, 0 for no list.
 * *ret_leaf, borrowed, is what the innermost begins with; NULL if that is empty. */
size_t wire_json_levels(const json_t *value, const json_t **ret_leaf);

/* Borrows a member of an object; NULL when it is left out or null, which means the same
 * in every request. */
const json_t *wire_json_member(const json_t *object, const char *key);

#endif
