/* SPDX-License-Identifier: Apache-2.0 */
/* portable.c: the kernels in C alone, for any CPU: slow, but the same interface. */
#include "math/kernels/sets.h"

#define VECTOR_BYTES            16
#define TILE_VECTORS            2
#define TILE_ROWS               4
#define KERNELS                 kernels_portable
#define KERNELS_NAME            "portable"
#define MULTIPLY_ADD(x, y, sum) ((x) * (y) + (sum))
#define LARGER(a, b)            blend((a) > (b), (a), (b))
#define NOT_LESS(x, y, v)       ((vector)(~((x) < (y)) & (lane_mask)(v)))
#define INTERLEAVE_LOW          0, 4, 1, 5
#define INTERLEAVE_HIGH         2, 6, 3, 7
#include "math/kernels/body.inc"
