/* SPDX-License-Identifier: Apache-2.0 */
#include "math/kernels/sets.h"

#define KERNELS kernels_avx512
#include "math/kernels/avx512.inc"
