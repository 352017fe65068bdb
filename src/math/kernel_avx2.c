/* SPDX-License-Identifier: Apache-2.0 */
#include "math/kernel_sets.h"

#define VECTOR_BYTES 32
#define TILE_VECTORS 2
#define TILE_ROWS    6
#define KERNELS      kernels_avx2
#define KERNELS_NAME "avx2"
#include "math/kernel_body.inc"
