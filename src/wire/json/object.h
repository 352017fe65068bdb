/* SPDX-License-Identifier: Apache-2.0 */
/* object.h: finds the members of objects, whose keys are known, in the text of a request,
 * and reads those that are strings, words or booleans.
 *
 * Each function returns false with the cursor's problem set. */
#pragma once

#include "wire/json/cursor.h"

#include <jansson.h>

#define WIRE_KEYS_MAX 40
#define WIRE_WORD_MAX 128 /* bytes; no string that has a meaning is longer */

#define WIRE_JSON_FIXED_BYTES 2048 /* of jansson's lexer */
#define WIRE_JSON_BYTES       96   /* of a tree and tables, for a byte of text */

/* The keys that an object may have. */
struct wire_keys {
    const char *owner; /* what has these keys, for people: "a request" */
    size_t count;      /* at most WIRE_KEYS_MAX */
    /* An error adds this to the remedy for a name that other programs use
     * (wire/names.h); NULL: such names are not expected. */
    const char *where;
    bool given; /* of a request without a model, whose names differ */
    const char *names[WIRE_KEYS_MAX]; /* NULL: not a key of this object */
};

/* Enters a body, which must be an object: Malformed JSON, Wrong type. `key` is a key that
 * it needs, for the error. */
bool wire_body_open(struct wire_cursor *cursor, const char *key);

/* Checks that only white space is left: Malformed JSON. */
bool wire_body_close(struct wire_cursor *cursor);

/* Finds the members of the object at the cursor without reading their values, and moves
 * past the object. `depth` is the depth of its members: 1 for those of the body.
 * ret_members[keys->count] are empty (start is NULL) where a key is left out or its value
 * is null. Malformed JSON, Nested too deeply, Unknown key, Duplicate key; Wrong type of
 * `place` when it is not an object. */
bool wire_object_scan(struct wire_cursor *cursor, struct wire_place *place, size_t depth,
                      const struct wire_keys *keys, struct wire_span *ret_members);

/* Copies the string at `span`, the value of `field`, to ret_word, with a terminator. It
 * is cut to WIRE_WORD_MAX bytes. Wrong type, Malformed JSON, Out of memory. */
bool wire_word_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    const char *field, char ret_word[WIRE_WORD_MAX + 1]);

/* Reads the true or false at `span`, the value of `field`. *ret_bool is untouched when
 * the span is empty. Wrong type, Malformed JSON. */
bool wire_bool_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    const char *field, bool *ret_bool);

/* Returns more bytes than are allocated at one time for a text of so many, whatever is in
 * it: by jansson, and for the tables of a header of safetensors. Objects without members
 * cost most: a list of them needs 83 for a byte, where malloc() is glibc's. */
static inline size_t wire_json_cost(size_t size) {
    return (size_t)WIRE_JSON_FIXED_BYTES + size * WIRE_JSON_BYTES;
}

/* Parses the string at `span`, quotes included. Returns a new reference, or NULL with the
 * cursor's problem set, with line and column: Malformed JSON, Out of memory.
 * Thread-safe. */
json_t *wire_string_load(const struct wire_cursor *cursor, const struct wire_span *span);
