/* SPDX-License-Identifier: Apache-2.0 */
/* ref.c: the definition of the layer, loop by loop, in float64. */
#include "math/ref.h"

#include "math/mask.h"
#include "math/model.h"
#include "math/plan.h"

#include <math.h>
#include <stdlib.h>

/* Computes y [out] = x [in] W^T + b. */
static void ref_linear(const float *weight, const float *bias, size_t out, size_t in,
                       const double *x, double *y) {
    for (size_t o = 0; o < out; o++) {
        y[o] = bias != NULL ? (double)bias[o] : 0.0;
        for (size_t i = 0; i < in; i++)
            y[o] += (double)weight[o * in + i] * x[i];
    }
}

/* Projects `rows` float32 rows. The caller frees the result [rows, out], which is NULL
 * when memory runs out. */
static double *ref_project(const float *weight, const float *bias, size_t out, size_t in,
                           const float *x, size_t rows) {
    double *y = calloc(rows * out, sizeof *y), *row = calloc(in, sizeof *row);

    for (size_t r = 0; y != NULL && row != NULL && r < rows; r++) {
        for (size_t i = 0; i < in; i++)
            row[i] = (double)x[r * in + i];
        ref_linear(weight, bias, out, in, row, y + r * out);
    }
    if (row == NULL) {
        free(y);
        y = NULL;
    }
    free(row);
    return y;
}

/* Returns the score of one query and one key, both [D]. */
static double ref_score(const attn_model *model, const double *query, const double *key) {
    size_t head_size = model->info.head_size;
    double sum = 0;

    if (model->info.scoring == ATTN_SCALED_DOT_PRODUCT) {
        for (size_t d = 0; d < head_size; d++)
            sum += query[d] * key[d];
        return sum / sqrt((double)head_size);
    }

    for (size_t a = 0; a < model->info.additive_size; a++) {
        double inner = 0;
        for (size_t d = 0; d < head_size; d++)
            inner += (double)model->additive_query[a * head_size + d] * query[d] +
                     (double)model->additive_key[a * head_size + d] * key[d];
        sum += (double)model->additive_score[a] * tanh(inner);
    }
    return sum;
}

/* Turns `count` scores into weights that sum to 1. */
static void ref_softmax(double *scores, size_t count) {
    double max = scores[0], sum = 0;

    for (size_t k = 1; k < count; k++)
        max = fmax(max, scores[k]);
    for (size_t k = 0; k < count; k++)
        sum += scores[k] = exp(scores[k] - max);
    for (size_t k = 0; k < count; k++)
        scores[k] /= sum;
}

/* Computes the weights [Tk] of one query [D] for the keys of its sequence, Tk rows of
 * [H*D]. */
static void ref_weigh(const attn_model *model, const double *query, const double *keys,
                      size_t num_keys, size_t key_len, double *ret_weights) {
    size_t hidden = model->info.num_heads * model->info.head_size;

    for (size_t k = 0; k < key_len; k++)
        ret_weights[k] = num_keys == 0 ? 1.0 / (double)key_len : 0.0;
    for (size_t k = 0; k < num_keys; k++)
        ret_weights[k] = ref_score(model, query, keys + k * hidden);
    if (num_keys > 0)
        ref_softmax(ret_weights, num_keys);
}

/* What the loops below share. */
struct projected {
    double *queries, *keys, *values; /* [rows of the batch, H*D] */
    double *context;                 /* [sum of Tq, H*D]: the heads' outputs */
    double *row;                     /* [longest Tk]: the weights of one query and head */
};

/* Returns where `index` is in a list, or `count` when it is not; NULL lists all. */
static size_t ref_find(const size_t *list, size_t count, size_t index) {
    size_t i = 0;

    if (list == NULL)
        return index;
    while (i < count && list[i] != index)
        i++;
    return i;
}

/* Writes the row of weights of query q in head h, if it is selected; the mean adds up
 * over the heads. */
static void ref_write_weights(const attn_model_info *info, const attn_request *request,
                              size_t sequence, size_t h, size_t q, const double *row,
                              double *ret_weights) {
    size_t rows = plan_weights_rows(request, sequence);
    size_t key_len = request->key_lens[sequence];
    size_t to_row = ref_find(request->weights_queries, rows, q);
    size_t to_head = ref_find(request->weights_heads, request->num_weights_heads, h);
    bool all = request->need_weights == ATTN_WEIGHTS_ALL;

    if (to_row == rows || (all && to_head == plan_weights_heads(info, request)))
        return;
    for (size_t k = 0; k < key_len; k++) {
        if (all)
            ret_weights[(to_head * rows + to_row) * key_len + k] = row[k];
        else
            ret_weights[to_row * key_len + k] += row[k] / (double)info->num_heads;
    }
}

static void ref_sequence(const attn_model *model, const attn_request *request,
                         const struct projected *p, size_t sequence, size_t first_query,
                         size_t first_key, double *ret_weights) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->head_size;
    size_t query_len = request->query_lens[sequence];
    size_t key_len = request->key_lens[sequence];

    for (size_t h = 0; h < info->num_heads; h++) {
        const double *keys = p->keys + first_key * hidden + h * info->head_size;
        const double *values = p->values + first_key * hidden + h * info->head_size;
        double factor = request->head_mask != NULL ? (double)request->head_mask[h] : 1.0;

        for (size_t q = 0; q < query_len; q++) {
            size_t at = (first_query + q) * hidden + h * info->head_size;
            size_t num_keys = mask_num_keys(request, sequence, first_query, q);
            size_t attended = num_keys > 0 ? num_keys : key_len;

            ref_weigh(model, p->queries + at, keys, num_keys, key_len, p->row);
            for (size_t d = 0; d < info->head_size; d++) {
                double sum = 0;
                for (size_t k = 0; k < attended; k++)
                    sum += p->row[k] * values[k * hidden + d];
                p->context[at + d] = factor * sum;
            }
            if (ret_weights != NULL)
                ref_write_weights(info, request, sequence, h, q, p->row, ret_weights);
        }
    }
}

static void ref_batch(const attn_model *model, const attn_request *request,
                      const struct projected *p, double *ret_weights) {
    size_t first_query = 0, first_key = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t count = plan_weights_heads(&model->info, request) *
                       plan_weights_rows(request, s) * request->key_lens[s];

        for (size_t i = 0; ret_weights != NULL && i < count; i++)
            ret_weights[i] = 0;
        ref_sequence(model, request, p, s, first_query, first_key, ret_weights);

        first_query += request->query_lens[s];
        first_key += request->key_lens[s];
        if (ret_weights != NULL)
            ret_weights += count;
    }
}

static void ref_project_outputs(const attn_model *model, const double *context,
                                size_t rows, double *ret_outputs) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->head_size;

    for (size_t q = 0; q < rows; q++, context += hidden) {
        if (info->output_projection)
            ref_linear(model->output_weight, model->output_bias, info->out_size, hidden,
                       context, ret_outputs + q * info->out_size);
        for (size_t i = 0; !info->output_projection && i < hidden; i++)
            ret_outputs[q * hidden + i] = context[i];
    }
}

attn_status attn_ref_run(const attn_model *model, const attn_request *request,
                         double *ret_outputs, double *ret_weights) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->head_size;
    attn_sizes sizes;

    attn_status status = attn_plan(model, request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;
    if (request->need_weights == ATTN_WEIGHTS_NONE)
        ret_weights = NULL;

    struct projected p = {
        .queries = ref_project(model->query_weight, model->query_bias, hidden,
                               info->query_size, request->queries, sizes.num_queries),
        .keys = ref_project(model->key_weight, model->key_bias, hidden, info->key_size,
                            request->keys, sizes.num_keys),
        .values = ref_project(model->value_weight, model->value_bias, hidden,
                              info->value_size, request->values, sizes.num_keys),
        .context = calloc(sizes.num_queries * hidden, sizeof(double)),
        .row = calloc(sizes.num_keys, sizeof(double)),
    };
    status = ATTN_E_NOMEM;
    if (p.queries != NULL && p.keys != NULL && p.values != NULL && p.context != NULL &&
        p.row != NULL) {
        ref_batch(model, request, &p, ret_weights);
        ref_project_outputs(model, p.context, sizes.num_queries, ret_outputs);
        status = ATTN_OK;
    }

    free(p.queries);
    free(p.keys);
    free(p.values);
    free(p.context);
    free(p.row);
    return status;
}
