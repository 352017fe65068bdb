/* SPDX-License-Identifier: Apache-2.0 */
/* attn.c: the layer in three steps, each of which waits for the one before: queries, keys
 * and values are projected; each panel of queries of each head attends; the outputs are
 * projected. */
#include "math/parts.h"
#include "math/run.h"

attn_status attn_run_parts(const attn_model *model, const attn_request *request,
                           void *scratch, const attn_result *result, unsigned parts) {
    struct plan plan;
    attn_status status = plan_make(model, request, &plan, NULL);
    if (status != ATTN_OK)
        return status;
    float *memory = scratch;
    bool wanted = request->need_weights != ATTN_WEIGHTS_NONE;
    struct run run = {
        .model = model,
        .request = request,
        .plan = &plan,
        .narrow = memory + plan.narrow,
        .queries = memory + plan.queries,
        .keys = memory + plan.keys,
        .values = memory + plan.values,
        .context =
            model->info.output_projection ? memory + plan.context : result->outputs,
        .weights = wanted ? result->weights : NULL,
        .first_panels = (size_t *)(void *)(memory + plan.first_panels),
        .thread_scratch = memory + plan.thread_scratch,
    };
    if ((parts & ATTN_PART_PROJECT_IN) != 0)
        run_project_inputs(&run);
    if ((parts & ATTN_PART_ATTEND) != 0)
        run_attend(&run);
    if ((parts & ATTN_PART_PROJECT_OUT) != 0 && model->info.output_projection)
        run_project_outputs(&run, result->outputs);
    return ATTN_OK;
}

attn_status attn_run(const attn_model *model, const attn_request *request, void *scratch,
                     const attn_result *result) {
    return attn_run_parts(model, request, scratch, result, ATTN_PARTS_ALL);
}
