/* SPDX-License-Identifier: Apache-2.0 */
/* object.h: objects with known keys, in a request's text.
 *
 * Each function returns false with the cursor's problem set. */
#ifndef ATTND_WIRE_JSON_OBJECT_H
#define ATTND_WIRE_JSON_OBJECT_H

#include "wire/json/cursor.h"

#define WIRE_KEYS_MAX 16
#define WIRE_WORD_MAX 128 /* bytes; a longer string is none of ours, whatever it spells */

/* The keys that an object may have. */
struct wire_keys {
    const char *owner; /* whose keys they are, for a person: "a request" */
    const char *known; /* all of them, for a person: "name and parameters" */
    size_t count;      /* at most WIRE_KEYS_MAX */
    const char *names[WIRE_KEYS_MAX];
};

/* Enters a body, which must be an object; `key` is one that it needs. Malformed JSON,
 * Wrong type. */
bool wire_body_open(struct wire_cursor *cursor, const char *key);

/* Checks that nothing but white space is left. */
bool wire_body_close(struct wire_cursor *cursor);

/* Finds the members of the object at the cursor without reading their values, and moves
 * past it. `depth` is that of its members: 1 for the whole body's.
 * ret_members[keys->count] are empty (start is NULL) where a key is left out, or null.
 * Malformed JSON, Nested too deeply, Unknown key, Duplicate key; Wrong type of `place`
 * when it is no object. */
bool wire_object_scan(struct wire_cursor *cursor, struct wire_place *place, size_t depth,
                      const struct wire_keys *keys, struct wire_span *ret_members);

/* Reads the string at `span`, quotes included, into ret_word, cut to WIRE_WORD_MAX bytes
 * and with a terminator. */
bool wire_word_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    char ret_word[WIRE_WORD_MAX + 1]);

#endif
