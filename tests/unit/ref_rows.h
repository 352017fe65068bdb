/* SPDX-License-Identifier: Apache-2.0 */
/* ref_rows.h: what becomes of a row before and after it is projected, in float64. */
#ifndef ATTND_TESTS_REF_ROWS_H
#define ATTND_TESTS_REF_ROWS_H

#include "math/model.h"

#include <attnd/attention.h>

/* Computes y [out] = x [in] W^T + b. */
void ref_linear(const float *weight, const float *bias, size_t out, size_t in,
                const double *x, double *y);

/* Norms `size` numbers in place. `bias` may be NULL. */
void ref_norm(attn_norm norm, double eps, const float *weight, const float *bias,
              size_t size, double *numbers);

/* Clamps the numbers to -clip..clip; 0 does nothing. */
void ref_clip(double clip, size_t size, double *numbers);

/* Rotates one head [D] to a position on each axis, in a sequence of so many positions. */
void ref_rotate(const attn_model *model, const size_t position[ATTN_AXES], size_t length,
                double *head);

#endif
