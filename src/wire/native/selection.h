/* SPDX-License-Identifier: Apache-2.0 */
/* selection.h: reads weights_heads and weights_queries from JSON. */
#ifndef ATTND_WIRE_NATIVE_SELECTION_H
#define ATTND_WIRE_NATIVE_SELECTION_H

#include "wire/native/native.h"

/* Reads the two lists of the cursor's text, a scanned body; one that is left out selects
 * all. `request` has its model, lengths and need_weights already. Returns false with the
 * cursor's problem set. */
bool wire_native_selection_read(const struct wire_cursor *cursor,
                                const struct wire_span *members, struct arena *arena,
                                struct wire_request *request);

#endif
