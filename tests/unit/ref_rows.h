/* SPDX-License-Identifier: Apache-2.0 */
/* ref_rows.h: what becomes of a row before and after it is projected, in float64. */
#ifndef ATTND_TESTS_REF_ROWS_H
#define ATTND_TESTS_REF_ROWS_H

#include "math/model.h"
#include "ref_round.h"

#include <attnd/attention.h>

/* Computes y [out] = x [in] W^T + b. */
void ref_linear(struct ref_rounding *rounding, const float *weight, const float *bias,
                size_t out, size_t in, const double *x, double *y);

/* Norms `size` numbers in place. `weight` and `bias` may be NULL. */
void ref_norm(attn_norm norm, double eps, const float *weight, const float *bias,
              size_t size, double *numbers);

/* Clamps the numbers to -clip..clip; 0 does nothing. */
void ref_clip(double clip, size_t size, double *numbers);

/* Rotates one head [D] to a position on each axis, in a sequence of `length` positions.
 * Pairs are neighbours, or half of the rotated part apart. */
void ref_rotate(const attn_model *model, const size_t position[ATTN_AXES], size_t length,
                bool neighbours, double *head);

/* What makes latent rows, of which the last `shared` numbers are not normed. */
struct ref_latent {
    const float *weight, *bias, *norm;
    size_t size, shared; /* of a row; 0: there are none */
};

/* Returns those of keys and values, or of queries. */
struct ref_latent ref_find_latent(const attn_model *model, bool keys);

/* Projects `rows` float32 rows to the `out` numbers of a projection, normed before when
 * `norm`, and clips them to `clip`; those that are given become float64. The caller frees
 * the result [rows, out], which is NULL when memory runs out. */
double *ref_project(const attn_model *model, struct ref_rounding *rounding,
                    attn_linear which, size_t out, size_t in, double clip,
                    struct ref_latent latent, const float *x, size_t rows, bool norm);

#endif
