/* SPDX-License-Identifier: Apache-2.0 */
/* avx512_bf16.c: products of bfloat16, summed in float32, by AVX512-BF16. */
#include "math/kernels/sets.h"

#include <immintrin.h>

#define ELEMENT_NUMBERS 2
typedef int element_in_memory __attribute__((aligned(4), may_alias));
typedef short halves __attribute__((vector_size(64)));
#define SPLAT_ELEMENT(from)                                                              \
    ((vector)_mm512_set1_epi32(*(const element_in_memory *)(from)))
#define FIRST_NUMBERS(x, count) ((vector)((mask)(x) & ((count) == 1 ? 0xffff : -1)))
#define FIRST_OF(from)          ((vector)((bits)SPLAT_ELEMENT(from) << 16))[0]
#define ADD_PRODUCT(sum, x, y)                                                           \
    ((vector)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(x), (__m512bh)(y)))
#define NARROW(low, high) ((vector)_mm512_cvtne2ps_pbh((__m512)(high), (__m512)(low)))
#define PAIR(first, second)                                                              \
    ((vector)__builtin_shufflevector((halves)NARROW(first, second),                      \
                                     (halves)NARROW(first, second), 0, 16, 1, 17, 2, 18, \
                                     3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25,    \
                                     10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))
#define KERNELS kernels_avx512_bf16
#include "math/kernels/avx512.inc"
