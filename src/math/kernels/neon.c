/* SPDX-License-Identifier: Apache-2.0 */
/* neon.c: the kernels for NEON, which every arm64 has. */
#include "math/kernels/sets.h"

#include <arm_neon.h>

#define VECTOR_BYTES 16
#define TILE_VECTORS 4
#define TILE_ROWS    6
#define KERNELS      kernels_neon
#define KERNELS_NAME "neon"
#define MULTIPLY_ADD(x, y, sum)                                                          \
    ((vector)vfmaq_f32((float32x4_t)(sum), (float32x4_t)(x), (float32x4_t)(y)))
#define LARGER(a, b)      blend((a) > (b), (a), (b))
#define NOT_LESS(x, y, v) ((vector)(~((x) < (y)) & (lane_mask)(v)))
#define INTERLEAVE_LOW    0, 4, 1, 5
#define INTERLEAVE_HIGH   2, 6, 3, 7
#include "math/kernels/body.inc"
