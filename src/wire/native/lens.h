/* SPDX-License-Identifier: Apache-2.0 */
/* lens.h: reads valid_lens from JSON. */
#ifndef ATTND_WIRE_NATIVE_LENS_H
#define ATTND_WIRE_NATIVE_LENS_H

#include "base/arena.h"
#include "wire/json/cursor.h"
#include "wire/tensor.h"

#include <attnd/attention.h>

/* Reads the value at `span` of the cursor's text into batch->valid_lens and
 * valid_lens_per_query. The batch axes of queries and keys must agree. Returns false with
 * the cursor's problem set. */
bool wire_native_lens_read(const struct wire_cursor *cursor, const struct wire_span *span,
                           const struct wire_tensor *queries,
                           const struct wire_tensor *keys, struct arena *arena,
                           attn_request *batch);

#endif
