/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.h: the layer as a good program on top of cblas computes it, some queries at a
 * time. The kernels have to beat it: it is the baseline of attnd-bench, and a second
 * opinion in the tests. */
#pragma once

#include "math/steps.h"

/* Returns whether the tiles can compute a request: scaled dot products of as many key
 * heads as query heads, with nothing between the projections and the softmax but a scale
 * and a mask of a first number of keys, and outputs and all weights or none. */
bool bench_tiles_support(const attn_model *model, const attn_request *request);

/* As attn_run_steps(), on the calling thread alone, with bench_tiles_scratch() bytes of
 * scratch. The model must not be one that serves only. Returns ATTN_E_UNSUPPORTED for
 * what bench_tiles_support() denies. */
attn_status bench_tiles_run(const attn_model *model, const attn_request *request,
                            void *scratch, const attn_result *result, unsigned steps);

/* Returns the bytes of scratch for a request of these sizes, a multiple of
 * ATTN_ALIGNMENT. */
size_t bench_tiles_scratch(const attn_model *model, const attn_sizes *sizes);
