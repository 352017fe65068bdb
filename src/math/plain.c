/* SPDX-License-Identifier: Apache-2.0 */
/* plain.c: matrix products by plain loops, in place of blas.c in builds without OpenBLAS.
 * They check native engines at load, and serve where one is wrong. */
#include "math/blas.h"

#include <attnd/library.h>

enum { PARTIAL_SUMS = 16 }; /* of one product; the compiler has them in vectors */

const char *const blas_engine = "plain";

attn_status blas_init(attn_error *ret_error) {
    (void)ret_error;
    return ATTN_OK;
}

const char *attn_blas_text(void) {
    return "plain loops, built without OpenBLAS";
}

static float sum_products(const float *a, const float *b, size_t k) {
    float sums[PARTIAL_SUMS] = {0};
    size_t whole = k - k % PARTIAL_SUMS;

    for (size_t i = 0; i < whole; i += PARTIAL_SUMS) {
        for (size_t lane = 0; lane < PARTIAL_SUMS; lane++)
            sums[lane] += a[i + lane] * b[i + lane];
    }
    for (size_t i = whole; i < k; i++)
        sums[i - whole] += a[i] * b[i];
    for (size_t half = PARTIAL_SUMS / 2; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    }
    return sums[0];
}

/* A row of b, which may be a row of weights, stays in the cache for all rows of a. */
void blas_multiply_transposed(size_t m, size_t n, size_t k, struct blas_matrix a,
                              struct blas_matrix b, float beta, float *c, size_t ldc) {
    for (size_t column = 0; column < n; column++) {
        for (size_t row = 0; row < m; row++) {
            float *at = &c[row * ldc + column];
            float sum = sum_products(a.data + row * a.ld, b.data + column * b.ld, k);
            *at = beta == 0.0F ? sum : beta * *at + sum;
        }
    }
}
