/* SPDX-License-Identifier: Apache-2.0 */
#include "math/kernel_sets.h"

#define VECTOR_BYTES 64
#define TILE_VECTORS 2
#define TILE_ROWS    12
#define KERNELS      kernels_avx512
#define KERNELS_NAME "avx512"
#include "math/kernel_body.inc"
