/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: finds the sequences and the heads of one call. */
#include "math/run/run.h"

#include "base/pace.h"
#include "math/packed.h"
#include "math/plan/rules.h"

#include <string.h>

#define SEQUENCE_STEPS 32 /* of finding where a sequence is */

struct plan run_get_plan(const attn_model *model, const attn_request *request,
                         const attn_sizes *sizes) {
    struct plan plan;

    memcpy(&plan, sizes->plan, sizeof plan);
    plan.model = model;
    plan.request = request;
    plan.wanted.info = &model->info;
    plan.wanted.request = request;
    return plan;
}

/* Finds where each sequence is. */
static void find_sequences(const struct run *run, struct sequence_position *ret_all) {
    const attn_request *request = run->request;
    struct sequence_position at = {0};

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];

        pace_add(SEQUENCE_STEPS);
        at.sequence = s;
        at.kind = plan_find_kind(run->plan, s);
        ret_all[s] = at;
        at.first_query += query_len;
        at.first_key += key_len;
        if (at.kind == SEQUENCE_DIRECT)
            at.first_direct += run->plan->layer.num_scored * query_len;
        else
            at.first_projected += key_len;
    }
}

/* Finds the heads that a rule wants. */
static struct ranges find_heads(const struct run *run,
                                bool (*wants)(const struct plan *plan, size_t head),
                                struct range *items) {
    size_t num_heads = run->model->info.num_heads, count = 0;

    for (size_t h = 0; h < num_heads; h++) {
        if (!wants(run->plan, h))
            continue;
        if (count == 0 || items[count - 1].end < h)
            items[count++].first = h;
        items[count - 1].end = h + 1;
    }
    return (struct ranges){items, count};
}

/* Finds the key heads of some heads. */
static struct ranges find_key_heads(const struct run *run, struct ranges heads,
                                    struct range *items) {
    size_t group = run->plan->layer.group, count = 0;

    for (size_t i = 0; i < heads.count; i++) {
        size_t first = heads.items[i].first / group;
        if (count == 0 || items[count - 1].end < first)
            items[count++].first = first;
        items[count - 1].end = (heads.items[i].end - 1) / group + 1;
    }
    return (struct ranges){items, count};
}

/* Finds where the heads' outputs are in a row: whole words, at least one empty range. */
static struct ranges find_words(const struct run *run, struct ranges heads,
                                struct range *items) {
    size_t k_step = run->model->engine.kernels->k_step;
    size_t head_size = run->model->info.width.head;

    items[0] = (struct range){0, 0};
    for (size_t i = 0; i < heads.count; i++)
        items[i] = (struct range){heads.items[i].first * head_size / k_step,
                                  (heads.items[i].end * head_size + k_step - 1) / k_step};
    return (struct ranges){items, heads.count > 0 ? heads.count : 1};
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

/* Finds the heads that are computed. */
static void find_all_heads(struct run *run) {
    const attn_model_info *info = &run->model->info;
    size_t max = PLAN_RANGES_MAX(info->num_heads);
    struct range *ranges = run->ranges;

    run->scored = find_heads(run, plan_scores_head, ranges);
    run->summed = find_heads(run, plan_sums_head, ranges + max);
    run->summed_words = find_words(run, run->summed, ranges + 2 * max);
    run->summed_keys = find_key_heads(run, run->summed, ranges + 3 * max);
    run->query_heads = run->scored;
    if (info->head_norm.whole) {
        ranges[4 * max] = (struct range){0, info->num_heads};
        run->query_heads = (struct ranges){ranges + 4 * max, 1};
    }
    run->key_heads = find_key_heads(run, run->query_heads, ranges + 5 * max);
}

/* Points to the arrays in scratch memory, and to what is elsewhere. */
static void find_arrays(struct run *run, float *scratch, const attn_result *result) {
    const struct plan *plan = run->plan;

    for (size_t i = 0; i < plan->arrays.count; i++) {
        float *array = scratch + plan->arrays.items[i].first;
        memcpy((char *)run + plan->arrays.items[i].member, &array, sizeof array);
    }
    run->blocks = run->received + plan->batch.results[RESULT_RECEIVED];
    if (run->value_rows == NULL)
        run->value_rows = run->values;
    if (plan->layer.sums_in_result)
        run->context = plan->request->need_heads ? result->heads : result->outputs;
    else if (run->context == NULL)
        run->context = run->queries;
    if (plan->wanted.has[RESULT_WEIGHTS])
        run->weights = result->weights;
    if (plan->wanted.has[RESULT_LSE])
        run->lse = result->lse;
    if (run->model->info.projection.given)
        use_given(run);
}

void run_init(struct run *run, const attn_model *model, const attn_request *request,
              const attn_sizes *sizes, void *scratch, const attn_result *result) {
    *run = (struct run){.model = model,
                        .request = request,
                        .plan = &run->own_plan,
                        .own_plan = run_get_plan(model, request, sizes),
                        .reduced = result};
    run->phase = (struct range){0, run->plan->layer.phase_heads};
    run->thread_floats = run->plan->arrays.thread_floats;
    find_arrays(run, scratch, result);
    find_sequences(run, run->sequences);
    find_all_heads(run);
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
