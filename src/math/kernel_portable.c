/* SPDX-License-Identifier: Apache-2.0 */
#include "math/kernel_sets.h"

#define VECTOR_BYTES 16
#define TILE_VECTORS 2
#define TILE_ROWS    4
#define KERNELS      kernels_portable
#define KERNELS_NAME "portable"
#include "math/kernel_body.inc"
