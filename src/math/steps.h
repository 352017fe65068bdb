/* SPDX-License-Identifier: Apache-2.0 */
/* steps.h: the steps of attn_run() one by one, so that each can be timed by itself. */
#pragma once

#include <attnd/attention.h>

enum attn_steps {
    ATTN_STEP_PROJECT_IN = 1,  /* queries, keys, values and gates */
    ATTN_STEP_ATTEND = 2,      /* scores, softmax, sums of values, gated and normed */
    ATTN_STEP_PROJECT_OUT = 4, /* the heads' outputs */
    ATTN_STEPS_ALL = 7,
    ATTN_PROJECTED = 8 /* no sequence is direct, see plan_find_kind() */
};

/* As attn_run(), but runs only `steps`, a sum of members of enum attn_steps. A step reads
 * from scratch what the steps before it wrote, in this call or in an earlier one that had
 * the same ATTN_PROJECTED. With it, the sizes are those of PLAN_PROJECTED, see
 * plan/plan.h. */
attn_status attn_run_steps(const attn_model *model, const attn_request *request,
                           void *scratch, const attn_result *result, unsigned steps);
