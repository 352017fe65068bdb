/* SPDX-License-Identifier: Apache-2.0 */
/* blas.h: the products that the layer is made of. blas.c is the only user of cblas.
 *
 * Matrices are row-major; ld is the distance between rows in floats. Every size and ld is
 * at most INT_MAX (attn_plan() and attn_model_create() see to it). Thread-safe. */
#ifndef ATTND_MATH_BLAS_H
#define ATTND_MATH_BLAS_H

#include <attnd/status.h>
#include <stddef.h>

/* A matrix and the distance between its rows. */
struct blas_matrix {
    const float *data;
    size_t ld;
};

/* c [m, n] = alpha * a [m, k] * b [n, k]^T */
void blas_multiply_transposed(size_t m, size_t n, size_t k, float alpha,
                              struct blas_matrix a, struct blas_matrix b, float *c,
                              size_t ldc);

/* c [m, n] = beta * c + a [m, k] * b [k, n] */
void blas_multiply(size_t m, size_t n, size_t k, struct blas_matrix a,
                   struct blas_matrix b, float beta, float *c, size_t ldc);

#endif
