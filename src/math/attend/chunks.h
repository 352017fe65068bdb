/* SPDX-License-Identifier: Apache-2.0 */
/* chunks.h: attends with the kernels, chunk by chunk of the keys. A sequence of more than
 * KERNEL_CHUNK_KEYS keys is summed in chunks, which are merged in their order. So threads
 * do not decide the order of a sum, nor do other queries, but for direct sequences.
 *
 * `whole` is the panel over all keys, from work_describe(). */
#pragma once

#include "math/attend/work.h"

/* Writes the scores that are wanted. Comes before the panel attends, which may overwrite
 * its queries. */
void chunks_score(const struct panel_work *work, const struct query_panel *whole);

/* Attends to all keys, in scratch of the thread. Writes outputs and weights, and adds to
 * `sums` unless that is NULL. */
void chunks_attend(const struct panel_work *work, const struct query_panel *whole,
                   attn_head_sums *sums);

/* Attends to the chunk that `work` is at. The result goes to `partials`, which has room
 * for scratch.partial_floats of each chunk of the panel. Weights are written, but are
 * relative to those of the chunk. */
void chunks_attend_one(const struct panel_work *work, const struct query_panel *whole,
                       float *partials);

/* Does the rest of chunks_attend(), when every chunk was attended to. */
void chunks_merge(const struct panel_work *work, const struct query_panel *whole,
                  float *partials);
