/* SPDX-License-Identifier: Apache-2.0 */
/* attn.c: runs the layer in three steps, each of which waits for the one before. Queries,
 * keys and values are projected; each panel of queries of each head attends; the outputs
 * are projected. Threads of the caller share a step that is large enough. */
#include "math/attend/attend.h"
#include "math/plan/plan.h"
#include "math/run/run.h"
#include "math/steps.h"

void attn_run_steps(const attn_model *model, const attn_request *request,
                    const attn_sizes *sizes, void *scratch, const attn_result *result,
                    unsigned steps) {
    struct run run;
    run_init(&run, model, request, sizes, scratch, result);

    if ((steps & ATTN_STEP_PROJECT_IN) != 0 && !model->info.projection.given) {
        run_project_inputs(&run);
        run_finish_rows(&run);
        run_fold_queries(&run);
        if (request->need_projections)
            run_write_projections(&run, result);
    }
    if ((steps & ATTN_STEP_ATTEND) != 0) {
        if (plan_wants(run.plan, RESULT_BY_ROW))
            run_find_rows(&run);
        run_attend(&run);
        run_project_sums(&run);
        run_finish_sums(&run);
        if (request->need_heads && !model->info.linears[ATTN_OUTPUT].weight &&
            !request->omit_outputs)
            run_copy_heads(&run, result->outputs);
    }
    if ((steps & ATTN_STEP_PROJECT_OUT) != 0 && model->info.linears[ATTN_OUTPUT].weight &&
        !request->omit_outputs)
        run_project_outputs(&run, result->outputs);
    if ((steps & ATTN_STEP_PROJECT_OUT) != 0 && request->need_contributions)
        run_contribute(&run, result->contributions);
}

void attn_run(const attn_model *model, const attn_request *request,
              const attn_sizes *sizes, void *scratch, const attn_result *result) {
    attn_run_steps(model, request, sizes, scratch, result, ATTN_STEPS_ALL);
}

attn_status attn_plan(const attn_model *model, const attn_request *request,
                      attn_sizes *ret_sizes, attn_error *ret_error) {
    return run_plan(model, request, PLAN_RUN, ret_sizes, ret_error);
}
