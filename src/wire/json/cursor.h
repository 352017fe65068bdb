/* SPDX-License-Identifier: Apache-2.0 */
/* cursor.h: a position in the text of a request. It skips values without reading them,
 * and its errors have a line and a column. */
#pragma once

#include "wire/decimal/bytes.h"
#include "wire/refuse.h"

#include <stdbool.h>

#define WIRE_DEPTH_MAX 32 /* of nested lists and objects */

struct wire_cursor {
    const char *body; /* the start of the text, for line and column; NULL: not told */
    const char *at;   /* the next byte */
    const char *end;  /* nothing from here on is read */
    struct wire_problem *problem;
};

/* The text of a value, and what was counted in it. */
struct wire_span {
    const char *start, *end; /* NULL when there is no such value */
    size_t commas;           /* on all levels; there is at most 1 number more */
    size_t lists;            /* that are elements of the value itself */
};

/* Returns a cursor at a value of the same text, which ends with the value. */
static inline struct wire_cursor wire_cursor_at(const struct wire_cursor *cursor,
                                                const struct wire_span *span) {
    return (struct wire_cursor){cursor->body, span->start, span->end, cursor->problem};
}

/* Skips white space. Returns the next byte, or 0 at the end. */
static inline char wire_cursor_next(struct wire_cursor *cursor) {
    cursor->at = wire_skip_space(cursor->at, cursor->end);
    return wire_peek(cursor->at, cursor->end);
}

/* Returns the quote that ends the string whose first quote is at `at`, or `end`. */
static inline const char *wire_string_end(const char *at, const char *end) {
    at++;
    while (at < end && *at != '"')
        at += *at == '\\' ? 2 : 1;
    return at < end ? at : end;
}

/* Skips the value that begins at the cursor and is inside `depth` lists and objects.
 * Checks only that brackets match and are nested at most WIRE_DEPTH_MAX deep. Returns
 * false with the problem set: Malformed JSON, Nested too deeply. */
bool wire_cursor_skip(struct wire_cursor *cursor, size_t depth,
                      struct wire_span *ret_span);

/* Returns the type of the value at the cursor: "integer", "number", "string", "array",
 * "object", "boolean" or "null"; NULL when there is no value. */
const char *wire_cursor_type(const struct wire_cursor *cursor);

/* Returns the end of the number at the cursor; NULL when the value is another. */
const char *wire_cursor_number_end(const struct wire_cursor *cursor);

/* Returns how many lists are nested along the first elements, 0 when there is no list.
 * Moves the cursor to the first element of the innermost list, or to its ']'. */
size_t wire_cursor_levels(struct wire_cursor *cursor);

/* Sets the line and the column of `place`, counted from 1, where the token at the
 * cursor ends. */
void wire_cursor_locate(const struct wire_cursor *cursor, struct wire_place *place);

/* Sets the problem and returns false: `what` is wrong at the cursor ("']' expected").
 * `place` may be NULL. */
bool wire_refuse_syntax(const struct wire_cursor *cursor, const struct wire_place *place,
                        const char *what);

/* Sets the problem and returns false: what is at the cursor has the wrong type, or is not
 * a value. */
bool wire_refuse_value_type(const struct wire_cursor *cursor, struct wire_place *place,
                            const char *expected);
