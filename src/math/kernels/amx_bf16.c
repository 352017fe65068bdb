/* SPDX-License-Identifier: Apache-2.0 */
/* amx_bf16.c: the kernels for AMX, on x86-64: products of bfloat16 by matrix tiles,
 * summed in float32. The rest is computed by AVX-512. */
#include "math/kernels/sets.h"

#define MATRIX
#define MATRIX_ATTENTION
#define KERNELS      kernels_amx_bf16
#define KERNELS_NAME "amx"
#include "math/kernels/avx512_words.inc"

#include "math/kernels/avx512.inc"
