/* SPDX-License-Identifier: Apache-2.0 */
/* floats.h: reads the numbers of queries, keys and values. */
#pragma once

#include "wire/fields/source.h"

/* Reads the numbers of a value that states its shape, which was checked. Arrays are
 * converted, or used where they are; what is not a finite float32 in them becomes NaN or
 * infinite, see wire_finite_check(). Returns false with the problem of the source set. */
bool wire_numbers_read(const struct wire_source *source, const struct wire_value *value,
                       const float **ret_numbers);
