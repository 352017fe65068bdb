/* SPDX-License-Identifier: Apache-2.0 */
/* library.h: the version of libattnd, and what a program calls before it computes. */
#ifndef ATTND_LIBRARY_H
#define ATTND_LIBRARY_H

#include <attnd/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version: "MAJOR.MINOR.PATCH" of a release, and "MAJOR.MINOR.PATCH+dev" of
 * what comes after it. It is a constant: do not free it. Thread-safe. */
ATTN_API const char *attn_version(void);

/* Prepares OpenBLAS, unless the library was built without it: one thread per call, since
 * the caller's threads share the work. Asks the operating system for the matrix tiles
 * (AMX) of Intel's Xeons, for all threads; they need a large alternate signal stack in
 * threads that have one (AT_MINSIGSTKSZ).
 *
 * Call it once, before other threads run and before any model is loaded.
 *
 * Errors, with one line in ret_error (which may be NULL) that says what to install or to
 * change: ATTN_E_UNSUPPORTED when the BLAS found at run time is not the pthread build of
 * OpenBLAS, or when the address space is limited. The serial build returns wrong results
 * from several threads (OpenMathLib/OpenBLAS#1755). Under a limit OpenBLAS waits for ever
 * for a buffer that it cannot map (OpenMathLib/OpenBLAS#5289). */
ATTN_API attn_status attn_init(attn_error *ret_error);

/* Returns one line with the BLAS and the core that it was chosen for. The text belongs to
 * the library, and is constant after attn_init(). Thread-safe from then on. */
ATTN_API const char *attn_blas_text(void);

/* Computes a small product and drops it, so that BLAS has its buffers before the first
 * request. Call it after attn_init(), on every thread that will compute, on all of them
 * at the same time. */
ATTN_API void attn_warm_up(void);

#ifdef __cplusplus
}
#endif

#endif
