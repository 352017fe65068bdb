/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.h: the layer as a good program on top of cblas computes it, some queries at a
 * time. The kernels have to beat it: it is the baseline of attnd bench, and a second
 * opinion in the tests. */
#ifndef ATTND_MATH_TILES_H
#define ATTND_MATH_TILES_H

#include "math/steps.h"

/* As attn_run_steps(), on the calling thread alone, with attn_tiles_scratch() bytes of
 * scratch. The model must not be one that serves only. Returns ATTN_E_UNSUPPORTED for
 * additive scoring, mean weights, selected ones, and what plan_is_plain() excludes. */
attn_status attn_tiles_run(const attn_model *model, const attn_request *request,
                           void *scratch, const attn_result *result, unsigned steps);

/* Returns the bytes of scratch for a request of these sizes, a multiple of
 * ATTN_ALIGNMENT. */
size_t attn_tiles_scratch(const attn_model *model, const attn_sizes *sizes);

#endif
