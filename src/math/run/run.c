/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: finds the arrays of scratch, the sequences, and the heads of one call. */
#include "math/run/run.h"

#include "base/pace.h"
#include "math/packed.h"
#include "math/plan/rules.h"

#define SEQUENCE_STEPS 32 /* of finding where a sequence is */

/* Finds where each sequence is. */
static void find_sequences(const struct run *run, struct sequence_position *ret_all) {
    const attn_request *request = run->request;
    struct sequence_position at = {0};
    size_t counts[NUM_RESULTS] = {0};

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];

        pace_add(SEQUENCE_STEPS);
        at.sequence = s;
        at.kind = plan_find_kind(run->plan, run->model, request, s);
        ret_all[s] = at;
        at.first_query += query_len;
        at.first_key += key_len;
        if (at.kind == SEQUENCE_DIRECT)
            at.first_direct += run->plan->layer.num_scored * query_len;
        else
            at.first_projected += key_len;
        at.first_row += result_rows(request, s);
        results_add(&run->plan->wanted, s, counts); /* fits, as in the plan */
        at.first_weight = counts[RESULT_WEIGHTS];
        at.first_score = counts[RESULT_SCORES];
        at.first_block = counts[RESULT_BLOCK_WEIGHTS];
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

/* Lists which queries' weights are wanted, and where they go. */
static void find_queries(struct run *run) {
    const attn_request *request = run->request;
    size_t limit = run->plan->batch.longest_query_len;

    fill_indices(NULL, 0, limit, run->query_indices);
    for (size_t i = 0; i < limit; i++) {
        pace_add(1);
        run->end_indices[i] = -1;
        if (request->weights_queries != NULL)
            run->query_indices[i] = -1;
    }
    for (size_t i = 0;
         request->weights_queries != NULL && i < request->num_weights_queries; i++) {
        ptrdiff_t query = request->weights_queries[i];
        pace_add(1);
        if (query >= 0)
            run->query_indices[query] = (int32_t)i;
        else
            run->end_indices[-1 - query] = (int32_t)i;
    }
}

/* Returns whether the weights of a head are wanted, or sums that are made with them. */
static bool run_weighs_head(const struct run *run, size_t head) {
    bool mean = run->request->need_weights == ATTN_WEIGHTS_MEAN;
    return run->panel_sums != NULL || run->request->need_lse || mean ||
           (run->head_indices != NULL && run->head_indices[head] >= 0);
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

/* Returns where an array of the scratch is. */
static void *find_array(const struct plan *plan, void *scratch, enum plan_array array) {
    return (float *)scratch + plan->scratch.first[array];
}

/* Finds where weights of the heads and queries that are selected go. */
static void find_selected(struct run *run, void *scratch) {
    const struct plan *plan = run->plan;
    const attn_request *request = run->request;

    run->head_indices =
        fill_indices(plan->wanted.selects_heads ? request->weights_heads : NULL,
                     request->num_weights_heads, run->model->info.num_heads,
                     find_array(plan, scratch, PLAN_HEAD_INDICES));
    run->query_indices = find_array(plan, scratch, PLAN_QUERY_INDICES);
    run->end_indices = run->query_indices + plan->batch.longest_query_len;
    find_queries(run);
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
              const struct plan *plan, void *scratch) {
    struct sequence_position *sequences = find_array(plan, scratch, PLAN_SEQUENCES);
    struct range *ranges = find_array(plan, scratch, PLAN_HEAD_RANGES);
    size_t ranges_max = PLAN_RANGES_MAX(model->info.num_heads);

    *run = (struct run){
        .model = model,
        .request = request,
        .plan = plan,
        .converted = find_array(plan, scratch, PLAN_CONVERTED),
        .normed = find_array(plan, scratch, PLAN_NORMED),
        .latents = find_array(plan, scratch, PLAN_LATENTS),
        .queries = find_array(plan, scratch, PLAN_QUERIES),
        .keys = find_array(plan, scratch, PLAN_KEYS),
        .values = find_array(plan, scratch, PLAN_VALUES),
        .direct = find_array(plan, scratch, PLAN_DIRECT_SUMS),
        .gates = find_array(plan, scratch, PLAN_GATES),
        .context = find_array(plan, scratch, PLAN_CONTEXT),
        .one_head = find_array(plan, scratch, PLAN_ONE_HEAD),
        .no_bias = find_array(plan, scratch, PLAN_NO_BIAS),
        .partials = find_array(plan, scratch, PLAN_PARTIALS),
        .shared_weights = find_array(plan, scratch, PLAN_SHARED_WEIGHTS),
        .received = find_array(plan, scratch, PLAN_SUMS),
        .phase = {0, plan->layer.phase_heads},
        .sequences = sequences,
        .first_items = find_array(plan, scratch, PLAN_FIRST_ITEMS),
        .thread_scratch = find_array(plan, scratch, PLAN_THREADS),
    };
    if (model->info.projection.given)
        use_given(run);
    run->value_rows = model->engine.kernels->k_step > 1
                          ? find_array(plan, scratch, PLAN_VALUE_ROWS)
                          : run->values;
    if (plan->scratch.num_rotations > 0)
        run->rotations = find_array(plan, scratch, PLAN_ROTATIONS);
    if (plan->kind == PLAN_HEADS) {
        run->panel_sums = find_array(plan, scratch, PLAN_PANEL_SUMS);
        run->even_sums = find_array(plan, scratch, PLAN_EVEN_SUMS);
        run->strip_products = find_array(plan, scratch, PLAN_STRIP_PRODUCTS);
    }

    run->blocks = run->received + plan->sizes.received;
    find_sequences(run, sequences);
    if (plan_wants(plan, RESULT_BY_ROW))
        find_selected(run, scratch);
    run->scored = find_heads(run, true, ranges);
    run->summed = find_heads(run, false, ranges + ranges_max);
    run->summed_words = find_words(run, run->summed, ranges + 2 * ranges_max);
    run->summed_keys = find_key_heads(run, run->summed, ranges + 3 * ranges_max);
    run->query_heads = run->scored;
    if (model->info.head_norm.whole) {
        ranges[4 * ranges_max] = (struct range){0, model->info.num_heads};
        run->query_heads = (struct ranges){ranges + 4 * ranges_max, 1};
    }
    run->key_heads = find_key_heads(run, run->query_heads, ranges + 5 * ranges_max);
}
