/* SPDX-License-Identifier: Apache-2.0 */
#include "math/kernel_sets.h"

#define KERNELS kernels_avx512
#include "math/kernel_avx512.inc"
