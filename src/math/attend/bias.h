/* SPDX-License-Identifier: Apache-2.0 */
/* bias.h: what is added to the scores of a panel: biases by distance, those of the
 * request, and -INFINITY for pairs that the positions of unordered keys mask. */
#pragma once

#include "math/attend/work.h"

/* Fills the tile of a panel whose keys begin with key `first` of the sequence, for
 * attend_few() if `few` is set and else for attend(), and points the panel at it. Does
 * nothing where no score changes. `scores`: only for score(), where a bias out of range
 * does not mask but makes the score NaN. The tile is run_thread.bias of the thread's
 * scratch, until the thread fills another. */
void bias_fill(const struct panel_work *work, size_t first, bool few, bool scores,
               struct query_panel *panel);
