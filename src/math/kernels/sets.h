/* SPDX-License-Identifier: Apache-2.0 */
/* sets.h: the sets of kernels; dispatch.c knows which of them this CPU can run. */
#pragma once

#include "math/kernels/kernels.h"

/* x86-64 */
extern const struct kernels kernels_avx2, kernels_avx512, kernels_avx512_bf16;
extern const struct kernels kernels_amx_f32, kernels_amx_bf16;

/* arm64 */
extern const struct kernels kernels_neon;

/* everywhere */
extern const struct kernels kernels_portable;

/* everywhere in a build for tests: sets for x86-64 by a model of their instructions */
extern const struct kernels model_avx2, model_avx512, model_avx512_bf16;
extern const struct kernels model_amx_f32, model_amx_bf16;
