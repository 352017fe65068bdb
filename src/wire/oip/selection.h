/* SPDX-License-Identifier: Apache-2.0 */
/* selection.h: reads weights_heads and weights_queries, which may be inputs or, since a
 * parameter cannot be a list, strings such as "0,3". */
#pragma once

#include "wire/oip/numbers.h"

/* Returns the most bytes of an arena that reading both needs besides their inputs; the
 * model has `num_heads`. SIZE_MAX when that is too large to be computed. */
size_t wire_oip_selection_cost(const struct wire_oip_scan *scan, size_t num_heads);

/* Sets both in a request whose model, lengths and need_weights are set. Returns false
 * with the reader's problem set. */
bool wire_oip_selection_read(const struct wire_oip_reader *reader,
                             const struct wire_oip_scan *scan,
                             struct wire_request *request);
