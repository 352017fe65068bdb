/* SPDX-License-Identifier: Apache-2.0 */
/* entering.h: whether rows come from before or from behind a norm. */
#pragma once

#include "math/rows/norm.h"

/* How rows relate to a norm, as far as they show it. */
enum entering { ENTERING_UNCERTAIN, ENTERING_BEFORE, ENTERING_BEHIND };

/* Compares rows, [count, norm->size], with a norm that has weights. Fewer than 4 are
 * uncertain; of many, some are compared. Thread-safe. */
enum entering entering_find(const struct norm *norm, const float *rows, size_t count);
