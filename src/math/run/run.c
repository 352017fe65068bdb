/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: finds the arrays of scratch, the sequences, and the heads of one call. */
#include "math/run/run.h"

#include "base/pace.h"
#include "math/plan/rules.h"

#define SEQUENCE_STEPS 32 /* of finding where a sequence is */

/* Finds where each sequence is. */
static void find_sequences(const struct run *run, struct sequence_position *ret_all) {
    const attn_request *request = run->request;
    struct sequence_position at = {0};

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];

        pace_add(SEQUENCE_STEPS);
        at.sequence = s;
        at.direct = plan_is_direct(run->plan, run->model, request, s);
        at.grouped = plan_is_grouped(run->plan, run->model, request, s);
        ret_all[s] = at;
        at.first_query += query_len;
        at.first_key += key_len;
        at.first_projected += at.direct ? 0 : key_len;
        at.first_direct += at.direct ? run->plan->num_scored * query_len : 0;
        at.first_weight += plan_weights_heads(&run->model->info, request) *
                           plan_weights_rows(request, s) * key_len;
    }
}

/* Lists where each of `limit` items is among those that are selected; NULL selects all.
 * Returns `indices`. */
static int32_t *fill_indices(const size_t *selected, size_t count, size_t limit,
                             int32_t *indices) {
    for (size_t i = 0; i < limit; i++) {
        pace_add(1);
        indices[i] = selected == NULL ? (int32_t)i : -1;
    }
    for (size_t i = 0; selected != NULL && i < count; i++) {
        pace_add(1);
        indices[selected[i]] = (int32_t)i;
    }
    return indices;
}

/* Lists which weights are wanted, and where they go. */
static void find_indices(struct run *run, float *memory) {
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    size_t num_heads = run->model->info.num_heads;
    bool all = request->need_weights == ATTN_WEIGHTS_ALL;
    int32_t *heads = (int32_t *)(void *)(memory + plan->head_indices);

    run->head_indices = fill_indices(all ? request->weights_heads : NULL,
                                     request->num_weights_heads, num_heads, heads);
    for (size_t h = 0; !all && h < num_heads; h++)
        heads[h] = 0;
    run->query_indices = fill_indices(
        request->weights_queries, request->num_weights_queries, plan->longest_query_len,
        (int32_t *)(void *)(memory + plan->query_indices));
}

/* Finds the heads whose outputs are wanted and, when `weighed` is set, those whose
 * weights are. */
static struct ranges find_heads(const struct run *run, bool weighed,
                                struct range *items) {
    size_t num_heads = run->model->info.num_heads, count = 0;

    for (size_t h = 0; h < num_heads; h++) {
        if (!plan_sums_head(run->plan, run->request, h) &&
            !(weighed && run_weighs_head(run, h)))
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
    size_t group = run->plan->group, count = 0;

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
    size_t head_size = run->model->info.head_size;

    items[0] = (struct range){0, 0};
    for (size_t i = 0; i < heads.count; i++)
        items[i] = (struct range){heads.items[i].first * head_size / k_step,
                                  (heads.items[i].end * head_size + k_step - 1) / k_step};
    return (struct ranges){items, heads.count > 0 ? heads.count : 1};
}

void run_init(struct run *run, const attn_model *model, const attn_request *request,
              const struct plan *plan, void *scratch) {
    float *memory = scratch;
    bool heads = plan->kind == PLAN_HEADS;

    *run = (struct run){
        .model = model,
        .request = request,
        .plan = plan,
        .converted = memory + plan->converted,
        .normed = memory + plan->normed,
        .rotations =
            plan->num_rotations > 0 ? (double *)(void *)(memory + plan->rotations) : NULL,
        .queries = memory + plan->queries,
        .keys = memory + plan->keys,
        .values = memory + plan->values,
        .direct = memory + plan->direct,
        .context = memory + plan->context,
        .panel_sums =
            heads ? (attn_head_sums *)(void *)(memory + plan->panel_sums) : NULL,
        .strip_products =
            heads ? (double *)(void *)(memory + plan->strip_products) : NULL,
        .partials = memory + plan->partials,
        .even_sums = heads ? (attn_head_sums *)(void *)(memory + plan->even_sums) : NULL,
        .first_items = (size_t *)(void *)(memory + plan->first_items),
        .thread_scratch = memory + plan->thread_scratch,
    };

    struct sequence_position *sequences =
        (struct sequence_position *)(void *)(memory + plan->sequences);
    run->sequences = sequences;
    find_sequences(run, sequences);

    struct range *ranges = (struct range *)(void *)(memory + plan->ranges);
    size_t ranges_max = PLAN_RANGES_MAX(model->info.num_heads);
    if (request->need_weights != ATTN_WEIGHTS_NONE)
        find_indices(run, memory);
    run->scored = find_heads(run, true, ranges);
    run->summed = find_heads(run, false, ranges + ranges_max);
    run->summed_words = find_words(run, run->summed, ranges + 2 * ranges_max);
    run->summed_keys = find_key_heads(run, run->summed, ranges + 3 * ranges_max);
    run->query_heads = run->scored;
    if (model->info.head_norm_whole) {
        ranges[4 * ranges_max] = (struct range){0, model->info.num_heads};
        run->query_heads = (struct ranges){ranges + 4 * ranges_max, 1};
    }
    run->key_heads = find_key_heads(run, run->query_heads, ranges + 5 * ranges_max);
}
