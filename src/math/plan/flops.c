/* SPDX-License-Identifier: Apache-2.0 */
/* flops.c: estimates how long a request takes, in operations. */
#include "math/plan/flops.h"

#include "math/mask.h"
#include "math/model.h"

/* As many operations take as long as one of the tanh() of additive scoring. */
#define TANH_FLOPS 40

/* Likewise, of what is summed up for each attention weight. */
#define SUM_FLOPS 40

/* Likewise, of a number that is finished, see attend/finish.c. */
#define FINISH_FLOPS 16

/* Likewise, of a pair that is masked by itself, with the search for the first and last
 * key of a query, and of one whose bias is computed by itself. */
#define MASK_FLOPS 96
#define BIAS_FLOPS 32

/* Likewise, of a pair with both: near and far keys are neighbours then, so nearly every
 * vector of attention weights has some below 2^-126, which take the CPU far longer. */
#define SCATTERED_FLOPS 512

/* Likewise, of what even weights amount to in a row; and for each pair that is masked by
 * itself. */
#define EVEN_ROW_FLOPS  4096
#define EVEN_PAIR_FLOPS 128

double plan_pair_flops(bool masked, bool biased) {
    if (masked && biased)
        return SCATTERED_FLOPS;
    return (masked ? MASK_FLOPS : 0) + (biased ? BIAS_FLOPS : 0);
}

static double linear_flops(const struct linear *linear, size_t rows) {
    double counted = (double)(rows < PLAN_ROWS_MIN ? PLAN_ROWS_MIN : rows);
    return rows > 0 ? 2 * counted * (double)linear->in * (double)linear->out : 0;
}

void plan_count_flops(const attn_model *model, const attn_request *request,
                      struct plan *plan) {
    const struct engine *engine = &model->engine;
    const attn_model_info *info = &model->info;
    size_t queries = plan->sizes.num_queries, keys = plan->projected_keys;
    double score = engine->additive_score != NULL ? TANH_FLOPS : 2;
    size_t num_heads = info->num_heads, num_summed = num_heads;

    for (size_t h = 0; request->head_mask != NULL && h < num_heads; h++)
        num_summed -= mask_head_factor(request, h) == 0.0F;
    if (!plan->sums)
        num_summed = 0;
    double summed = (double)num_summed / (double)num_heads; /* share of the heads */
    double scored = (double)plan->num_scored / (double)num_heads;

    plan->fold_flops = scored * linear_flops(&engine->to_key, plan->direct_queries);
    plan->sums_flops = summed * linear_flops(&engine->to_value, plan->direct_queries);
    plan->attend_flops = plan->pairs * (scored * score * (double)plan->score_width +
                                        summed * 2 * (double)plan->hidden);
    plan->attend_flops += (double)plan->num_scored * plan->pair_flops;
    plan->attend_flops += 2 * plan->direct_pairs * (double)plan->num_scored *
                          ((double)info->key_size + (double)info->value_size);
    double flops = plan->attend_flops + plan->fold_flops + plan->sums_flops +
                   summed * linear_flops(&engine->to_value, keys);
    if (plan->any_scores)
        flops += scored * (linear_flops(&engine->to_query, queries) +
                           linear_flops(&engine->to_key, keys));
    if (plan->kind != PLAN_HEADS && info->output_projection && !request->omit_outputs)
        flops += summed * linear_flops(&engine->to_output, queries);
    if (plan->kind == PLAN_HEADS) {
        plan->attend_flops += SUM_FLOPS * plan->pairs * (double)num_heads;
        plan->heads_flops = linear_flops(&engine->to_output, queries) +
                            (double)queries * (double)model->info.out_size *
                                (double)num_heads * (double)(num_heads + 4);
        plan->even_flops =
            EVEN_ROW_FLOPS * (double)queries + EVEN_PAIR_FLOPS * plan->masked_pairs;
        flops += SUM_FLOPS * plan->pairs * (double)num_heads + plan->heads_flops +
                 plan->even_flops;
    }
    if (plan->finishes)
        plan->finish_flops = FINISH_FLOPS * ((double)queries * (double)plan->score_width +
                                             (double)keys * (double)plan->key_width);
    plan->sizes.flops = flops + plan->finish_flops;
}
