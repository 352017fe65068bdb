/* SPDX-License-Identifier: Apache-2.0 */
/* entering.h: whether rows come from before or from behind a norm. Thread-safe. */
#pragma once

#include "math/rows/norm.h"

enum entering { ENTERING_BEFORE, ENTERING_BEHIND };

/* Writes 1 / weight, and 0 where a weight is so small that this would amplify noise; all
 * are [count]. */
void entering_invert(const float *weight, size_t count, float *ret_inverse);

/* Returns whether rows, [count, norm->size], look as if they were before or behind a norm
 * whose weights have that inverse. Fewer than 4 look like neither; of many, some are
 * compared. */
bool entering_is(enum entering where, const struct norm *norm, const float *inverse,
                 const float *rows, size_t count);
