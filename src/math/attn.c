/* SPDX-License-Identifier: Apache-2.0 */
/* attn.c: runs the layer in three steps, each of which waits for the one before. Queries,
 * keys and values are projected; each panel of queries of each head attends; the outputs
 * are projected. Threads of the caller share a step that is large enough. */
#include "math/run.h"
#include "math/steps.h"

#define SHARE_FLOPS      2e6 /* fewer are done faster by one thread */
#define TASKS_PER_THREAD 8
#define TASK_FLOPS_MAX   1e8

size_t run_task_items(size_t count, double flops, size_t num_threads) {
    size_t tasks = num_threads > 1 ? num_threads * TASKS_PER_THREAD : 1;
    double min_tasks = flops / TASK_FLOPS_MAX;

    if ((double)count <= min_tasks)
        return 1;
    if ((double)tasks < min_tasks)
        tasks = (size_t)min_tasks;
    return count > tasks ? count / tasks : 1;
}

void run_share(const struct run *run, double flops, size_t count,
               void (*task)(void *data, size_t index, size_t thread), void *data) {
    const attn_parallel *parallel = run->request->parallel;

    if (parallel != NULL && count > 1 && flops >= SHARE_FLOPS) {
        parallel->run(parallel->context, count, task, data);
        return;
    }
    for (size_t i = 0; i < count; i++)
        task(data, i, 0);
}

attn_status attn_run_steps(const attn_model *model, const attn_request *request,
                           void *scratch, const attn_result *result, unsigned steps) {
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
        .converted = memory + plan.converted,
        .queries = memory + plan.queries,
        .keys = memory + plan.keys,
        .values = memory + plan.values,
        .context =
            model->info.output_projection ? memory + plan.context : result->outputs,
        .weights = wanted ? result->weights : NULL,
        .first_panels = (size_t *)(void *)(memory + plan.first_panels),
        .thread_scratch = memory + plan.thread_scratch,
    };

    if ((steps & ATTN_STEP_PROJECT_IN) != 0)
        run_project_inputs(&run);
    if ((steps & ATTN_STEP_ATTEND) != 0)
        run_attend(&run);
    if ((steps & ATTN_STEP_PROJECT_OUT) != 0 && model->info.output_projection)
        run_project_outputs(&run, result->outputs);
    return ATTN_OK;
}

attn_status attn_run(const attn_model *model, const attn_request *request, void *scratch,
                     const attn_result *result) {
    return attn_run_steps(model, request, scratch, result, ATTN_STEPS_ALL);
}
