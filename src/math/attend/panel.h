/* SPDX-License-Identifier: Apache-2.0 */
/* panel.h: the attention of one panel of queries. */
#ifndef ATTND_MATH_ATTEND_PANEL_H
#define ATTND_MATH_ATTEND_PANEL_H

#include "math/attend/work.h"

/* Attends to all keys. Writes the outputs, the weights that are wanted, and sums where
 * run->panel_sums is set. */
void panel_attend(const struct panel_work *work, const struct head_rows *rows);

/* Attends in all heads, and adds up the mean of their weights in the order of the heads.
 * Where several heads have rows in one panel, it does all panels. */
void panel_attend_mean(struct panel_work *work);

/* Attends to the chunk of the keys that `work` is at; see chunks_attend_one(). */
void panel_attend_chunk(const struct panel_work *work, const struct head_rows *rows,
                        float *partials);

/* Does the rest of panel_attend(), when every chunk was attended to. */
void panel_merge(const struct panel_work *work, float *partials);

#endif
