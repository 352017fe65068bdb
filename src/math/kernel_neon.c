/* SPDX-License-Identifier: Apache-2.0 */
#include "math/kernel_sets.h"

#define VECTOR_BYTES 16
#define TILE_VECTORS 4
#define TILE_ROWS    6
#define KERNELS      kernels_neon
#define KERNELS_NAME "neon"
#include "math/kernel_body.inc"
