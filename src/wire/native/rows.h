/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: reads from JSON what belongs to the rows of a request: valid_lens and
 * positions, the heads and queries that are selected, and what weights are reduced to. */
#pragma once

#include "wire/checks/tensor_check.h"
#include "wire/native/native.h"
#include "wire/options.h"

/* A body that is being decoded. */
struct wire_native_body {
    struct wire_cursor text; /* for wire_cursor_at() */
    const struct wire_span *members;
    struct arena *arena;
    bool heads_axis, targets_alone; /* see struct wire_native_scan */
};

/* Returns how many ranges the text of targets can have. */
size_t wire_native_targets_room(const struct wire_span *span);

/* Returns whether targets have a list for each sequence, which may begin with null. */
bool wire_native_targets_batched(const struct wire_cursor *cursor);

/* Reads all of these of a request whose model, need_weights and tensors are set, and
 * checks them against the words of need. What is left out stays as it is. Returns false
 * with the problem of the text set. */
bool wire_native_rows_read(const struct wire_native_body *body,
                           const struct wire_tensors *tensors,
                           const struct wire_need *need, struct wire_request *request);
