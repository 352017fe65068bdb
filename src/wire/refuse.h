/* SPDX-License-Identifier: Apache-2.0 */
/* refuse.h: the errors that more than one reader of lists finds, worded once.
 *
 * Each sets *ret_problem and returns false, so that a reader ends in `return
 * wire_refuse_...`. */
#ifndef ATTND_WIRE_REFUSE_H
#define ATTND_WIRE_REFUSE_H

#include "wire/problem.h"

#include <stdbool.h>
#include <stdint.h>

#define WIRE_PLACE_DEPTH_MAX 3
#define WIRE_SHAPE_ANY       SIZE_MAX /* prints as null */

/* Where in the request: `field`[index[0]][index[1]]... */
struct wire_place {
    const char *field;
    size_t depth; /* indices in use */
    size_t index[WIRE_PLACE_DEPTH_MAX];
};

/* A value of the wrong type. `expected` and `got` are names of JSON types. */
bool wire_refuse_type(const struct wire_place *place, const char *expected,
                      const char *got, struct wire_problem *ret_problem);

/* Too few or too many levels of lists: `got` instead of `least`..`most`. */
bool wire_refuse_levels(const struct wire_place *place, size_t least, size_t most,
                        size_t got, struct wire_problem *ret_problem);

/* A list without elements. */
bool wire_refuse_empty(const struct wire_place *place, struct wire_problem *ret_problem);

/* The row at `place` has `got` elements, not `expected`; `reason` says why it must. */
bool wire_refuse_uneven(const struct wire_place *place, size_t expected, size_t got,
                        const char *reason, struct wire_problem *ret_problem);

/* A number that rounds to more than the largest float32. */
bool wire_refuse_number(const struct wire_place *place, double got,
                        struct wire_problem *ret_problem);

/* A valid length outside 0..`most`. */
bool wire_refuse_length(const struct wire_place *place, size_t most, int64_t got,
                        struct wire_problem *ret_problem);

/* Writes a shape as JSON into problem->expected or problem->got: [2,null,4]. */
void wire_shape_print(char ret_json[128], const size_t *shape, size_t levels);

#endif
