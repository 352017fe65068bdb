/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_json.h: reads tensors from jansson's values.
 *
 * The only file of the number path that knows jansson: plain and slow, the oracle of any
 * reader that works on the text itself. One difference is jansson's: the integer -0 is
 * read as +0. */
#ifndef ATTND_WIRE_TENSOR_JSON_H
#define ATTND_WIRE_TENSOR_JSON_H

#include "base/arena.h"
#include "wire/refuse.h"
#include "wire/tensor.h"

#include <jansson.h>

/* Reads `field`, lists of least..most levels (WIRE_LEVELS_...), all rows equally wide;
 * knows nothing of models. Returns false with *ret_problem set: Wrong type, Wrong rank,
 * Empty tensor, Uneven rows, Out of range, Out of memory. */
bool wire_tensor_read(const json_t *value, const char *field, size_t least, size_t most,
                      struct arena *arena, struct wire_tensor *ret_tensor,
                      struct wire_problem *ret_problem);

/* Checks that `value` is a list with elements, at a place where `levels` levels of lists
 * are wanted in all. Returns false with *ret_problem set. */
bool wire_list_check(const json_t *value, const struct wire_place *place, size_t levels,
                     struct wire_problem *ret_problem);

/* Reads a row of numbers, rounded to float32; `place` is the row's. Returns false with
 * *ret_problem set: Wrong rank for a list among them, Wrong type, Out of range. */
bool wire_row_read(const json_t *row, const struct wire_place *place, float *ret_numbers,
                   struct wire_problem *ret_problem);

#endif
