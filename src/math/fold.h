/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h: two linear maps in a row become one. */
#ifndef ATTND_MATH_FOLD_H
#define ATTND_MATH_FOLD_H

#include <stddef.h>

/* Computes ret_product = a b + addend in double precision, rounded once to float32.
 *
 * a is [rows, inner], b [inner, columns], addend [rows, columns] or NULL for zeros, and
 * `sums` scratch [columns]. All are row-major. */
void fold(const float *a, const float *b, const float *addend, size_t rows, size_t inner,
          size_t columns, double *sums, float *ret_product);

#endif
