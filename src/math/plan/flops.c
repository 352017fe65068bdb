/* SPDX-License-Identifier: Apache-2.0 */
/* flops.c: estimates how long a request takes, in operations. */
#include "math/plan/parts.h"

#include "base/pace.h"
#include "math/plan/rules.h"

/* Operations that take as long as these: */
#define TANH_FLOPS      40   /* one tanh() of additive scoring */
#define HEAD_SUM_FLOPS  40   /* what is summed up for each attention weight */
#define FINISH_FLOPS    16   /* a number that is finished, see attend/finish.c */
#define ANGLE_FLOPS     200  /* a cosine and a sine of a position, wherever it is */
#define GATE_FLOPS      32   /* a number that is gated, see run/sums.c */
#define NORM_FLOPS      8    /* a number that is normed there */
#define PACK_FLOPS      4    /* a number of a key that goes into a panel */
#define SUM_FLOPS       4    /* a weight that is added to a span */
#define TOP_FLOPS       8    /* one that is compared */
#define PREFIX_FLOPS    64   /* one that is added to those before */
#define EVEN_ROW_FLOPS  4096 /* what even weights amount to in a row */
#define EVEN_PAIR_FLOPS 128  /* the same for each pair that is masked by itself */

static double linear_flops(const struct linear *linear, size_t rows) {
    double counted = (double)(rows < PLAN_ROWS_MIN ? PLAN_ROWS_MIN : rows);
    return rows > 0 ? 2 * counted * (double)linear->in * (double)linear->out : 0;
}

/* Counts the angles of positions that are given. Rows that follow each other share what
 * is expensive, see rotate.h; given positions may lie anywhere, on each axis. */
static double angle_flops(const struct plan *plan) {
    const attn_request *request = plan->request;
    double query_axes = request->positions != NULL,
           key_axes = request->key_positions != NULL;

    if (request->axis_positions != NULL)
        query_axes = ATTN_AXES;
    if (request->axis_key_positions != NULL)
        key_axes = ATTN_AXES;
    return ANGLE_FLOPS * (double)plan->model->info.rotation.size / 2 *
           (query_axes * (double)plan->batch.num_queries +
            key_axes * (double)plan->batch.projected_keys);
}

/* Counts what finishing takes, or packing. */
static double finish_flops(const struct plan *plan) {
    const struct plan_layer *layer = &plan->layer;
    double queries = (double)plan->batch.num_queries,
           keys = (double)plan->batch.projected_keys;

    if (!layer->finishes)
        return layer->packs ? PACK_FLOPS * keys * (double)layer->key_width : 0;
    double numbers = queries * (double)layer->score_width +
                     keys * (double)layer->key_width +
                     (layer->finishes_values ? keys * (double)layer->value_width : 0);
    return FINISH_FLOPS * numbers + angle_flops(plan);
}

/* Counts what reductions take in all heads that are scored. */
static double reduce_flops(const struct plan *plan) {
    const attn_request *request = plan->request;
    const attn_reductions *reduce = &request->reduce;
    const struct plan_batch *batch = &plan->batch;
    double flops = 0, keys = (double)batch->longest_key_len, ranged = 0;
    size_t lists = reduce->spans_per_sequence ? request->num_sequences : 1;

    bool prefixes = plan_sums_prefixes(request);
    for (size_t i = 0;
         reduce->spans != NULL && !prefixes && i < lists * reduce->num_spans; i++) {
        pace_add(1);
        ranged += (double)(reduce->spans[2 * i + 1] - reduce->spans[2 * i]);
    }
    flops += SUM_FLOPS * ranged / (double)lists / keys;
    if (prefixes) /* one addition waits for another */
        flops += PREFIX_FLOPS + SUM_FLOPS * (double)reduce->num_spans / keys;
    for (size_t i = 0; reduce->top_in != NULL && i < reduce->num_top_in; i++)
        flops += TOP_FLOPS * (double)(reduce->top_in[2 * i + 1] - reduce->top_in[2 * i]) /
                 keys;
    if (reduce->top_k > 0 && reduce->top_in == NULL)
        flops += TOP_FLOPS;
    for (enum result_id id = 0; id < NUM_RESULTS; id++)
        flops += plan->wanted.has[id] ? result_table[id].flops : 0;
    /* Alone, they are the only product of queries and keys. */
    if (reduce->scores &&
        (plan_wants(plan, RESULT_WEIGHED) || plan->layer.sums || request->need_lse))
        flops += 2 * (double)batch->score_size;
    return flops * (batch->pairs + batch->direct_pairs) * (double)plan->layer.num_scored;
}

void plan_count_flops(struct plan *plan) {
    const attn_request *request = plan->request;
    const struct engine *engine = &plan->model->engine;
    const attn_model_info *info = &plan->model->info;
    const struct plan_layer *layer = &plan->layer;
    const struct plan_batch *batch = &plan->batch;
    struct plan_flops *flops = &plan->flops;
    size_t queries = plan->batch.num_queries, keys = batch->projected_keys;
    double score = engine->additive_score != NULL ? TANH_FLOPS : 2;
    double num_scored = (double)layer->num_scored, num_heads = (double)info->num_heads;

    double summed = (double)layer->num_summed / num_heads; /* share of the heads */
    double scored = num_scored / num_heads;

    flops->fold =
        scored * linear_flops(&engine->linears[ATTN_KEY], batch->direct_queries);
    flops->sum =
        summed * linear_flops(&engine->linears[ATTN_VALUE], batch->direct_queries);
    flops->merge =
        4 * (double)plan->scratch.num_partials * (double)plan->scratch.partial_floats;
    flops->attend = batch->pairs * (scored * score * (double)layer->score_width +
                                    summed * 2 * (double)layer->hidden);
    flops->attend += num_scored * batch->pair_flops + reduce_flops(plan);
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
        all += (double)plan->wanted.num_selected *
               linear_flops(&engine->linears[ATTN_OUTPUT], queries);
    if (request->need_projections)
        all += linear_flops(&engine->linears[ATTN_QUERY], queries) +
               linear_flops(&engine->linears[ATTN_KEY], batch->num_keys) +
               linear_flops(&engine->linears[ATTN_VALUE], batch->num_keys);
    if (plan->kind == PLAN_HEADS) {
        flops->attend += HEAD_SUM_FLOPS * batch->pairs * num_heads;
        flops->heads =
            linear_flops(&engine->linears[ATTN_OUTPUT], queries) +
            (double)queries * (double)info->width.out * num_heads * (num_heads + 4);
        flops->even =
            EVEN_ROW_FLOPS * (double)queries + EVEN_PAIR_FLOPS * batch->masked_pairs;
        all += HEAD_SUM_FLOPS * batch->pairs * num_heads + flops->heads + flops->even;
    }
    flops->finish = finish_flops(plan);
    flops->finish_sums =
        (double)queries * (double)layer->hidden *
        ((layer->gates ? summed * GATE_FLOPS : 0) + (layer->norms_sums ? NORM_FLOPS : 0));
    flops->all = all + flops->finish + flops->finish_sums;
}
