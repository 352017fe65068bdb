/* SPDX-License-Identifier: Apache-2.0 */
/* sets.h: the sets of kernels that exist; kernels.c knows which this CPU can run.
 */
#ifndef ATTND_MATH_KERNELS_SETS_H
#define ATTND_MATH_KERNELS_SETS_H

#include "math/kernels/kernels.h"

extern const struct kernels kernels_avx512, kernels_avx512_bf16,
    kernels_avx2;                             /* x86-64 */
extern const struct kernels kernels_neon;     /* arm64 */
extern const struct kernels kernels_portable; /* everywhere */

#endif
