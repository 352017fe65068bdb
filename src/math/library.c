/* SPDX-License-Identifier: Apache-2.0 */
/* library.c: the version of the library, and what a program calls first: library.h. */
#include "math/blas.h"
#include "math/kernels/kernels.h"

#include <attnd/library.h>
#include <string.h>

const char *attn_version(void) {
    return ATTND_VERSION;
}

attn_status attn_init(attn_error *ret_error) {
    const char *refused; /* it matters only to a model whose engine needs tiles */

    attn_status status = blas_init(ret_error);
    if (status == ATTN_OK)
        kernels_have_matrix(&refused);
    return status;
}

void attn_warm_up(void) {
    enum { SIZE = 64 };
    float a[SIZE * SIZE], product[SIZE * SIZE];
    const struct blas_matrix matrix = {a, SIZE};

    memset(a, 0, sizeof a);
    for (int i = 0; i < 16; i++) /* long enough for the threads to overlap */
        blas_multiply_transposed(SIZE, SIZE, SIZE, matrix, matrix, 0.0F, product, SIZE);
}
