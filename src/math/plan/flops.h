/* SPDX-License-Identifier: Apache-2.0 */
/* flops.h: how long a request takes, in operations. */
#ifndef ATTND_MATH_PLAN_FLOPS_H
#define ATTND_MATH_PLAN_FLOPS_H

#include "math/plan/plan.h"

/* Returns the operations of a pair besides its products, which are none in most. */
double plan_pair_flops(bool masked, bool biased);

/* Counts the operations of the attention, and of all three steps. */
void plan_count_flops(const attn_model *model, const attn_request *request,
                      struct plan *plan);

#endif
