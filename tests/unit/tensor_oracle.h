/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_oracle.h: reads tensors from the values of jansson.
 *
 * It is plain and slow, and must stay so: it is the oracle of the reader that works on
 * the text itself (wire/json/tensor.h). They differ in the integer -0, which jansson
 * reads as +0, and in integers over 64 bits and numbers over the largest double, which
 * jansson refuses. */
#ifndef ATTND_TESTS_TENSOR_ORACLE_H
#define ATTND_TESTS_TENSOR_ORACLE_H

#include "base/arena.h"
#include "wire/refuse.h"
#include "wire/tensor.h"

#include <jansson.h>

/* Like wire_tensor_read(), but it reports errors of lists before those of numbers. */
bool oracle_tensor_read(const json_t *value, const char *field, size_t min, size_t max,
                        struct arena *arena, struct wire_tensor *ret_tensor,
                        struct wire_problem *ret_problem);

/* Reads a whole text as a tensor, with the reader that is tested. */
bool oracle_read_text(const char *text, size_t size, struct arena *arena,
                      struct wire_tensor *ret_tensor, struct wire_problem *ret_problem);

/* Reads any text with both. Returns what they disagree on, or NULL. */
const char *oracle_check(const char *text, size_t size, struct arena arenas[2],
                         bool *ret_accepted);

#endif
