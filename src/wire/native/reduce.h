/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: reads from JSON what attention weights are reduced to. */
#ifndef ATTND_WIRE_NATIVE_REDUCE_H
#define ATTND_WIRE_NATIVE_REDUCE_H

#include "base/arena.h"
#include "wire/native/native.h"
#include "wire/options.h"

/* Returns how many ranges the text of targets can have. */
size_t wire_native_targets_room(const struct wire_span *span);

/* Returns whether targets have a list for each sequence, which may begin with null. */
bool wire_native_targets_batched(const struct wire_cursor *cursor);

/* Reads spans, top_k, top_in, targets and block of a request whose tensors are set, and
 * checks them against the words of need. Returns false with the cursor's problem set. */
bool wire_native_reduce_read(const struct wire_cursor *text,
                             const struct wire_span *members,
                             const struct wire_need *need, struct arena *arena,
                             struct wire_request *request);

#endif
