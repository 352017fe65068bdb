/* SPDX-License-Identifier: Apache-2.0 */
/* analyse.c: runs the layer up to the heads' outputs, and sums up what each head does. */
#include "base/pace.h"
#include "math/attend/attend.h"
#include "math/heads/parts.h"
#include "math/mask.h"
#include "math/plan/plan.h"
#include "math/run/run.h"

#define ROWS_STEPS 8 /* of counting the rows of a sequence */

/* Returns the request as the steps of the layer shall see it. */
static attn_request without_weights(const attn_request *request) {
    attn_request copy = *request;
    copy.need_weights = ATTN_WEIGHTS_NONE;
    copy.omit_outputs = copy.need_heads = copy.need_lse = false;
    copy.reduce = (attn_reductions){0};
    return copy;
}

attn_status attn_heads_plan(const attn_model *model, const attn_request *request,
                            attn_sizes *ret_sizes, attn_error *ret_error) {
    const attn_request copy = without_weights(request);
    struct plan plan;

    attn_status status = plan_make(model, &copy, PLAN_HEADS, &plan, ret_error);
    if (status == ATTN_OK)
        *ret_sizes = plan.sizes;
    return status;
}

/* Adds `from` to `to`. */
static void add_head_sums(const attn_head_sums *from, attn_head_sums *to) {
    to->entropy += from->entropy;
    to->first += from->first;
    to->total += from->total;
    to->self += from->self;
    to->previous += from->previous;
    to->next += from->next;
    to->near += from->near;
    to->prefix += from->prefix;
    to->distance += from->distance;
}

/* Counts the rows. */
static void add_row_counts(const struct run *run, attn_heads *heads) {
    const attn_request *request = run->request;

    for (size_t s = 0; s < request->num_sequences; s++) {
        const struct sequence_position *at = &run->sequences[s];
        size_t query_len = request->query_lens[s];

        pace_add(ROWS_STEPS);
        heads->rows += query_len;
        if (!mask_keys_are_queries(request, s, at->first_query, at->first_key))
            continue;
        heads->self_rows += query_len;
        heads->previous_rows += query_len - 1;
    }
}

/* Adds up the sums of all panels. */
static void add_sums(const struct run *run, attn_heads *heads) {
    size_t num_heads = run->model->info.num_heads;

    for (size_t i = 0; i < run->plan->batch.num_panels; i++) {
        add_head_sums(&run->even_sums[i], &heads->even);
        for (size_t h = 0; h < num_heads; h++) {
            pace_add(sizeof(attn_head_sums) / sizeof(double));
            add_head_sums(&run->panel_sums[i * num_heads + h], &heads->sums[h]);
        }
    }
}

attn_status attn_heads_add(const attn_model *model, const attn_request *request,
                           void *scratch, attn_heads *heads) {
    const attn_request copy = without_weights(request);
    struct plan plan;
    attn_status status = plan_make(model, &copy, PLAN_HEADS, &plan, NULL);
    if (status != ATTN_OK)
        return status;

    struct run run;
    run_init(&run, model, &copy, &plan, scratch);
    run_project_inputs(&run);
    run_finish_rows(&run);
    run_attend(&run);
    heads_contribute(&run, heads->gram, &heads->squared_norm);
    heads_even(&run);
    heads->sinks = model->info.score.sinks;
    add_sums(&run, heads);
    add_row_counts(&run, heads);
    return ATTN_OK;
}
