/* SPDX-License-Identifier: Apache-2.0 */
/* avx512_bf16.c: the kernels for AVX512-BF16, on x86-64: products of bfloat16, summed in
 * float32. */
#include "math/kernels/sets.h"

#include <immintrin.h>

#define K_STEP 2
typedef int memory_word __attribute__((aligned(4), may_alias));
typedef short halves __attribute__((vector_size(64)));
#define SPLAT_WORD(from)      ((vector)_mm512_set1_epi32(*(const memory_word *)(from)))
#define FACTOR_BITS(n)        ((n) == 0 ? 0xffff : ~0xffff)
#define KEEP_FACTORS(x, kept) ((vector)((lane_mask)(x) & (kept)))
#define FACTORS(x, n)         ((vector)((bits)(x) >> 16 * (n) << 16))
#define FIRST_FACTOR(from)    ((vector)((bits)SPLAT_WORD(from) << 16))[0]
#define ADD_PRODUCT(sum, x, y)                                                           \
    ((vector)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(x), (__m512bh)(y)))
#define CONVERT_BF16(low, high)                                                          \
    ((vector)_mm512_cvtne2ps_pbh((__m512)(high), (__m512)(low)))
#define HALVES_IN_TURNS                                                                  \
    0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11,    \
        27, 12, 28, 13, 29, 14, 30, 15, 31
#define PAIR_BF16(first, second)                                                         \
    ((vector)__builtin_shufflevector((halves)CONVERT_BF16(first, second),                \
                                     (halves)CONVERT_BF16(first, second),                \
                                     HALVES_IN_TURNS))
#define KERNELS kernels_avx512_bf16
#include "math/kernels/avx512.inc"
