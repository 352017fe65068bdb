/* SPDX-License-Identifier: Apache-2.0 */
/* avx2.c: the kernels for AVX2 with FMA, on x86-64. */
#include "math/kernels/sets.h"

#include <immintrin.h>

#define VECTOR_BYTES 32
#define TILE_VECTORS 2
#define TILE_ROWS    6
#define KERNELS      kernels_avx2
#define KERNELS_NAME "avx2"
#define MULTIPLY_ADD(x, y, sum)                                                          \
    ((vector)_mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(sum)))
#define LARGER(a, b) ((vector)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define NOT_LESS(x, y, v)                                                                \
    ((vector)_mm256_and_ps(_mm256_cmp_ps((__m256)(x), (__m256)(y), _CMP_NLT_UQ),         \
                           (__m256)(v)))
#define WIDEN(x)        ((bits)_mm256_cvtepu16_epi32((__m128i)(x)))
#define INTERLEAVE_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define INTERLEAVE_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#include "math/kernels/body.inc"
