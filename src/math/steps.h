/* SPDX-License-Identifier: Apache-2.0 */
/* steps.h: the steps of attn_run() one by one, so that each can be timed by itself. */
#pragma once

#include <attnd/attention.h>

enum attn_steps {
    ATTN_STEP_PROJECT_IN = 1,  /* queries, keys, values and gates */
    ATTN_STEP_ATTEND = 2,      /* scores, softmax, sums of values, gated and normed */
    ATTN_STEP_PROJECT_OUT = 4, /* the heads' outputs */
    ATTN_STEPS_ALL = 7
};

/* As attn_run(), but runs only `steps`, a sum of members of enum attn_steps. A step reads
 * from scratch what the steps before it wrote, in this call or in an earlier one of the
 * same sizes, which may also be of run_plan() with PLAN_PROJECTED. */
void attn_run_steps(const attn_model *model, const attn_request *request,
                    const attn_sizes *sizes, void *scratch, const attn_result *result,
                    unsigned steps);
