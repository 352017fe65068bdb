/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: plans a request, phase by phase: what the layer does, the sizes of all
 * sequences, and what follows from these. */
#include "math/plan/plan.h"

#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "math/mask.h"
#include "math/packed.h"
#include "math/plan/parts.h"
#include "math/plan/rules.h"

#include <limits.h>
#include <string.h>

/* Operations that take as long as a pair that is masked by itself, with the search for
 * the first and last key of a query; a pair whose bias is computed by itself; and a pair
 * with both. Near and far keys are neighbours then, so nearly every vector of attention
 * weights has some below 2^-126, which take the CPU far longer. */
#define MASK_FLOPS      96
#define BIAS_FLOPS      32
#define SCATTERED_FLOPS 512

#define POSITION_FLOPS 4 /* of a number of a key, for all positions near its queries */

/* The operations of a pair besides its products, by whether it is masked, and biased. */
static const double pair_flops_of[2][2] = {{0, BIAS_FLOPS},
                                           {MASK_FLOPS, SCATTERED_FLOPS}};

#define SEQUENCE_STEPS 64 /* of planning one */
#define PANELS_COLUMNS 16 /* narrower tiles gain nothing from keys in panels */
#define PANELS_READ    3  /* panels of queries that read rows as fast, all in all */
#define PHASE_BYTES    (32.0 * 1024 * 1024) /* of keys and values that are copied */

/* Returns whether biases are read or computed pair by pair: they are given or rounded,
 * rows are of several heads, or few, or positions are not one apart. */
static bool has_uneven_biases(const attn_model *model, const struct mask *mask,
                              size_t query_len, size_t heads) {
    if (mask->bias != NULL)
        return true;
    return model->info.score.bias != ATTN_BIAS_NONE &&
           (model->info.score.bias == ATTN_BIAS_ALIBI_ROUNDED ||
            model->info.score.bias == ATTN_BIAS_CONTENT || heads > 1 ||
            query_len <= model->engine.kernels->few ||
            !mask_is_even(mask->positions, query_len) ||
            !mask_is_even(mask->key_positions, mask->key_len));
}

/* Returns how many keys a query costs in a sequence: with a window or chunks those of its
 * panel. An estimate; positions are taken to be consecutive. */
static size_t count_read_keys(const attn_model *model, const struct mask *mask) {
    size_t window = mask->window, key_len = mask->key_len, reach = key_len;

    if (window > 0 && window < key_len)
        reach = window * (mask->causal ? 1 : 2) + mask->prefix_len;
    if (mask->chunk > 0 && mask->chunk < reach)
        reach = mask->chunk;
    size_t keys = reach + model->engine.kernels->columns + KEY_BLOCK;
    return keys < key_len ? keys : key_len;
}

/* Adds what the attention of one sequence needs. */
static bool plan_attention(struct plan *plan, size_t sequence, const struct mask *mask) {
    const attn_model *model = plan->model;
    const attn_request *request = plan->request;
    const attn_model_info *info = &model->info;
    struct plan_batch *batch = &plan->batch;
    const struct plan_items items = plan_items(plan, sequence);
    size_t columns = model->engine.kernels->columns, key_len = mask->key_len;
    size_t query_len = request->query_lens[sequence];
    size_t score_size = model->engine.score_size, result_size = info->width.head;
    double scored = (double)plan->layer.num_scored;
    double read_keys = (double)(mask->by_pair ? key_len : count_read_keys(model, mask));
    double pairs = (double)query_len * read_keys;
    bool biased = has_uneven_biases(model, mask, query_len, items.shared);
    double pair_flops = pair_flops_of[mask->by_pair][biased];

    pair_flops += (double)((info->score.position_keys ? 2 : 0) +
                           (info->score.position_queries ? POSITION_FLOPS : 0)) *
                  (double)score_size;
    if (items.kind == SEQUENCE_DIRECT) {
        score_size = info->width.key;
        result_size = info->width.value;
        batch->num_direct++;
        batch->direct_queries += query_len;
        batch->direct_pairs += pairs;
        if (!size_add_mul(&batch->direct_rows, query_len, plan->layer.num_scored))
            return false;
    } else {
        batch->projected_keys += key_len;
        batch->pairs += pairs;
        batch->masked_pairs += mask->by_pair ? pairs : 0;
        batch->pair_flops += pairs * pair_flops;
        batch->num_panels += (query_len - 1) / columns + 1;
    }

    double flops =
        read_keys * (2 * ((double)score_size + (double)result_size) + pair_flops);
    size_t rows = size_min(items.rows, columns);
    batch->grouped = batch->grouped || items.kind == SEQUENCE_GROUPED;
    batch->items_flops += flops * (double)query_len * scored;
    if (flops * (double)rows > batch->panel_flops)
        batch->panel_flops = flops * (double)rows;
    batch->panel_rows = size_max(batch->panel_rows, rows);
    batch->score_size = size_max(batch->score_size, score_size);
    batch->result_size = size_max(batch->result_size, result_size);
    return true;
}

/* Checks one sequence, and adds its rows, weights and panels to the plan. */
static attn_status plan_sequence(struct plan *plan, size_t sequence,
                                 attn_error *ret_error) {
    const attn_request *request = plan->request;
    struct plan_batch *batch = &plan->batch;
    size_t query_len = request->query_lens[sequence];
    size_t key_len = request->key_lens[sequence];
    size_t first_query = batch->num_queries, first_key = batch->num_keys;
    struct mask mask;

    attn_status status = plan_check_lens(plan, sequence, ret_error);
    if (status != ATTN_OK)
        return status;
    /* Nothing reads [sum of Tq] entries before their number is known to fit. */
    if (!size_add(batch->num_queries, query_len, &batch->num_queries) ||
        !size_add(batch->num_keys, key_len, &batch->num_keys) ||
        batch->num_queries > INT_MAX || batch->num_keys > INT_MAX ||
        !results_add(&plan->wanted, sequence, batch->results))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    status = plan_check_entries(request, sequence, first_query, first_key, ret_error);
    if (status != ATTN_OK)
        return status;

    batch->longest_query_len = size_max(batch->longest_query_len, query_len);
    batch->longest_key_len = size_max(batch->longest_key_len, key_len);
    mask_init(&mask, request, sequence, first_query, first_key);
    if (!plan_attention(plan, sequence, &mask))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    return ATTN_OK;
}

/* Returns whether keys that are given are read often enough to be transposed. The layout
 * of keys does not change a bit. */
static bool repays_panels(const struct plan *plan) {
    const attn_model *model = plan->model;
    const attn_request *request = plan->request;
    size_t group = model->info.num_heads / model->info.num_kv_heads;
    size_t few = PANELS_READ * model->engine.kernels->columns / group;

    for (size_t s = 0; s < request->num_sequences; s++) {
        pace_add(1);
        if (request->query_lens[s] > few)
            return true;
    }
    return false;
}

static bool is_bf16(const char *type) {
    return strcmp(type, "BF16") == 0;
}

/* Plans how kept keys and values are read. Keys in bfloat16 are read as they are by
 * panels of few queries, where reading is what takes time, and which make no sums. */
static void plan_packed(struct plan *plan) {
    const struct attn_packed *packed = plan->request->packed;
    struct plan_layer *layer = &plan->layer;
    bool few = plan->kind != PLAN_HEADS &&
               plan_items(plan, 0).rows <= plan->model->engine.kernels->few;

    layer->key_panels = true;
    layer->keys_in_bf16 = is_bf16(packed->keys_type) && few;
    layer->packs = is_bf16(packed->keys_type) && !few;
    layer->packs_values = layer->sums && is_bf16(packed->values_type);
}

/* Plans what follows from the model, and from what is wanted. */
static void plan_layer(struct plan *plan) {
    const attn_model *model = plan->model;
    const attn_request *request = plan->request;
    const attn_model_info *info = &model->info;
    const struct engine *engine = &model->engine;
    size_t columns = engine->kernels->columns;
    struct plan_layer *layer = &plan->layer;

    *layer = (struct plan_layer){
        .group = info->num_heads / info->num_kv_heads,
        .shared = {1, info->num_heads / info->num_kv_heads, info->num_heads},
        .score_width = info->num_heads * engine->score_size,
        .key_width = info->num_kv_heads * engine->score_size,
        .value_width = info->num_kv_heads * info->width.head,
        .hidden = info->num_heads * info->width.head,
        .sums =
            !request->omit_outputs || request->need_heads || request->need_contributions,
        .by_head = engine->native && !info->projection.given &&
                   info->width.head % columns == 0 && engine->score_size % columns == 0,
        .finishes = model->effects.finishes,
        .norms_keys = info->pre_norm.applied && model_has_own_keys(info),
    };
    layer->takes_direct = plan->kind == PLAN_RUN && engine->native &&
                          engine->additive_score == NULL && !model->effects.indirect &&
                          request->positions == NULL && request->key_positions == NULL &&
                          request->window == 0 && request->chunk == 0;
    layer->direct_queries_max =
        (engine->score_size + info->width.head) / 2 / PLAN_DIRECT_SHARE;
    layer->takes_groups =
        plan->kind != PLAN_HEADS && layer->group > 1 &&
        request->need_weights != ATTN_WEIGHTS_MEAN &&
        info->score.bias != ATTN_BIAS_CONTENT; /* panels are of one head then */
    layer->gates = info->linears[ATTN_GATE].weight && layer->sums;
    layer->sums_in_result = plan->kind != PLAN_HEADS &&
                            (request->need_heads || (!request->omit_outputs &&
                                                     !info->linears[ATTN_OUTPUT].weight));
    layer->norms_sums = info->out_norm.kind != ATTN_NORM_NONE && layer->sums;
    layer->finishes_values = model->effects.finishes_values && layer->sums;
    layer->key_panels =
        (layer->by_head || (info->projection.given && repays_panels(plan))) &&
        engine->additive_score == NULL && columns >= PANELS_COLUMNS;
    layer->packs =
        info->projection.given && (layer->key_panels || request->encoded_keys != NULL);
    layer->packs_values = layer->packs && layer->key_panels && layer->sums &&
                          request->need_weights != ATTN_WEIGHTS_MEAN;
    for (size_t h = 0; h < info->num_heads; h++) {
        unsigned uses = plan_find_uses(plan, h);
        layer->num_summed += (uses & HEAD_SUMMED) != 0;
        layer->num_scored += (uses & HEAD_SCORED) != 0;
    }
    if (request->packed != NULL)
        plan_packed(plan);
}

/* Plans how projected keys and values lie, and how many key heads attend at a time: where
 * they are copied, as many as PHASE_BYTES have room for, but at least one. The mean needs
 * all. */
static void plan_rows(struct plan *plan) {
    const attn_model *model = plan->model;
    const struct attn_packed *packed = plan->request->packed;
    const struct plan_batch *batch = &plan->batch;
    struct plan_layer *layer = &plan->layer;
    size_t size = model->engine.score_size, value_size = model->info.width.head;
    double numbers = (double)batch->projected_keys * (double)(size + value_size);
    double heads = PHASE_BYTES / (numbers * sizeof(float));

    layer->phase_heads = model->info.num_kv_heads;
    if ((layer->packs || layer->packs_values) &&
        plan->request->need_weights != ATTN_WEIGHTS_MEAN &&
        heads < (double)layer->phase_heads)
        layer->phase_heads = size_max((size_t)heads, 1);

    plan->keys = (struct plan_rows){size, layer->key_width};
    plan->values = (struct plan_rows){value_size, layer->value_width};
    if (layer->key_panels && !layer->finishes)
        size /= model->engine.kernels->k_step;
    if (layer->by_head || layer->packs)
        plan->keys = (struct plan_rows){batch->projected_keys * size, size};
    if (layer->by_head || layer->packs_values)
        plan->values = (struct plan_rows){batch->value_rows * value_size, value_size};
    if (packed != NULL && !layer->packs)
        plan->keys = (struct plan_rows){packed_head_ld(packed, size), size};
    if (packed != NULL && !layer->packs_values)
        plan->values = (struct plan_rows){packed_head_ld(packed, value_size), value_size};
}

attn_status plan_make(const attn_model *model, const attn_request *request,
                      enum plan_kind kind, struct plan *ret_plan, attn_error *ret_error) {
    const attn_parallel *parallel = request->parallel;
    size_t k_step = model->engine.kernels->k_step, sequences = request->num_sequences;
    struct plan_batch *batch = &ret_plan->batch;

    *ret_plan =
        (struct plan){.model = model,
                      .request = request,
                      .kind = kind,
                      .num_threads = parallel != NULL ? parallel->num_threads : 1};
    results_find(&model->info, request, &ret_plan->wanted);
    ret_plan->wanted.has[RESULT_OUTPUTS] &= kind != PLAN_HEADS;
    plan_layer(ret_plan);

    attn_status status = plan_check_taken(ret_plan, ret_error);
    for (size_t s = 0; s < sequences && status == ATTN_OK; s++) {
        pace_add(SEQUENCE_STEPS);
        status = plan_sequence(ret_plan, s, ret_error);
    }
    if (status == ATTN_OK)
        status = plan_check_selected(ret_plan, ret_error);
    if (status == ATTN_OK)
        status = plan_check_reductions(request, ret_error);
    if (status != ATTN_OK)
        return status;

    batch->value_rows = (batch->projected_keys + sequences * (k_step - 1)) / k_step;
    batch->any_scores = batch->longest_key_len > 1 || model->info.score.sinks ||
                        request->need_lse || request->reduce.scores;
    plan_rows(ret_plan);
    plan_scratch(ret_plan);
    plan_count_flops(ret_plan);
    return ATTN_OK;
}
