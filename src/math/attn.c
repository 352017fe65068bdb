/* SPDX-License-Identifier: Apache-2.0 */
/* attn.c: the layer over BLAS.
 *
 * All rows of the batch are projected in one product per weight. Heads are then addressed
 * by leading dimension inside the projected rows: nothing is transposed or copied. For
 * each sequence, head and block of queries: scores, softmax, weighted sum of values. */
#include "math/blas.h"
#include "math/mask.h"
#include "math/model.h"
#include "math/plan.h"
#include "math/score.h"

#include <string.h>

/* What every step of one call needs. */
struct run {
    const attn_model *model;
    const attn_request *request;
    const struct plan *plan;
    float *queries; /* [sum of Tq, H*D]; becomes the heads' outputs */
    float *keys;    /* [sum of Tk, H*D] */
    float *values;  /* [sum of Tk, H*D] */
    float *scores;  /* [QUERY_BLOCK, longest Tk] */
    float *additive_keys, *additive_queries;
};

/* One head of one sequence. */
struct head {
    size_t sequence, index;
    size_t first_query; /* the sequence's first row in the batch */
    size_t query_len, key_len;
    float *queries;                  /* [Tq, D], rows H*D apart */
    struct blas_matrix keys, values; /* [Tk, D] */
    float *weights; /* the sequence's: [H, Tq, Tk] or [Tq, Tk]; NULL when not wanted */
};

/* y [rows, out] = x [rows, in] W^T + b */
static void project(const float *weight, const float *bias, size_t out, size_t in,
                    const float *x, size_t rows, float *y) {
    blas_multiply_transposed(rows, out, in, 1.0F, (struct blas_matrix){x, in},
                             (struct blas_matrix){weight, in}, y, out);
    for (size_t r = 0; bias != NULL && r < rows; r++) {
        for (size_t o = 0; o < out; o++)
            y[r * out + o] += bias[o];
    }
}

static float head_factor(const attn_request *request, size_t head) {
    return request->head_mask != NULL ? request->head_mask[head] : 1.0F;
}

/* Scores of queries first..first+count of the head, made into weights, in rows `ld`
 * apart. num_keys [count] says how many each query attends to; `uniform` which have no
 * valid key. */
static void weigh_block(const struct run *run, const struct head *head, size_t first,
                        size_t count, const size_t *num_keys, const bool *uniform,
                        size_t common, float *weights, size_t ld) {
    struct score_block block = {
        .model = run->model,
        .queries = {head->queries + first * run->plan->hidden, run->plan->hidden},
        .keys = head->keys,
        .num_queries = count,
        .num_keys = num_keys,
        .common = common,
        .additive_queries = run->additive_queries,
        .additive_keys = run->additive_keys,
    };
    score_compute(&block, weights, ld);
    for (size_t q = 0; q < count; q++) {
        if (!uniform[q])
            score_softmax(weights + q * ld, num_keys[q]);
        for (size_t k = 0; uniform[q] && k < num_keys[q]; k++)
            weights[q * ld + k] = 1.0F / (float)num_keys[q];
    }
}

/* The weighted sums of the values take the place of the block's queries. */
static void sum_values(const struct run *run, const struct head *head, size_t first,
                       size_t count, const size_t *num_keys, size_t common,
                       const float *weights, size_t ld) {
    size_t hidden = run->plan->hidden, head_size = run->model->info.head_size;
    float factor = head_factor(run->request, head->index);
    float *outputs = head->queries + first * hidden;
    struct blas_matrix rest = {head->values.data + common * hidden, hidden};
    if (factor != 0.0F)
        blas_multiply(count, head_size, common, (struct blas_matrix){weights, ld},
                      head->values, 0.0F, outputs, hidden);
    for (size_t q = 0; q < count; q++) {
        float *output = outputs + q * hidden;
        if (factor == 0.0F) { /* pruned: whatever its values are, they do not count */
            memset(output, 0, head_size * sizeof *output);
            continue;
        }
        if (num_keys[q] > common)
            blas_multiply(1, head_size, num_keys[q] - common,
                          (struct blas_matrix){weights + q * ld + common, ld}, rest, 1.0F,
                          output, hidden);
        for (size_t d = 0; d < head_size; d++)
            output[d] *= factor;
    }
}

/* Hands out the weights of a block that are wanted and not yet in their place. */
static void store_weights(const struct run *run, const struct head *head, size_t first,
                          size_t count, const size_t *num_keys, const float *weights,
                          size_t ld) {
    size_t num_heads = run->model->info.num_heads, key_len = head->key_len;
    for (size_t q = 0; q < count; q++) {
        size_t row = first + q;
        if (run->request->need_weights == ATTN_WEIGHTS_ALL) { /* computed in place */
            float *all = head->weights + (head->index * head->query_len + row) * key_len;
            memset(all + num_keys[q], 0, (key_len - num_keys[q]) * sizeof *all);
            continue;
        }
        float *mean = head->weights + row * key_len;
        if (head->index == 0)
            memset(mean, 0, key_len * sizeof *mean);
        for (size_t k = 0; k < num_keys[q]; k++)
            mean[k] += weights[q * ld + k] / (float)num_heads;
    }
}

static void run_block(const struct run *run, const struct head *head, size_t first,
                      size_t count) {
    size_t num_keys[QUERY_BLOCK], common = head->key_len;
    bool uniform[QUERY_BLOCK];
    for (size_t q = 0; q < count; q++) {
        num_keys[q] =
            mask_num_keys(run->request, head->sequence, head->first_query, first + q);
        uniform[q] = num_keys[q] == 0;
        if (uniform[q])
            num_keys[q] = head->key_len;
        if (num_keys[q] < common)
            common = num_keys[q];
    }
    float *weights = run->scores;
    size_t ld = run->plan->longest_key_len;
    if (run->request->need_weights == ATTN_WEIGHTS_ALL) {
        ld = head->key_len;
        weights = head->weights + (head->index * head->query_len + first) * ld;
    }
    weigh_block(run, head, first, count, num_keys, uniform, common, weights, ld);
    if (head->weights != NULL)
        store_weights(run, head, first, count, num_keys, weights, ld);
    sum_values(run, head, first, count, num_keys, common, weights, ld);
}

static void run_head(const struct run *run, const struct head *head) {
    if (run->model->info.scoring == ATTN_ADDITIVE)
        score_additive_keys(run->model, head->keys, head->key_len, run->additive_keys);
    for (size_t first = 0; first < head->query_len; first += QUERY_BLOCK) {
        size_t left = head->query_len - first;
        run_block(run, head, first, left < QUERY_BLOCK ? left : QUERY_BLOCK);
    }
}

static void run_heads(const struct run *run, float *weights) {
    const attn_request *request = run->request;
    size_t num_heads = run->model->info.num_heads, hidden = run->plan->hidden;
    size_t first_query = 0, first_key = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];
        for (size_t h = 0; h < num_heads; h++) {
            size_t column = h * run->model->info.head_size;
            struct head head = {
                .sequence = s,
                .index = h,
                .first_query = first_query,
                .query_len = query_len,
                .key_len = key_len,
                .queries = run->queries + first_query * hidden + column,
                .keys = {run->keys + first_key * hidden + column, hidden},
                .values = {run->values + first_key * hidden + column, hidden},
                .weights = weights,
            };
            run_head(run, &head);
        }
        first_query += query_len;
        first_key += key_len;
        if (request->need_weights != ATTN_WEIGHTS_NONE)
            weights += query_len * key_len *
                       (request->need_weights == ATTN_WEIGHTS_ALL ? num_heads : 1);
    }
}

attnd_status attn_run(const attn_model *model, const attn_request *request, void *scratch,
                      const attn_result *result) {
    const attn_model_info *info = &model->info;
    struct plan plan;
    attnd_status status = plan_make(model, request, &plan, NULL);
    if (status != ATTND_OK)
        return status;
    float *memory = scratch;
    struct run run = {
        .model = model,
        .request = request,
        .plan = &plan,
        .queries = info->output_projection ? memory + plan.queries : result->outputs,
        .keys = memory + plan.keys,
        .values = memory + plan.values,
        .scores = memory + plan.scores,
        .additive_keys = memory + plan.additive_keys,
        .additive_queries = memory + plan.additive_queries,
    };
    project(model->query_weight, model->query_bias, plan.hidden, info->query_size,
            request->queries, plan.sizes.num_queries, run.queries);
    project(model->key_weight, model->key_bias, plan.hidden, info->key_size,
            request->keys, plan.sizes.num_keys, run.keys);
    project(model->value_weight, model->value_bias, plan.hidden, info->value_size,
            request->values, plan.sizes.num_keys, run.values);
    bool wanted = request->need_weights != ATTN_WEIGHTS_NONE;
    run_heads(&run, wanted ? result->weights : NULL);
    if (info->output_projection)
        project(model->output_weight, model->output_bias, info->out_size, plan.hidden,
                run.queries, plan.sizes.num_queries, result->outputs);
    return ATTND_OK;
}
