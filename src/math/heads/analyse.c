/* SPDX-License-Identifier: Apache-2.0 */
/* analyse.c: runs the layer up to the heads' outputs, and sums up what each head does. */
#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "math/attend/attend.h"
#include "math/attend/tokens.h"
#include "math/heads/parts.h"
#include "math/plan/plan.h"
#include "math/reserve.h"
#include "math/run/run.h"

#define ROWS_STEPS 8 /* of counting a row; and numbers that are squared in a step */

/* Returns the request as the steps of the layer shall see it. Without a model, outputs
 * say nothing of the heads. */
static attn_request without_weights(const attn_model *model,
                                    const attn_request *request) {
    attn_request copy = *request;
    copy.need_weights = ATTN_WEIGHTS_NONE;
    copy.need_heads = copy.need_lse = false;
    copy.omit_outputs = model->info.projection.given;
    copy.need_contributions = copy.need_projections = false;
    copy.reduce = (attn_reductions){.token_ids = request->reduce.token_ids};
    return copy;
}

/* Returns the request that finds what the heads weigh targets with. */
static attn_request of_targets(const attn_model *model, const attn_request *request) {
    attn_request copy = without_weights(model, request);
    copy.omit_outputs = true;
    copy.weights_heads = NULL;
    copy.weights_queries = NULL;
    copy.reduce = (attn_reductions){.targets = request->reduce.targets, .top_k = 1};
    return copy;
}

/* Takes the results about targets, behind the scratch of their run. Returns the bytes of
 * all; SIZE_MAX: more than fit. */
static size_t lay_out_targets(const attn_sizes *run, void *scratch,
                              attn_result *ret_result) {
    struct reserve block = {scratch, run->scratch_bytes / sizeof(float)};
    size_t bytes = SIZE_MAX;

    *ret_result = (attn_result){
        .top_keys = reserve_take(&block, run->top, sizeof(int64_t) / sizeof(float)),
        .top_weights = reserve_take(&block, run->top, 1),
        .target_weights = reserve_take(&block, run->target_weights, 1)};
    size_mul(block.floats, sizeof(float), &bytes);
    return bytes;
}

/* Adds the second run, over targets, to the sizes of an analysis. */
static attn_status add_targets_run(const attn_model *model, const attn_request *request,
                                   attn_sizes *sizes, attn_error *ret_error) {
    const attn_request copy = of_targets(model, request);
    attn_result result;
    attn_sizes run;
    attn_status status = attn_plan(model, &copy, &run, ret_error);
    if (status != ATTN_OK)
        return status;

    size_t bytes = lay_out_targets(&run, NULL, &result);
    if (bytes == SIZE_MAX)
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    sizes->scratch_bytes = size_max(sizes->scratch_bytes, bytes);
    sizes->flops += run.flops;
    return ATTN_OK;
}

attn_status attn_heads_plan(const attn_model *model, const attn_request *request,
                            attn_sizes *ret_sizes, attn_error *ret_error) {
    const attn_request copy = without_weights(model, request);
    attn_sizes sizes;

    attn_status status = run_plan(model, &copy, PLAN_HEADS, &sizes, ret_error);
    if (status == ATTN_OK && request->reduce.targets != NULL)
        status = add_targets_run(model, request, &sizes, ret_error);
    if (status == ATTN_OK)
        *ret_sizes = sizes;
    return status;
}

/* Adds `from` to `to`: all of their members are sums. */
static void add_head_sums(const attn_head_sums *from, attn_head_sums *to) {
    const double *sums = (const double *)from;
    double *totals = (double *)to;

    for (size_t i = 0; i < sizeof *to / sizeof *totals; i++)
        totals[i] += sums[i];
}

/* Counts the rows. */
static void add_row_counts(const struct run *run, attn_heads *heads) {
    const attn_request *request = run->request;

    for (size_t s = 0; s < request->num_sequences; s++) {
        const struct sequence_position *at = &run->sequences[s];
        size_t query_len = request->query_lens[s], keys = request->key_lens[s];
        bool itself = tokens_are_shared(request, at);

        heads->rows += query_len;
        heads->row_keys += (double)query_len * (double)keys;
        heads->rows_at[ATTN_PLACE_FIRST] += (double)query_len;
        heads->rows_at[ATTN_PLACE_SEPARATOR] += (double)query_len;
        for (size_t i = 0; i < query_len; i++) {
            pace_add(ROWS_STEPS);
            if (itself)
                tokens_add(i, keys, run->id_places[at->first_query + i], 1,
                           heads->rows_at);
        }
    }
}

/* Adds the squares of the rows, where these are what the outputs are added to. */
static void add_residual(const struct run *run, attn_heads *heads) {
    const attn_model_info *info = &run->model->info;

    if (heads->gram == NULL || info->width.query != info->width.out ||
        (info->pre_norm.kind != ATTN_NORM_NONE && !info->pre_norm.applied))
        return;
    for (size_t i = 0; i < run->plan->batch.num_queries; i++) {
        const float *row = run->request->queries + i * info->width.query;
        pace_add(info->width.query / ROWS_STEPS);
        for (size_t x = 0; x < info->width.query; x++)
            heads->squared_residual += (double)row[x] * (double)row[x];
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

/* Adds what the heads weigh the targets of one sequence with. */
static void add_targets(const attn_request *request, size_t first_row, size_t query_len,
                        const attn_result *result, attn_heads *heads) {
    size_t num_heads = heads->num_heads;

    for (size_t q = 0; q < query_len; q++) {
        const size_t *target = request->reduce.targets + 2 * (first_row + q);
        pace_add(num_heads);
        if (target[0] == 0 && target[1] == 0)
            continue;
        heads->target_rows++;
        for (size_t h = 0; h < num_heads; h++) {
            int64_t key = result->top_keys[first_row * num_heads + h * query_len + q];
            heads->sums[h].target +=
                (double)result->target_weights[(first_row + q) * num_heads + h];
            heads->sums[h].largest +=
                key >= 0 && target[0] <= (size_t)key && (size_t)key < target[1];
        }
    }
}

/* Runs the attention once more, for targets. */
static void weigh_targets(const attn_model *model, const attn_request *request,
                          void *scratch, attn_heads *heads) {
    const attn_request copy = of_targets(model, request);
    attn_result result;
    attn_sizes sizes;
    size_t first_row = 0;

    if (scratch == NULL || attn_plan(model, &copy, &sizes, NULL) != ATTN_OK)
        return; /* never: attn_heads_plan() has accepted it */
    lay_out_targets(&sizes, scratch, &result);
    attn_run(model, &copy, &sizes, scratch, &result);
    for (size_t s = 0; s < request->num_sequences; s++) {
        add_targets(request, first_row, request->query_lens[s], &result, heads);
        first_row += request->query_lens[s];
    }
}

void attn_heads_add(const attn_model *model, const attn_request *request,
                    const attn_sizes *sizes, void *scratch, attn_heads *heads) {
    const attn_request copy = without_weights(model, request);
    struct run run;

    run_init(&run, model, &copy, sizes, scratch, &(attn_result){0});
    if (!model->info.projection.given) {
        run_project_inputs(&run);
        run_finish_rows(&run);
    }
    heads_mark(&run);
    heads_even(&run);
    run_attend(&run);
    run_finish_sums(&run);
    if (run.plan->layer.sums)
        heads_contribute(&run, heads->gram, &heads->squared_norm);
    add_residual(&run, heads);
    heads->sinks = model->info.score.sinks;
    add_sums(&run, heads);
    add_row_counts(&run, heads);
    if (request->reduce.targets != NULL)
        weigh_targets(model, request, scratch, heads);
}
