/* SPDX-License-Identifier: Apache-2.0 */
/* make.h: checks a request and plans it. */
#ifndef ATTND_MATH_PLAN_MAKE_H
#define ATTND_MATH_PLAN_MAKE_H

#include "math/plan/plan.h"

/* As attn_plan() or attn_heads_plan(), but also works out the offsets. */
attn_status plan_make(const attn_model *model, const attn_request *request,
                      enum plan_kind kind, struct plan *ret_plan, attn_error *ret_error);

#endif
