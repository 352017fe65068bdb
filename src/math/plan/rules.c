/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c: chooses how each sequence is computed, and divides its work into items. */
#include "math/plan/rules.h"

#include "base/size.h"
#include "math/mask.h"

bool plan_is_plain(const attn_model *model, const attn_request *request) {
    return !model->effects.indirect && request->positions == NULL &&
           request->key_positions == NULL && request->window == 0 && request->chunk == 0;
}

enum sequence_kind plan_find_kind(const struct plan *plan, size_t sequence) {
    const attn_model *model = plan->model;
    const attn_request *request = plan->request;
    size_t query_len = request->query_lens[sequence];
    size_t sizes = model->engine.score_size + model->info.width.head;

    if (plan->kind == PLAN_RUN && plan_is_plain(model, request) && model->engine.native &&
        model->engine.additive_score == NULL &&
        request->key_lens[sequence] >= PLAN_DIRECT_KEYS_MIN &&
        query_len <= sizes / 2 / PLAN_DIRECT_SHARE)
        return SEQUENCE_DIRECT;
    if (plan->kind != PLAN_HEADS && plan->layer.group > 1 &&
        request->need_weights != ATTN_WEIGHTS_MEAN &&
        model->info.score.bias != ATTN_BIAS_CONTENT && /* panels are of one head then */
        query_len < model->engine.kernels->columns)
        return SEQUENCE_GROUPED;
    return SEQUENCE_HEADWISE;
}

bool plan_sums_head(const struct plan *plan, size_t head) {
    return plan->layer.sums && mask_head_factor(plan->request, head) != 0.0F;
}

/* Returns whether weights or scores of a head are computed for their own sake. */
static bool weighs_head(const struct plan *plan, size_t head) {
    const attn_request *request = plan->request;

    if (plan->kind == PLAN_HEADS || request->need_lse)
        return true;
    if (!plan_wants(plan, RESULT_BY_ROW))
        return false;
    if (request->need_weights == ATTN_WEIGHTS_MEAN || !plan->wanted.selects_heads)
        return true;
    for (size_t i = 0; i < request->num_weights_heads; i++) {
        if (request->weights_heads[i] == head)
            return true;
    }
    return false;
}

bool plan_scores_head(const struct plan *plan, size_t head) {
    return plan_sums_head(plan, head) || weighs_head(plan, head);
}

struct plan_items plan_items(const struct plan *plan, size_t sequence) {
    const attn_request *request = plan->request;
    const size_t columns = plan->model->engine.kernels->columns;
    enum sequence_kind kind = plan_find_kind(plan, sequence);
    size_t shared = plan->layer.shared[kind];
    size_t scored = size_min(shared, plan->layer.num_scored);
    size_t rows = request->query_lens[sequence] * (scored > 0 ? scored : 1);
    struct plan_items items = {.kind = kind,
                               .shared = shared,
                               .rows = rows,
                               .heads = plan->model->info.num_heads /
                                        (shared > 1 ? shared : 1),
                               .panels = (rows + columns - 1) / columns,
                               .chunks = 1};

    if (request->need_weights == ATTN_WEIGHTS_MEAN) {
        items.heads = 1;
        items.panels = shared > 1 ? 1 : items.panels;
    }
    if (plan->scratch.splits)
        items.chunks = (request->key_lens[sequence] - 1) / KERNEL_CHUNK_KEYS + 1;
    return items;
}
