/* SPDX-License-Identifier: Apache-2.0 */
/* floats.h: reads floats of fields. Arrays are converted,
 * or used where they are; what is not a finite float32 in them becomes NaN or infinite,
 * see wire_finite_check(). Each function returns false with the problem of the source
 * set. */
#pragma once

#include "wire/checks/given.h"
#include "wire/fields/source.h"

/* Reads the numbers of a value that states its shape, which was checked. */
bool wire_numbers_read(const struct wire_source *source, const struct wire_value *value,
                       const float **ret_numbers);

/* Reads a list with a number for each head. */
bool wire_head_list_read(const struct wire_source *source, const struct wire_value *value,
                         const float **ret_list, size_t *ret_count);

/* Reads a bias: [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk]. */
bool wire_bias_read(const struct wire_source *source, const struct wire_value *value,
                    struct wire_bias *ret_bias);
