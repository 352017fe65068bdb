/* SPDX-License-Identifier: Apache-2.0 */
/* blas.h: matrix products that check the native engine, and may take its place. blas.c
 * makes them by OpenBLAS and is the only user of cblas; plain.c by loops, in a build
 * without it.
 *
 * Matrices are row-major; ld is the distance between rows in floats. Sizes and ld are at
 * most INT_MAX, which attn_plan() and attn_model_create() check. Thread-safe for distinct
 * results, after blas_init(). */
#pragma once

#include <attnd/status.h>
#include <stddef.h>

/* The engine that multiplies by these: "openblas", or "plain" in a build without it. */
extern const char *const blas_engine;

/* Checks and prepares the library that multiplies, as attn_init() does. */
attn_status blas_init(attn_error *ret_error);

/* A matrix and the distance between its rows. */
struct blas_matrix {
    const float *data;
    size_t ld;
};

/* Computes c [m, n] = beta * c + a [m, k] * b [n, k]^T. c may be uninitialised when beta
 * is 0. */
void blas_multiply_transposed(size_t m, size_t n, size_t k, struct blas_matrix a,
                              struct blas_matrix b, float beta, float *c, size_t ldc);
