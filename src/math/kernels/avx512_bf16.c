/* SPDX-License-Identifier: Apache-2.0 */
/* avx512_bf16.c: the kernels for AVX512-BF16, on x86-64: products of bfloat16, summed in
 * float32. */
#include "math/kernels/sets.h"

#define KERNELS kernels_avx512_bf16
#include "math/kernels/avx512_words.inc"

#include "math/kernels/avx512.inc"
