/* SPDX-License-Identifier: Apache-2.0 */
/* amx_f32.c: the kernels for AMX in float32, on x86-64: projections by matrix tiles, of
 * pieces of bfloat16. The rest is computed by AVX-512. */
#include "math/kernels/sets.h"

#define MATRIX
#define KERNELS      kernels_amx_f32
#define KERNELS_NAME "amx"
#define IN_FLOAT32   kernels_avx512
#define FETCH_KEYS   8
#define FETCH_VALUES 16
#include "math/kernels/avx512.inc"
