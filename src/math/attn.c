/* SPDX-License-Identifier: Apache-2.0 */
/* attn.c: runs the layer in three steps, each of which waits for the one before. Queries,
 * keys and values are projected; each panel of queries of each head attends; the outputs
 * are projected. Threads of the caller share a step that is large enough. */
#include "base/size.h"
#include "math/attend/attend.h"
#include "math/plan/plan.h"
#include "math/run/run.h"
#include "math/steps.h"

/* Attends with the key heads of one phase after the other. Those that are given are
 * copied before. */
static void attend_in_phases(struct run *run) {
    size_t heads = run->model->info.num_kv_heads, step = run->plan->layer.phase_heads;

    for (size_t first = 0; first < heads; first += step) {
        run->phase = (struct range){first, size_min(first + step, heads)};
        if (run->model->info.projection.given)
            run_pack_keys(run);
        run_attend(run);
    }
}

attn_status attn_run_steps(const attn_model *model, const attn_request *request,
                           void *scratch, const attn_result *result, unsigned steps) {
    enum plan_kind kind = (steps & ATTN_PROJECTED) != 0 ? PLAN_PROJECTED : PLAN_RUN;
    struct plan plan;
    attn_status status = plan_make(model, request, kind, &plan, NULL);
    if (status != ATTN_OK)
        return status;

    struct run run;
    run_init(&run, model, request, &plan, scratch, result);

    if ((steps & ATTN_STEP_PROJECT_IN) != 0 && !model->info.projection.given) {
        run_project_inputs(&run);
        run_finish_rows(&run);
        run_fold_queries(&run);
    }
    if ((steps & ATTN_STEP_ATTEND) != 0) {
        attend_in_phases(&run);
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
    return ATTN_OK;
}

attn_status attn_run(const attn_model *model, const attn_request *request, void *scratch,
                     const attn_result *result) {
    return attn_run_steps(model, request, scratch, result, ATTN_STEPS_ALL);
}

attn_status attn_plan(const attn_model *model, const attn_request *request,
                      attn_sizes *ret_sizes, attn_error *ret_error) {
    struct plan plan;
    attn_status status = run_plan(model, request, PLAN_RUN, &plan, ret_error);

    if (status == ATTN_OK)
        *ret_sizes = plan.sizes;
    return status;
}
