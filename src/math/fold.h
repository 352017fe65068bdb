/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h: folds two linear maps that follow each other into one. */
#pragma once

#include <stddef.h>

/* Computes ret_product = a * b + addend in double precision, rounded once to float32.
 *
 * a is [rows, inner], b is [inner, columns], and addend and ret_product are [rows,
 * columns]; addend may be NULL for zeros. All are row-major; ret_product must not overlap
 * the others. Thread-safe; allocates nothing. */
void fold_product(const float *a, const float *b, const float *addend, size_t rows,
                  size_t inner, size_t columns, float *ret_product);
