/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c: the rules of a plan, from the model, the request and its lengths. */
#include "math/plan/rules.h"

#include "math/mask.h"

size_t plan_weights_heads(const attn_model_info *info, const attn_request *request) {
    switch (request->need_weights) {
    case ATTN_WEIGHTS_ALL:
        return request->weights_heads != NULL ? request->num_weights_heads
                                              : info->num_heads;
    case ATTN_WEIGHTS_MEAN:
        return 1;
    default:
        return 0;
    }
}

size_t plan_weights_rows(const attn_request *request, size_t sequence) {
    return request->weights_queries != NULL ? request->num_weights_queries
                                            : request->query_lens[sequence];
}

bool plan_sums_head(const struct plan *plan, const attn_request *request, size_t head) {
    return plan->sums && mask_head_factor(request, head) != 0.0F;
}

bool plan_is_plain(const attn_model *model, const attn_request *request) {
    const attn_model_info *info = &model->info;

    return info->num_kv_heads == info->num_heads && info->rope_size == 0 &&
           info->head_norm == ATTN_NORM_NONE && !info->pre_norm_applied &&
           info->clip <= 0 && info->softcap <= 0 && !info->sinks &&
           info->bias == ATTN_BIAS_NONE && request->positions == NULL &&
           request->key_positions == NULL && request->window == 0;
}

bool plan_is_direct(const struct plan *plan, const attn_model *model,
                    const attn_request *request, size_t sequence) {
    return plan->kind == PLAN_RUN && plan_is_plain(model, request) &&
           model->engine.native && model->engine.additive_score == NULL &&
           request->key_lens[sequence] >= PLAN_DIRECT_KEYS_MIN &&
           request->query_lens[sequence] <= model->info.head_size / PLAN_DIRECT_SHARE;
}

bool plan_is_grouped(const struct plan *plan, const attn_model *model,
                     const attn_request *request, size_t sequence) {
    return plan->kind != PLAN_HEADS && plan->group > 1 &&
           request->need_weights != ATTN_WEIGHTS_MEAN &&
           request->query_lens[sequence] < model->engine.kernels->columns;
}

struct plan_items plan_items(const struct plan *plan, const attn_model *model,
                             const attn_request *request, size_t sequence) {
    size_t columns = model->engine.kernels->columns;
    size_t rows = request->query_lens[sequence];
    bool direct = plan_is_direct(plan, model, request, sequence);
    bool mean = request->need_weights == ATTN_WEIGHTS_MEAN;
    struct plan_items items = {direct || mean ? 1 : model->info.num_heads, 1, 1};

    if (direct)
        rows *= plan->num_scored;
    if (plan_is_grouped(plan, model, request, sequence)) {
        rows *= plan->group;
        items.heads = model->info.num_kv_heads;
    }
    if (!direct || !mean)
        items.panels = (rows + columns - 1) / columns;
    if (plan->splits)
        items.chunks = (request->key_lens[sequence] - 1) / KERNEL_CHUNK_KEYS + 1;
    return items;
}
