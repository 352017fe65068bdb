/* SPDX-License-Identifier: Apache-2.0 */
/* flops.c: estimates how long a request takes, in operations. */
#include "math/plan/parts.h"

#include "math/plan/rules.h"

/* Operations that take as long as these: */
#define TANH_FLOPS      40   /* one tanh() of additive scoring */
#define SUM_FLOPS       40   /* what is summed up for each attention weight */
#define FINISH_FLOPS    16   /* a number that is finished, see attend/finish.c */
#define ANGLE_FLOPS     200  /* a cosine and a sine of a position, wherever it is */
#define GATE_FLOPS      32   /* a number that is gated, see run/sums.c */
#define NORM_FLOPS      8    /* a number that is normed there */
#define PACK_FLOPS      4    /* a number of a key that goes into a panel */
#define EVEN_ROW_FLOPS  4096 /* what even weights amount to in a row */
#define EVEN_PAIR_FLOPS 128  /* the same for each pair that is masked by itself */

static double linear_flops(const struct linear *linear, size_t rows) {
    double counted = (double)(rows < PLAN_ROWS_MIN ? PLAN_ROWS_MIN : rows);
    return rows > 0 ? 2 * counted * (double)linear->in * (double)linear->out : 0;
}

/* Counts the angles of positions that are given. Rows that follow each other share what
 * is expensive, see rotate.h; given positions may lie anywhere, on each axis. */
static double angle_flops(const attn_model_info *info, const attn_request *request,
                          const struct plan *plan) {
    double query_axes = request->positions != NULL,
           key_axes = request->key_positions != NULL;

    if (request->axis_positions != NULL)
        query_axes = ATTN_AXES;
    if (request->axis_key_positions != NULL)
        key_axes = ATTN_AXES;
    return ANGLE_FLOPS * (double)info->rotation.size / 2 *
           (query_axes * (double)plan->sizes.num_queries +
            key_axes * (double)plan->batch.projected_keys);
}

/* Counts what finishing takes, or packing. */
static double finish_flops(const attn_model_info *info, const attn_request *request,
                           const struct plan *plan) {
    const struct plan_layer *layer = &plan->layer;
    double queries = (double)plan->sizes.num_queries,
           keys = (double)plan->batch.projected_keys;

    if (!layer->finishes)
        return layer->packs ? PACK_FLOPS * keys * (double)layer->key_width : 0;
    double numbers = queries * (double)layer->score_width +
                     keys * (double)layer->key_width +
                     (layer->finishes_values ? keys * (double)layer->value_width : 0);
    return FINISH_FLOPS * numbers + angle_flops(info, request, plan);
}

void plan_count_flops(const attn_model *model, const attn_request *request,
                      struct plan *plan) {
    const struct engine *engine = &model->engine;
    const attn_model_info *info = &model->info;
    const struct plan_layer *layer = &plan->layer;
    const struct plan_batch *batch = &plan->batch;
    struct plan_flops *flops = &plan->flops;
    size_t queries = plan->sizes.num_queries, keys = batch->projected_keys;
    double score = engine->additive_score != NULL ? TANH_FLOPS : 2, num_summed = 0;
    double num_scored = (double)layer->num_scored, num_heads = (double)info->num_heads;

    for (size_t h = 0; h < info->num_heads; h++)
        num_summed += plan_sums_head(plan, request, h);
    double summed = num_summed / num_heads; /* share of the heads */
    double scored = num_scored / num_heads;

    flops->fold =
        scored * linear_flops(&engine->linears[ATTN_KEY], batch->direct_queries);
    flops->sum =
        summed * linear_flops(&engine->linears[ATTN_VALUE], batch->direct_queries);
    flops->merge =
        4 * (double)plan->scratch.num_partials * (double)plan->scratch.partial_floats;
    flops->attend = batch->pairs * (scored * score * (double)layer->score_width +
                                    summed * 2 * (double)layer->hidden);
    flops->attend += num_scored * batch->pair_flops + plan_reduce_flops(request, plan);
    flops->attend += 2 * batch->direct_pairs * num_scored *
                     ((double)info->width.key + (double)info->width.value);
    double all = flops->attend + flops->fold + flops->sum +
                 summed * linear_flops(&engine->linears[ATTN_VALUE], keys) +
                 linear_flops(&engine->linears[ATTN_LATENT_QUERY], queries) +
                 linear_flops(&engine->linears[ATTN_LATENT_KEY], keys);
    if (batch->any_scores)
        all += scored * (linear_flops(&engine->linears[ATTN_QUERY], queries) +
                         linear_flops(&engine->linears[ATTN_KEY], keys));
    if (layer->gates)
        all += summed * linear_flops(&engine->linears[ATTN_GATE], queries);
    if (plan->kind != PLAN_HEADS && info->linears[ATTN_OUTPUT].weight &&
        !request->omit_outputs)
        all += summed * linear_flops(&engine->linears[ATTN_OUTPUT], queries);
    if (request->need_contributions && info->linears[ATTN_OUTPUT].weight)
        all += (double)plan_selected_heads(info, request) *
               linear_flops(&engine->linears[ATTN_OUTPUT], queries);
    if (plan->kind == PLAN_HEADS) {
        flops->attend += SUM_FLOPS * batch->pairs * num_heads;
        flops->heads =
            linear_flops(&engine->linears[ATTN_OUTPUT], queries) +
            (double)queries * (double)info->width.out * num_heads * (num_heads + 4);
        flops->even =
            EVEN_ROW_FLOPS * (double)queries + EVEN_PAIR_FLOPS * batch->masked_pairs;
        all += SUM_FLOPS * batch->pairs * num_heads + flops->heads + flops->even;
    }
    flops->finish = finish_flops(info, request, plan);
    flops->finish_sums =
        (double)queries * (double)layer->hidden *
        ((layer->gates ? summed * GATE_FLOPS : 0) + (layer->norms_sums ? NORM_FLOPS : 0));
    plan->sizes.flops = all + flops->finish + flops->finish_sums;
}
