/* SPDX-License-Identifier: Apache-2.0 */
/* native_select.h: weights_heads and weights_queries of a request. */
#ifndef ATTND_WIRE_NATIVE_SELECT_H
#define ATTND_WIRE_NATIVE_SELECT_H

#include "wire/native.h"

/* Reads the two keys of a scanned body, where they are left out selects all. `call` has
 * its model, lengths and need_weights already. Returns false with *ret_problem set. */
bool wire_selection_read(const char *body, const struct wire_span *members,
                         struct arena *arena, struct wire_call *call,
                         struct wire_problem *ret_problem);

/* Makes `indices`, none of which is negative, one of the call's two lists:
 * WIRE_WEIGHTS_HEADS or _QUERIES; borrows them. Takes a byte of the arena for each that
 * there may be. Returns false with *ret_problem set. */
bool wire_selection_take(struct wire_call *call, enum wire_member member,
                         const size_t *indices, size_t count, struct arena *arena,
                         struct wire_problem *ret_problem);

/* Checks that weights are asked for before some of them are selected. Returns false with
 * *ret_problem set. */
bool wire_selection_check(const struct wire_call *call, struct wire_problem *ret_problem);

#endif
