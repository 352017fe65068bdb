/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.h: the layout of the scratch memory. */
#ifndef ATTND_MATH_PLAN_SCRATCH_H
#define ATTND_MATH_PLAN_SCRATCH_H

#include "math/plan/plan.h"

/* Lays out the scratch memory, once the sequences are counted. Returns false when sizes
 * overflow. */
bool plan_scratch(const attn_model *model, const attn_request *request,
                  struct plan *plan);

#endif
