/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: finds the sequences and the heads of one call. */
#include "math/run/run.h"

#include "base/pace.h"
#include "base/size.h"
#include "math/packed.h"
#include "math/plan/rules.h"

#include <string.h>

#define SEQUENCE_STEPS 32 /* of finding where a sequence is */

/* Finds where each sequence is. */
static void find_sequences(const struct run *run) {
    const attn_request *request = run->request;
    size_t k_step = run->model->engine.kernels->k_step;
    struct sequence_position at = {0};

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];

        pace_add(SEQUENCE_STEPS);
        at.sequence = s;
        at.kind = plan_find_kind(run->plan, s);
        at.first_value = (at.first_projected + s * (k_step - 1)) / k_step;
        run->sequences[s] = at;
        at.first_query += query_len;
        at.first_key += key_len;
        if (at.kind == SEQUENCE_DIRECT)
            at.first_direct += run->plan->layer.num_scored * query_len;
        else
            at.first_projected += key_len;
    }
}

/* Finds the heads that are computed, their key heads, and the words of a row where the
 * outputs of those that are summed are: at least one empty range. */
static void find_heads(struct run *run) {
    const struct plan *plan = run->plan;
    size_t max = PLAN_RANGES_MAX(run->model->info.num_heads), group = plan->layer.group;
    size_t k_step = run->model->engine.kernels->k_step;
    size_t head_size = run->model->info.width.head;
    struct range *items = run->ranges, *words = items + (PLAN_RANGES - 1) * max;

    for (size_t h = 0; h < run->model->info.num_heads; h++) {
        unsigned uses = plan_find_uses(plan, h);
        if ((uses & HEAD_SCORED) != 0)
            ranges_add(&run->scored, items, h);
        if ((uses & HEAD_SCORED) != 0 || run->model->info.head_norm.whole) {
            ranges_add(&run->query_heads, items + max, h);
            ranges_add(&run->key_heads, items + 2 * max, h / group);
        }
        if ((uses & HEAD_SUMMED) != 0) {
            ranges_add(&run->summed, items + 3 * max, h);
            ranges_add(&run->summed_keys, items + 4 * max, h / group);
        }
    }

    words[0] = (struct range){0, 0};
    for (size_t i = 0; i < run->summed.count; i++)
        words[i] =
            (struct range){run->summed.items[i].first * head_size / k_step,
                           (run->summed.items[i].end * head_size + k_step - 1) / k_step};
    run->summed_words = (struct ranges){words, size_max(run->summed.count, 1)};
}

/* Points a run at what the request gives. Nothing writes there; values that are left out
 * are not read either. */
static void use_given(struct run *run) {
    const attn_request *request = run->request;
    const struct attn_packed *packed = request->packed;
    const void *keys = packed != NULL ? packed->keys : request->keys;
    const void *values = packed != NULL ? packed->values : request->values;

    if (values == NULL)
        values = request->queries;
    run->queries = (float *)(uintptr_t)request->queries;
    if (!run->plan->layer.packs_values)
        run->values = (float *)(uintptr_t)values;
    if (!run->plan->layer.packs)
        run->keys = (float *)(uintptr_t)keys;
}

void run_init(struct run *run, const attn_model *model, const attn_request *request,
              const attn_sizes *sizes, void *scratch, const attn_result *result) {
    *run = (struct run){
        .model = model, .request = request, .plan = &run->own_plan, .reduced = result};
    memcpy(&run->own_plan, sizes->plan, sizeof run->own_plan);
    run->own_plan.model = model; /* those of the plan may be gone */
    run->own_plan.request = request;
    run->own_plan.wanted.info = &model->info;
    run->own_plan.wanted.request = request;
    run->phase = (struct range){0, run->plan->layer.phase_heads};

    /* Arrays in scratch memory, and what is elsewhere. */
    const struct plan *plan = run->plan;
    for (size_t i = 0; i < plan->arrays.count; i++) {
        float *array = (float *)scratch + plan->arrays.items[i].first;
        memcpy((char *)run + plan->arrays.items[i].member, &array, sizeof array);
    }
    if (run->no_bias != NULL)
        memset(run->no_bias, 0,
               (model->info.width.out + KERNEL_COLUMNS_MAX) * sizeof *run->no_bias);
    run->blocks = run->received + plan->batch.results[RESULT_RECEIVED];
    if (run->value_rows == NULL)
        run->value_rows = run->values;
    if (plan->layer.sums_in_result)
        run->context = request->need_heads ? result->heads : result->outputs;
    else if (run->context == NULL)
        run->context = run->queries;
    if (plan->wanted.has[RESULT_WEIGHTS])
        run->weights = result->weights;
    if (plan->wanted.has[RESULT_LSE])
        run->lse = result->lse;
    if (model->info.projection.given)
        use_given(run);

    find_sequences(run);
    find_heads(run);
}

/* Lists where each of `limit` items is among those that are selected; NULL selects all.
 * Those below 0 count from the end. */
static void fill_indices(const ptrdiff_t *selected, size_t count, size_t limit,
                         int32_t *indices) {
    for (size_t i = 0; i < limit; i++) {
        pace_add(1);
        indices[i] = selected == NULL ? (int32_t)i : -1;
    }
    for (size_t i = 0; selected != NULL && i < count; i++) {
        pace_add(1);
        indices[selected[i] < 0 ? (ptrdiff_t)limit + selected[i] : selected[i]] =
            (int32_t)i;
    }
}

void run_find_rows(struct run *run) {
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    const size_t *heads = plan->wanted.selects_heads ? request->weights_heads : NULL;
    size_t first_row = 0, counts[NUM_RESULTS] = {0};

    fill_indices((const ptrdiff_t *)heads, request->num_weights_heads,
                 run->model->info.num_heads, run->head_indices);
    fill_indices(request->weights_queries, request->num_weights_queries,
                 2 * plan->batch.longest_query_len, run->query_indices);
    for (size_t s = 0; s < request->num_sequences; s++) {
        struct sequence_position *at = &run->sequences[s];

        pace_add(SEQUENCE_STEPS);
        at->first_row = first_row;
        at->first_weight = counts[RESULT_WEIGHTS];
        at->first_score = counts[RESULT_SCORES];
        at->first_block = counts[RESULT_BLOCK_WEIGHTS];
        first_row += result_rows(request, s);
        results_add(&plan->wanted, s, counts); /* fits, as in the plan */
    }
}
