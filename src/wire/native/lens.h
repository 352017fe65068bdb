/* SPDX-License-Identifier: Apache-2.0 */
/* lens.h: reads from JSON what rows have an integer for: valid_lens, and positions.
 *
 * Each function reads the value at `span` of the cursor's text, and returns false with
 * the cursor's problem set. */
#ifndef ATTND_WIRE_NATIVE_LENS_H
#define ATTND_WIRE_NATIVE_LENS_H

#include "base/arena.h"
#include "wire/checks/tensor_check.h"
#include "wire/json/cursor.h"

/* Reads batch->valid_lens and valid_lens_per_query. The batch axes of queries and keys
 * must agree. */
bool wire_native_lens_read(const struct wire_cursor *cursor, const struct wire_span *span,
                           const struct wire_tensor *queries,
                           const struct wire_tensor *keys, struct arena *arena,
                           attn_request *batch);

/* Reads a position for each row: a list for each sequence, or one list for all of them,
 * which are then equally long. */
bool wire_native_positions_read(const struct wire_cursor *cursor,
                                const struct wire_span *span,
                                const struct wire_positions *positions,
                                struct arena *arena, const size_t **ret_list);

#endif
