/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c: chooses how each sequence is computed, and divides its work into items. */
#include "math/plan/rules.h"

#include "base/size.h"
#include "math/mask.h"

enum sequence_kind plan_find_kind(const struct plan *plan, size_t sequence) {
    const struct plan_layer *layer = &plan->layer;
    size_t query_len = plan->request->query_lens[sequence];

    if (layer->takes_direct &&
        plan->request->key_lens[sequence] >= PLAN_DIRECT_KEYS_MIN &&
        query_len <= layer->direct_queries_max)
        return SEQUENCE_DIRECT;
    if (layer->takes_groups && query_len < plan->model->engine.kernels->columns)
        return SEQUENCE_GROUPED;
    return SEQUENCE_HEADWISE;
}

unsigned plan_find_uses(const struct plan *plan, size_t head) {
    const attn_request *request = plan->request;
    bool by_row = plan_wants(plan, RESULT_BY_ROW);
    bool scored = plan->kind == PLAN_HEADS || request->need_lse;

    if (plan->layer.sums && mask_head_factor(request, head) != 0.0F)
        return HEAD_SCORED | HEAD_SUMMED;
    if (by_row)
        scored = scored || request->need_weights == ATTN_WEIGHTS_MEAN ||
                 !plan->wanted.selects_heads;
    for (size_t i = 0; by_row && !scored && i < request->num_weights_heads; i++)
        scored = request->weights_heads[i] == head;
    return scored ? HEAD_SCORED : 0;
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
