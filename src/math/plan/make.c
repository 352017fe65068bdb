/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: checks a request, and adds up its sizes before memory is allocated. */
#include "math/plan/make.h"

#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "math/mask.h"
#include "math/plan/flops.h"
#include "math/plan/rules.h"
#include "math/plan/scratch.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>

#define SEQUENCE_STEPS 64 /* of planning one */

/* Checks valid_lens of one sequence, whose first query is `first_query` of the batch. */
static bool valid_lens_fit(const attn_request *request, size_t sequence,
                           size_t first_query) {
    size_t key_len = request->key_lens[sequence];

    if (request->valid_lens == NULL)
        return true;
    if (!request->valid_lens_per_query)
        return request->valid_lens[sequence] <= key_len;
    for (size_t q = 0; q < request->query_lens[sequence]; q++) {
        pace_add(1);
        if (request->valid_lens[first_query + q] > key_len)
            return false;
    }
    return true;
}

/* Returns whether a head's weights or scores are computed, even if it adds nothing to
 * the outputs. */
static bool weighs_head(const struct plan *plan, const attn_request *request,
                        size_t head) {
    if (plan->kind == PLAN_HEADS || request->need_lse)
        return true;
    if (request->need_weights == ATTN_WEIGHTS_NONE)
        return false;
    if (request->need_weights == ATTN_WEIGHTS_MEAN || request->weights_heads == NULL)
        return true;
    for (size_t i = 0; i < request->num_weights_heads; i++) {
        if (request->weights_heads[i] == head)
            return true;
    }
    return false;
}

/* Checks that a selected index is less than `limit`; `where` says of what it is. */
static attn_status check_selected(const size_t *list, size_t count, size_t limit,
                                  const char *thing, const char *where,
                                  attn_error *ret_error) {
    for (size_t i = 0; list != NULL && i < count; i++) {
        pace_add(1);
        if (list[i] >= limit)
            return error_set(ret_error, ATTN_E_VALUE,
                             "weights of %s %zu are selected, but the last one%s is %zu",
                             thing, list[i], where, limit - 1);
    }
    return ATTN_OK;
}

/* Checks which weights are selected. */
static attn_status plan_selection(const attn_model_info *info,
                                  const attn_request *request, attn_error *ret_error) {
    size_t shortest = SIZE_MAX;
    attn_status status = ATTN_OK;

    for (size_t s = 0; s < request->num_sequences; s++)
        shortest = request->query_lens[s] < shortest ? request->query_lens[s] : shortest;
    if (request->need_weights == ATTN_WEIGHTS_ALL)
        status = check_selected(request->weights_heads, request->num_weights_heads,
                                info->num_heads, "head", "", ret_error);
    if (status == ATTN_OK && request->need_weights != ATTN_WEIGHTS_NONE)
        status =
            check_selected(request->weights_queries, request->num_weights_queries,
                           shortest, "query", " of the shortest sequence", ret_error);
    return status;
}

/* Returns whether biases by distance are computed pair by pair: they are rounded, rows
 * are of several heads, or few, or positions are not one apart. */
static bool has_uneven_biases(const attn_model *model, const attn_request *request,
                              const struct plan *plan, const struct mask *mask,
                              size_t sequence) {
    size_t query_len = request->query_lens[sequence];

    return model->info.bias != ATTN_BIAS_NONE &&
           (model->info.bias == ATTN_BIAS_ALIBI_ROUNDED ||
            query_len <= model->engine.kernels->few ||
            plan_is_grouped(plan, model, request, sequence) ||
            !mask_is_even(mask->positions, query_len) ||
            !mask_is_even(mask->key_positions, mask->key_len));
}

/* Returns how many keys a query costs in a sequence: with a window those of its panel. An
 * estimate; positions are taken to be consecutive. */
static size_t count_read_keys(const attn_model *model, const attn_request *request,
                              size_t key_len) {
    size_t window = request->window, columns = model->engine.kernels->columns;

    if (window == 0 || window >= key_len)
        return key_len;
    size_t keys = window * (request->causal ? 1 : 2) + columns + KEY_BLOCK;
    return keys < key_len ? keys : key_len;
}

/* Adds what the attention of one sequence needs to the plan. */
static bool plan_attention(const attn_model *model, const attn_request *request,
                           size_t sequence, const struct mask *mask, struct plan *plan) {
    const attn_model_info *info = &model->info;
    size_t columns = model->engine.kernels->columns;
    size_t rows = request->query_lens[sequence], key_len = request->key_lens[sequence];
    size_t score_size = model->engine.score_size, result_size = info->head_size;
    double read_keys =
        (double)(mask->by_pair ? key_len : count_read_keys(model, request, key_len));
    double pairs = (double)rows * read_keys, heads = (double)info->num_heads;
    bool biased = has_uneven_biases(model, request, plan, mask, sequence);
    double pair_flops = plan_pair_flops(mask->by_pair, biased);

    if (plan_is_direct(plan, model, request, sequence)) {
        plan->num_direct++;
        plan->direct_queries += rows;
        plan->direct_pairs += pairs;
        rows *= plan->num_scored; /* at most a quarter of H*D */
        heads = (double)plan->num_scored;
        score_size = info->key_size;
        result_size = info->value_size;
        if (!size_add(plan->direct_rows, rows, &plan->direct_rows))
            return false;
    } else {
        plan->projected_keys += key_len;
        plan->pairs += pairs;
        plan->masked_pairs += mask->by_pair ? pairs : 0;
        plan->pair_flops += pairs * pair_flops;
        plan->num_panels += (rows - 1) / columns + 1;
    }

    if (plan_is_grouped(plan, model, request, sequence)) {
        plan->grouped = true;
        rows *= plan->group; /* fewer than H columns */
    }

    double flops =
        read_keys * (2 * ((double)score_size + (double)result_size) + pair_flops);
    double panel_flops = flops * (double)(rows < columns ? rows : columns);
    plan->items_flops += flops * (double)request->query_lens[sequence] * heads;
    if (panel_flops > plan->panel_flops)
        plan->panel_flops = panel_flops;
    if (rows > plan->chunk_rows)
        plan->chunk_rows = rows < columns ? rows : columns;
    if (score_size > plan->score_size)
        plan->score_size = score_size;
    if (result_size > plan->result_size)
        plan->result_size = result_size;
    return true;
}

/* Checks one sequence, and adds its rows, weights and panels to the plan. */
static attn_status plan_sequence(const attn_model *model, const attn_request *request,
                                 size_t sequence, struct plan *plan,
                                 attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    attn_sizes *sizes = &plan->sizes;
    size_t query_len = request->query_lens[sequence];
    size_t key_len = request->key_lens[sequence];
    size_t first_query = sizes->num_queries, first_key = sizes->num_keys, weights;
    struct mask mask;

    if (query_len == 0 || key_len == 0)
        return error_set(ret_error, ATTN_E_SHAPE, "sequence %zu is empty", sequence);
    if (info->context_length > 0 &&
        (query_len > info->context_length || key_len > info->context_length))
        return error_set(ret_error, ATTN_E_SHAPE,
                         "sequence %zu is longer than the context length %zu", sequence,
                         info->context_length);

    /* Nothing reads [sum of Tq] entries before their number is known to fit. */
    if (!size_add(sizes->num_queries, query_len, &sizes->num_queries) ||
        !size_add(sizes->num_keys, key_len, &sizes->num_keys) ||
        sizes->num_queries > INT_MAX || sizes->num_keys > INT_MAX ||
        !size_mul(plan_weights_heads(info, request), plan_weights_rows(request, sequence),
                  &weights) ||
        !size_add_mul(&sizes->weights, weights, key_len))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    if (!valid_lens_fit(request, sequence, first_query))
        return error_set(ret_error, ATTN_E_VALUE,
                         "valid_lens of sequence %zu is over its %zu keys", sequence,
                         key_len);
    attn_status status =
        mask_check_positions(request, sequence, first_query, first_key, ret_error);
    if (status != ATTN_OK)
        return status;

    if (query_len > plan->longest_query_len)
        plan->longest_query_len = query_len;
    if (key_len > plan->longest_key_len)
        plan->longest_key_len = key_len;
    mask_init(&mask, request, sequence, first_query, first_key);
    if (!plan_attention(model, request, sequence, &mask, plan))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    return ATTN_OK;
}

/* Checks every sequence and adds up their sizes. */
static attn_status plan_sequences(const attn_model *model, const attn_request *request,
                                  struct plan *plan, attn_error *ret_error) {
    if (request->num_sequences == 0)
        return error_set(ret_error, ATTN_E_SHAPE, "the batch is empty");
    for (size_t s = 0; s < request->num_sequences; s++) {
        pace_add(SEQUENCE_STEPS);
        attn_status status = plan_sequence(model, request, s, plan, ret_error);
        if (status != ATTN_OK)
            return status;
    }
    return plan_selection(&model->info, request, ret_error);
}

attn_status plan_make(const attn_model *model, const attn_request *request,
                      enum plan_kind kind, struct plan *ret_plan, attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    const struct engine *engine = &model->engine;
    size_t columns = engine->kernels->columns;
    struct plan plan = {.kind = kind,
                        .by_head = engine->native && info->head_size % columns == 0 &&
                                   engine->score_size % columns == 0,
                        .group = info->num_heads / info->num_kv_heads,
                        .hidden = info->num_heads * info->head_size,
                        .score_width = info->num_heads * engine->score_size,
                        .key_width = info->num_kv_heads * engine->score_size,
                        .value_width = info->num_kv_heads * info->head_size,
                        .sums = kind == PLAN_HEADS || !request->omit_outputs ||
                                request->need_heads};

    plan.key_panels =
        plan.by_head && engine->additive_score == NULL && columns >= PLAN_PANELS_COLUMNS;
    plan.finishes =
        info->clip > 0 || info->head_norm != ATTN_NORM_NONE || info->rope_size > 0;
    plan.key_ld = plan.by_head ? engine->score_size : plan.key_width;
    if (plan.key_panels && !plan.finishes)
        plan.key_ld /= engine->kernels->k_step;
    plan.norms_keys = info->pre_norm_applied &&
                      (info->kind == NULL || strcmp(info->kind, "cross") != 0);
    for (size_t h = 0; h < info->num_heads; h++)
        plan.num_scored +=
            plan_sums_head(&plan, request, h) || weighs_head(&plan, request, h);
    attn_status status = plan_sequences(model, request, &plan, ret_error);
    if (status != ATTN_OK)
        return status;
    plan.any_scores = plan.longest_key_len > 1 || info->sinks || request->need_lse;
    if (!plan_scratch(model, request, &plan))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    plan_count_flops(model, request, &plan);
    *ret_plan = plan;
    return ATTN_OK;
}

attn_status attn_plan(const attn_model *model, const attn_request *request,
                      attn_sizes *ret_sizes, attn_error *ret_error) {
    struct plan plan;
    attn_status status = plan_make(model, request, PLAN_RUN, &plan, ret_error);

    if (status == ATTN_OK)
        *ret_sizes = plan.sizes;
    return status;
}
