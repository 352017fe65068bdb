/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h: makes one linear map of two that follow each other. */
#ifndef ATTND_MATH_FOLD_H
#define ATTND_MATH_FOLD_H

#include <stddef.h>

/* Computes ret_product = a b + addend in double precision, rounded once to float32.
 *
 * a is [rows, inner], b [inner, columns], and addend [rows, columns] or NULL for zeros.
 * All are row-major; ret_product must not overlap them. Thread-safe; allocates nothing.
 */
void fold_product(const float *a, const float *b, const float *addend, size_t rows,
                  size_t inner, size_t columns, float *ret_product);

#endif
