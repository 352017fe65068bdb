/* SPDX-License-Identifier: Apache-2.0 */
/* reserve.h: reserves memory for a request before its fields are read. */
#pragma once

#include "wire/fields/source.h"

/* Reserves `extra` bytes and the most that reading all values needs, when there are at
 * most `num_heads` heads. Allocates nothing. Returns false with the problem set. */
bool wire_source_reserve(const struct wire_source *source, size_t num_heads,
                         size_t extra);
