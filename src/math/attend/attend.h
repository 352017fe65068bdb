/* SPDX-License-Identifier: Apache-2.0 */
/* attend.h: what the steps of the layer do between its projections. */
#pragma once

#include "math/run/run.h"

/* The second part of the first step: norms and rotates what was projected, where
 * layer.finishes, and writes keys into panels. */
void run_finish_rows(const struct run *run);

/* The last part of the first step: folds W_k into the queries of direct sequences. */
void run_fold_queries(const struct run *run);

/* The second step: every panel of queries of every head attends, with the key heads of
 * one phase after the other. Keys that are given are copied before. Overwrites projected
 * queries, and with bfloat16 keys that are not in panels. */
void run_attend(struct run *run);

/* The last part of the second step: projects the weighted sums of values of direct
 * sequences to the heads' outputs. */
void run_project_sums(const struct run *run);
