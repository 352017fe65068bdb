/* SPDX-License-Identifier: Apache-2.0 */
/* blas.c: matrix products by OpenBLAS, which it checks and prepares. */
#include "math/blas.h"

#include "base/error.h"

#include <attnd/library.h>
#include <cblas.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* Values of openblas_get_parallel(). */
enum { BLAS_SERIAL = 0, BLAS_PTHREADS = 1 };

#ifdef __aarch64__
#define LIBRARY_LINK "libopenblas.so.0-aarch64-linux-gnu"
#else
#define LIBRARY_LINK "libopenblas.so.0-x86_64-linux-gnu"
#endif

const char *const blas_engine = "openblas";

static char openblas_text[160] = "BLAS: attn_init() was not called";

attn_status blas_init(attn_error *ret_error) {
    struct rlimit limit;
    int parallel = openblas_get_parallel();

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "the address space is limited to %llu bytes, and OpenBLAS may "
                         "wait for ever for memory under such a limit; remove it "
                         "(ulimit -v unlimited) and limit memory by a cgroup",
                         (unsigned long long)limit.rlim_cur);
    if (parallel != BLAS_PTHREADS)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "the OpenBLAS found is the %s build (%s), but attnd needs the "
                         "pthread build; install libopenblas0-pthread and select it with "
                         "'update-alternatives --config " LIBRARY_LINK "'",
                         parallel == BLAS_SERIAL ? "serial" : "OpenMP",
                         openblas_get_config());

    openblas_set_num_threads(1);
    snprintf(openblas_text, sizeof openblas_text, "%s, core %s", openblas_get_config(),
             openblas_get_corename());
    return ATTN_OK;
}

const char *attn_blas_text(void) {
    return openblas_text;
}

/* A product with one row goes to gemv, since gemm would pack b for nothing. c is zeroed
 * before gemv: some kernels multiply what c holds by a beta of 0, and keep a NaN. */

void blas_multiply_transposed(size_t m, size_t n, size_t k, struct blas_matrix a,
                              struct blas_matrix b, float beta, float *c, size_t ldc) {
    if (m == 1) {
        if (beta == 0.0F)
            memset(c, 0, n * sizeof *c);
        cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)n, (int)k, 1.0F, b.data, (int)b.ld,
                    a.data, 1, beta, c, 1);
    } else {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1.0F,
                    a.data, (int)a.ld, b.data, (int)b.ld, beta, c, (int)ldc);
    }
}
