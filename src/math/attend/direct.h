/* SPDX-License-Identifier: Apache-2.0 */
/* direct.h: what surrounds the attention of direct sequences; see plan_find_kind(). */
#ifndef ATTND_MATH_ATTEND_DIRECT_H
#define ATTND_MATH_ATTEND_DIRECT_H

#include "math/run/run.h"

/* The last part of the first step: folds W_k into the queries of direct sequences. */
void run_fold_queries(const struct run *run);

/* The last part of the second step: projects the weighted sums of values of direct
 * sequences to the heads' outputs. */
void run_project_sums(const struct run *run);

#endif
