/* SPDX-License-Identifier: Apache-2.0 */
/* refuse.h: errors that more than one reader of requests finds, worded once.
 *
 * Each function sets *ret_problem and returns false, so that a reader can end with
 * `return wire_refuse_...`. */
#pragma once

#include "wire/problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_PLACE_DEPTH_MAX 4
#define WIRE_SHAPE_ANY       SIZE_MAX /* prints as null */

/* A position in a request: `field`[index[0]][index[1]]... */
struct wire_place {
    const char *field;
    size_t depth; /* how many indices it has */
    size_t index[WIRE_PLACE_DEPTH_MAX];
    size_t line, column; /* in the text, counted from 1; 0 when not known */
};

/* Returns the position of element `i` of an array of that shape, [rank]. */
struct wire_place wire_place_of(const char *field, const size_t *shape, size_t rank,
                                size_t i);

/* Writes `field`[index[0]][index[1]]..., cut to `size` bytes. */
void wire_place_print(char *ret_text, size_t size, const struct wire_place *place);

/* Returns what to send in a field instead of a value of that JSON type, or NULL.
 * Constant. */
const char *wire_type_remedy(const char *field, const char *got);

/* Bytes: line, column, a known field and three indices; numbers have up to 20 digits. */
#define WIRE_PLACE_TEXT_MAX 160

/* Writes the position in the text, if it is known, and in the request: "line 1, column
 * 13: keys[0]". */
void wire_place_describe(char ret_text[WIRE_PLACE_TEXT_MAX],
                         const struct wire_place *place);

/* A value of the wrong type. `expected` and `got` are names of JSON types. */
bool wire_refuse_type(const struct wire_place *place, const char *expected,
                      const char *got, struct wire_problem *ret_problem);

/* Too few or too many levels of lists: `got` instead of `min` to `max`. */
bool wire_refuse_levels(const struct wire_place *place, size_t min, size_t max,
                        size_t got, struct wire_problem *ret_problem);

/* A list without elements. */
bool wire_refuse_empty(const struct wire_place *place, struct wire_problem *ret_problem);

/* The row at `place` has `got` elements, but needs `expected`; `reason` says why. */
bool wire_refuse_uneven(const struct wire_place *place, size_t expected, size_t got,
                        const char *reason, struct wire_problem *ret_problem);

/* A number that is out of range for float32: beyond -max..max. `got` is infinite when it
 * is out of range for double as well. */
bool wire_refuse_float_range(const struct wire_place *place, double got, double max,
                             struct wire_problem *ret_problem);

/* A number that is not whole, where an integer is needed. Its text is the `digits`
 * characters at `got`. */
bool wire_refuse_fraction(const struct wire_place *place, const char *got, size_t digits,
                          struct wire_problem *ret_problem);

/* An integer outside `min`..`max`; `limit` is the reason for the range. Its text is the
 * `digits` characters at `got`. */
bool wire_refuse_int_range(const struct wire_place *place, const char *got, size_t digits,
                           const char *limit, int64_t min, size_t max,
                           struct wire_problem *ret_problem);

/* A float32 that is not finite; the client may have sent a number that is too large. */
bool wire_refuse_not_finite(const struct wire_place *place, float got,
                            struct wire_problem *ret_problem);

/* --- what errors consist of --- */

/* Writes a shape as JSON into problem->expected or problem->got: [2,null,4]. */
void wire_shape_print(char ret_json[WIRE_SHAPE_PRINT_MAX], const size_t *shape,
                      size_t levels);

/* Writes a range as JSON: [0,5]. */
void wire_range_print(char ret_json[WIRE_SHAPE_PRINT_MAX], int64_t min, size_t max);

/* Writes as JSON how many levels or axes there must be: 2 or [2,3]. */
void wire_levels_print(char ret_json[WIRE_SHAPE_PRINT_MAX], size_t min, size_t max);

/* Writes names as a list, cut to `size` bytes: "a, b and c", where `word` is "and". */
void wire_names_print(char *ret_text, size_t size, const char *const *names, size_t count,
                      const char *word);
