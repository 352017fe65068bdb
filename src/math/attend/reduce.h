/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: reduces the weights of a panel, row by row, to attn_request.reduce.
 *
 * What adds up over queries, received and block_weights, is summed in float64, in the
 * order of the queries of a head. So neither threads nor the division into panels change
 * a bit. */
#pragma once

#include "math/attend/work.h"

/* Reduces the rows of a panel whose head and query are selected, from work->weights. */
void reduce_panel(const struct panel_work *work);

/* Makes the sums of all heads 0, before the first panel. */
void reduce_clear(struct run *run);

/* Writes the sums to the results, after the last panel. */
void reduce_finish(const struct run *run);
