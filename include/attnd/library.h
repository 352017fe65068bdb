/* SPDX-License-Identifier: Apache-2.0 */
/* library.h: what is called once, before anything else of libattnd. */
#ifndef ATTND_LIBRARY_H
#define ATTND_LIBRARY_H

#include <attnd/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version, "MAJOR.MINOR.PATCH"; constant. Thread-safe. */
ATTN_API const char *attn_version(void);

/* Prepares BLAS: one thread per call, since parallelism belongs to the caller's threads.
 *
 * Call it once, before other threads run and before any model is loaded. Refuses with
 * ATTN_E_UNSUPPORTED, saying what to install or unset, when the BLAS that was found at
 * run time is not OpenBLAS's pthread build (the serial build returns wrong results from
 * several threads, OpenMathLib/OpenBLAS#1755) or when the address space is limited
 * (OpenBLAS waits for ever for a buffer that it cannot map, OpenMathLib/OpenBLAS#5289).
 */
ATTN_API attn_status attn_init(attn_error *ret_error);

/* Returns one line that says which BLAS runs and for which core; constant after
 * attn_init(). */
ATTN_API const char *attn_blas_text(void);

/* Computes a small product and drops it, so that BLAS has its buffers before the first
 * request. Call it on every thread that will compute, on all at the same time. */
ATTN_API void attn_warm_up(void);

#ifdef __cplusplus
}
#endif

#endif
