/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: the last parts of plan_make(), in their order, once sequences are counted. */
#ifndef ATTND_MATH_PLAN_PARTS_H
#define ATTND_MATH_PLAN_PARTS_H

#include "math/plan/plan.h"

/* Lays out the scratch memory. Returns false when sizes overflow. */
bool plan_scratch(const attn_model *model, const attn_request *request,
                  struct plan *plan);

/* Counts the operations of the attention, and of all three steps. */
void plan_count_flops(const attn_model *model, const attn_request *request,
                      struct plan *plan);

#endif
