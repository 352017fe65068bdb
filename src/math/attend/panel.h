/* SPDX-License-Identifier: Apache-2.0 */
/* panel.h: the attention of one panel of queries, in one head or in all of them. */
#ifndef ATTND_MATH_ATTEND_PANEL_H
#define ATTND_MATH_ATTEND_PANEL_H

#include "math/attend/work.h"

/* Attends in one head, or in those of the rows of a direct sequence, whose `head` is then
 * 0. Writes the outputs, the weights that are wanted of it, and
 * its sums where run->panel_sums is set. */
void panel_attend(struct panel_work *work, size_t head, const struct head_rows *rows);

/* Attends in all heads, and adds up the mean of their weights in the order of the heads.
 * In a direct sequence it does all panels. */
void panel_attend_mean(struct panel_work *work);

/* Returns what is behind a thread's scratch for kernels and chunks. */
float *panel_thread_extra(const struct run *run, size_t thread);

/* Attends in one head to the chunk of the keys that `work` is at; see
 * chunks_attend_one(). */
void panel_attend_chunk(struct panel_work *work, size_t head,
                        const struct head_rows *rows, float *partials);

/* Does the rest of panel_attend(), when every chunk was attended to. */
void panel_merge(struct panel_work *work, size_t head, float *partials);

#endif
