/* SPDX-License-Identifier: Apache-2.0 */
#include "math/ref.h"

#include "math/mask.h"
#include "math/model.h"

#include <math.h>
#include <stdlib.h>

/* y [out] = x [in] W^T + b */
static void linear(const float *weight, const float *bias, size_t out, size_t in,
                   const double *x, double *y) {
    for (size_t o = 0; o < out; o++) {
        y[o] = bias != NULL ? (double)bias[o] : 0.0;
        for (size_t i = 0; i < in; i++)
            y[o] += (double)weight[o * in + i] * x[i];
    }
}

/* Projects `rows` float32 rows; the caller frees the [rows, out] result. NULL: no memory.
 */
static double *project(const float *weight, const float *bias, size_t out, size_t in,
                       const float *x, size_t rows) {
    double *y = calloc(rows * out, sizeof *y), *row = calloc(in, sizeof *row);
    for (size_t r = 0; y != NULL && row != NULL && r < rows; r++) {
        for (size_t i = 0; i < in; i++)
            row[i] = (double)x[r * in + i];
        linear(weight, bias, out, in, row, y + r * out);
    }
    if (row == NULL) {
        free(y);
        y = NULL;
    }
    free(row);
    return y;
}

/* The score of one query and one key, both [D]. */
static double score(const attn_model *model, const double *query, const double *key) {
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
static void softmax(double *scores, size_t count) {
    double max = scores[0], sum = 0;
    for (size_t k = 1; k < count; k++)
        max = fmax(max, scores[k]);
    for (size_t k = 0; k < count; k++)
        sum += scores[k] = exp(scores[k] - max);
    for (size_t k = 0; k < count; k++)
        scores[k] /= sum;
}

/* The weights [Tk] of one query [D] over the keys of its sequence, [Tk] rows of [H*D]. */
static void weigh(const attn_model *model, const double *query, const double *keys,
                  size_t num_keys, size_t key_len, double *ret_weights) {
    size_t hidden = model->info.num_heads * model->info.head_size;
    for (size_t k = 0; k < key_len; k++)
        ret_weights[k] = num_keys == 0 ? 1.0 / (double)key_len : 0.0;
    for (size_t k = 0; k < num_keys; k++)
        ret_weights[k] = score(model, query, keys + k * hidden);
    if (num_keys > 0)
        softmax(ret_weights, num_keys);
}

/* What the loops below share: projected rows of the whole batch, [rows, H*D]. */
struct projected {
    double *queries, *keys, *values;
    double *context; /* [sum of Tq, H*D]: the heads' outputs */
    double *row;     /* [longest Tk]: the weights of one query and head */
};

static void run_sequence(const attn_model *model, const attn_request *request,
                         const struct projected *p, size_t sequence, size_t first_query,
                         size_t first_key, double *ret_weights) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->head_size;
    size_t query_len = request->query_lens[sequence];
    size_t key_len = request->key_lens[sequence];
    for (size_t h = 0; h < info->num_heads; h++) {
        for (size_t q = 0; q < query_len; q++) {
            size_t at = (first_query + q) * hidden + h * info->head_size;
            size_t num_keys = mask_num_keys(request, sequence, first_query, q);
            weigh(model, p->queries + at,
                  p->keys + first_key * hidden + h * info->head_size, num_keys, key_len,
                  p->row);
            size_t attended = num_keys > 0 ? num_keys : key_len;
            double factor =
                request->head_mask != NULL ? (double)request->head_mask[h] : 1.0;
            for (size_t d = 0; d < info->head_size; d++) {
                double sum = 0;
                for (size_t k = 0; k < attended; k++)
                    sum += p->row[k] *
                           p->values[(first_key + k) * hidden + h * info->head_size + d];
                p->context[at + d] = factor * sum;
            }
            if (ret_weights == NULL)
                continue;
            for (size_t k = 0; k < key_len; k++) {
                if (request->need_weights == ATTN_WEIGHTS_ALL)
                    ret_weights[(h * query_len + q) * key_len + k] = p->row[k];
                else
                    ret_weights[q * key_len + k] += p->row[k] / (double)info->num_heads;
            }
        }
    }
}

static void run_batch(const attn_model *model, const attn_request *request,
                      const struct projected *p, double *ret_weights) {
    size_t first_query = 0, first_key = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t matrix = request->query_lens[s] * request->key_lens[s];
        if (request->need_weights == ATTN_WEIGHTS_MEAN && ret_weights != NULL) {
            for (size_t i = 0; i < matrix; i++)
                ret_weights[i] = 0;
        }
        run_sequence(model, request, p, s, first_query, first_key, ret_weights);
        first_query += request->query_lens[s];
        first_key += request->key_lens[s];
        if (ret_weights != NULL && request->need_weights == ATTN_WEIGHTS_ALL)
            matrix *= model->info.num_heads;
        if (ret_weights != NULL)
            ret_weights += matrix;
    }
}

attn_status attn_ref_run(const attn_model *model, const attn_request *request,
                         double *ret_outputs, double *ret_weights) {
    const attn_model_info *info = &model->info;
    attn_sizes sizes;
    attn_status status = attn_plan(model, request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;
    if (request->need_weights == ATTN_WEIGHTS_NONE)
        ret_weights = NULL;
    size_t hidden = info->num_heads * info->head_size;
    struct projected p = {
        .queries = project(model->query_weight, model->query_bias, hidden,
                           info->query_size, request->queries, sizes.num_queries),
        .keys = project(model->key_weight, model->key_bias, hidden, info->key_size,
                        request->keys, sizes.num_keys),
        .values = project(model->value_weight, model->value_bias, hidden,
                          info->value_size, request->values, sizes.num_keys),
        .context = calloc(sizes.num_queries * hidden, sizeof(double)),
        .row = calloc(sizes.num_keys, sizeof(double)),
    };
    status = ATTN_E_NOMEM;
    if (p.queries == NULL || p.keys == NULL || p.values == NULL || p.context == NULL ||
        p.row == NULL)
        goto done;
    run_batch(model, request, &p, ret_weights);
    for (size_t q = 0; q < sizes.num_queries; q++) {
        const double *context = p.context + q * hidden;
        if (info->output_projection)
            linear(model->output_weight, model->output_bias, info->out_size, hidden,
                   context, ret_outputs + q * info->out_size);
        for (size_t i = 0; !info->output_projection && i < hidden; i++)
            ret_outputs[q * hidden + i] = context[i];
    }
    status = ATTN_OK;
done:
    free(p.queries);
    free(p.keys);
    free(p.values);
    free(p.context);
    free(p.row);
    return status;
}
