/* SPDX-License-Identifier: Apache-2.0 */
/* avx512.c: the kernels for AVX-512 in float32, on x86-64. */
#include "math/kernels/sets.h"

#define FETCH_WEIGHTS 32
#define FETCH_OUTPUTS 256
#define FETCH_KEYS    8
#define FETCH_VALUES  16
#define KERNELS       kernels_avx512
#include "math/kernels/avx512.inc"
