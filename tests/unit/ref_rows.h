/* SPDX-License-Identifier: Apache-2.0 */
/* ref_rows.h: what becomes of a row before and after it is projected, in float64. */
#ifndef ATTND_TESTS_REF_ROWS_H
#define ATTND_TESTS_REF_ROWS_H

#include "math/model.h"

/* Computes y [out] = x [in] W^T + b. */
void ref_linear(const float *weight, const float *bias, size_t out, size_t in,
                const double *x, double *y);

/* Norms `size` numbers in place. `weight` and `bias` may be NULL. */
void ref_norm(attn_norm norm, double eps, const float *weight, const float *bias,
              size_t size, double *numbers);

/* Clamps the numbers to -clip..clip; 0 does nothing. */
void ref_clip(double clip, size_t size, double *numbers);

/* Rotates one head [D] to a position, in a sequence of `length` positions. Pairs are
 * neighbours, or half of the rotated part apart. */
void ref_rotate(const attn_model *model, size_t position, size_t length, bool neighbours,
                double *head);

#endif
