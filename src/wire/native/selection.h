/* SPDX-License-Identifier: Apache-2.0 */
/* selection.h: reads weights_heads and weights_queries. */
#ifndef ATTND_WIRE_NATIVE_SELECTION_H
#define ATTND_WIRE_NATIVE_SELECTION_H

#include "wire/native/native.h"

/* Reads the two keys of a scanned body; a key that is left out selects all. `call` has
 * its model, lengths and need_weights already. Returns false with *ret_problem set. */
bool wire_native_selection_read(const char *body, const struct wire_span *members,
                                struct arena *arena, struct wire_request *request,
                                struct wire_problem *ret_problem);

#endif
