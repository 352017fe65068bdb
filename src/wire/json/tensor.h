/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h: reads tensors from nested lists in the text of a request, in one pass. */
#pragma once

#include "base/arena.h"
#include "wire/json/list.h"
#include "wire/tensor.h"

/* Returns the most bytes of an arena that wire_tensor_read() allocates; SIZE_MAX when
 * that is too large to be computed. */
size_t wire_tensor_cost(const struct wire_span *span);

/* The lists that a tensor may have. */
struct wire_tensor_form {
    size_t min, max; /* levels (WIRE_LEVELS_...); with heads, one more is counted */
    bool heads;      /* the innermost two are one row: heads, and the numbers of each */
    enum wire_words words;
};

/* Reads the tensor at `span` of the cursor's text, in which all rows have the same width.
 * Returns false with the cursor's problem set to the first error in the text: Malformed
 * JSON, Wrong type, Wrong rank, Empty tensor, Uneven rows, Out of range, Out of
 * memory. */
bool wire_tensor_read(const struct wire_cursor *cursor, const struct wire_span *span,
                      const char *field, const struct wire_tensor_form *form,
                      struct arena *arena, struct wire_tensor *ret_tensor);
