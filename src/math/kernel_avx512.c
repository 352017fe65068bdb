/* SPDX-License-Identifier: Apache-2.0 */
#include "math/kernel_sets.h"

#include <immintrin.h>

#define VECTOR_BYTES 64
#define TILE_VECTORS 2
#define TILE_ROWS    12
#ifndef KERNELS
#define KERNELS kernels_avx512
#endif
#define KERNELS_NAME "avx512"
#define MULTIPLY_ADD(x, y, sum)                                                          \
    ((vector)_mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(sum)))
#define LARGER(a, b) ((vector)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define ROUND(x)                                                                         \
    ((vector)_mm512_roundscale_ps((__m512)(x),                                           \
                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define SCALE(p, whole) ((vector)_mm512_scalef_ps((__m512)(p), (__m512)(whole)))
#define INTERLEAVE_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define INTERLEAVE_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#include "math/kernel_body.inc"
