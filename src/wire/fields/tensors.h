/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: reads queries, keys and values. Their lengths are query_lens and key_lens
 * where the rows of a batch have no padding. Each function returns false with the problem
 * of the source set. */
#pragma once

#include "wire/fields/source.h"

/* Refuses lengths that no tensor needs, so that they are not ignored silently: Missing
 * key, Wrong rank. */
bool wire_lens_check_needed(const struct wire_source *source);

/* wire_tensor_source whose context is a struct wire_source. Where the request states
 * shapes, rows are not read yet. */
wire_tensor_source wire_fields_read_tensor;

/* Reads the rows that wire_fields_read_tensor() has left. */
bool wire_tensor_rows_read(const struct wire_source *source,
                           struct wire_tensors *tensors);
