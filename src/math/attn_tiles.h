/* SPDX-License-Identifier: Apache-2.0 */
/* attn_tiles.h: the layer as a good program over cblas computes it, block by block. It is
 * what the kernels have to beat: the baseline of attnd bench, and a second opinion in the
 * tests. */
#ifndef ATTND_MATH_ATTN_TILES_H
#define ATTND_MATH_ATTN_TILES_H

#include <attnd/attention.h>

/* As attn_run(), on the calling thread alone, but allocates its own scratch and knows
 * neither additive scoring nor mean weights: ATTND_E_UNSUPPORTED. ATTND_E_NOMEM. */
attnd_status attn_tiles_run(const attn_model *model, const attn_request *request,
                            const attn_result *result);

#endif
