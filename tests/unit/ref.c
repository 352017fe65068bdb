/* SPDX-License-Identifier: Apache-2.0 */
/* ref.c: the definition of the layer, loop by loop, in float64. */
#include "ref.h"

#include "math/plan/plan.h"
#include "math/plan/rules.h"
#include "ref_fold.h"
#include "ref_mask.h"
#include "ref_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the loops below share. */
struct reference {
    const attn_model *model;
    const attn_request *request;
    double *queries, *keys,
        *values;     /* projected: [rows of the batch, heads of each * their size] */
    double *gates;   /* [sum of Tq, H*D]; NULL without a gate */
    double *context; /* [sum of Tq, H*D]: the heads' outputs */
    double *row;     /* [longest Tk]: the weights of one query and head */
    double *factors; /* likewise, rounded */
    struct ref_rounding *rounding;
    const struct ref_result *result;
    size_t score_size; /* of one head in queries and keys */
};

/* Norms the projected heads of one row, and clips them where that comes afterwards. */
static void ref_norm_heads(const attn_model *model, const float *weight,
                           const float *bias, size_t heads, double *row) {
    const attn_model_info *info = &model->info;
    size_t parts = info->head_norm.whole ? 1 : heads;
    size_t size = heads * info->width.score / parts;

    for (size_t i = 0; info->head_norm.kind != ATTN_NORM_NONE && i < parts; i++) {
        size_t own = info->head_norm.per_head ? i * size : 0;
        ref_norm(info->head_norm.kind, info->head_norm.eps, weight + own,
                 bias != NULL ? bias + own : NULL, size, row + i * size);
    }
    if (info->projection.clip_last)
        ref_clip(info->projection.clip, heads * info->width.score, row);
}

/* Norms the projected heads of one row, and rotates them to their position. */
static void ref_finish_row(const attn_model *model, const float *norm_weight,
                           const float *norm_bias, size_t heads,
                           const size_t axes[ATTN_AXES], size_t length, double *row) {
    bool last = model->info.head_norm.last;

    if (!last)
        ref_norm_heads(model, norm_weight, norm_bias, heads, row);
    for (size_t h = 0; h < heads; h++)
        ref_rotate(model, axes, length, false, row + h * model->info.width.score);
    if (last)
        ref_norm_heads(model, norm_weight, norm_bias, heads, row);
}

/* Multiplies a query by the factor of its position. */
static void ref_scale_query(const attn_model_info *info, size_t position, double *row) {
    double length = (double)info->query_factor.length;

    if (info->query_factor.length == 0)
        return;
    double steps = floor((double)(position + info->query_factor.offset) / length);
    for (size_t i = 0; i < info->num_heads * info->width.score; i++)
        row[i] *= 1 + info->query_factor.beta * log(1 + steps);
}

/* Norms the projected heads of a value, and rotates them to the position of its key. */
static void ref_finish_value(const attn_model *model, const size_t axes[ATTN_AXES],
                             size_t length, double *row) {
    const attn_model_info *info = &model->info;

    for (size_t h = 0; h < info->num_kv_heads; h++, row += info->width.head) {
        ref_norm(info->value_norm.kind, info->value_norm.eps, NULL, NULL,
                 info->width.head, row);
        if (info->rotation.values)
            ref_rotate(model, axes, length, true, row);
    }
}

/* Norms and rotates the queries, keys and values of a sequence. */
static void ref_finish_rows(const struct reference *ref, const struct ref_position *at) {
    const attn_model *model = ref->model;
    const attn_request *request = ref->request;
    size_t heads = model->info.num_heads, kv_heads = model->info.num_kv_heads;
    size_t length = ref_length(request, at), size = ref->score_size;
    size_t query_len = request->query_lens[at->sequence];
    size_t key_len = request->key_lens[at->sequence], axes[ATTN_AXES];

    for (size_t q = 0; q < query_len; q++) {
        double *row = ref->queries + (at->first_query + q) * heads * size;
        ref_find_axes(&model->info, request->positions, request->axis_positions,
                      at->first_query, query_len, q, axes);
        ref_finish_row(model, model->arrays[MODEL_QUERY_NORM].numbers,
                       model->arrays[MODEL_QUERY_NORM_BIAS].numbers, heads, axes, length,
                       row);
        ref_scale_query(&model->info,
                        ref_position(request->positions, at->first_query, q), row);
    }
    for (size_t k = 0; k < key_len; k++) {
        size_t row = (at->first_key + k) * kv_heads;
        ref_find_axes(&model->info, request->key_positions, request->axis_key_positions,
                      at->first_key, key_len, k, axes);
        ref_finish_row(model, model->arrays[MODEL_KEY_NORM].numbers,
                       model->arrays[MODEL_KEY_NORM_BIAS].numbers, kv_heads, axes, length,
                       ref->keys + row * size);
        ref_finish_value(model, axes, length, ref->values + row * model->info.width.head);
    }
}

/* Returns the score of one query and one key, both [head_size], before a bias. */
static double ref_score(const attn_model *model, struct ref_rounding *rounding,
                        size_t head_size, const double *query, const double *key) {
    const attn_model_info *info = &model->info;
    double sum = 0, magnitude = 0;

    if (info->score.kind == ATTN_SCALED_DOT_PRODUCT) {
        double unit = log(2), scale = info->score.scale / unit; /* of powers of 2 */
        for (size_t d = 0; d < head_size; d++) {
            double product = ref_factor(rounding->rows, query[d] * scale) *
                             ref_factor(rounding->rows, key[d]) * unit;
            sum += product;
            magnitude += fabs(product);
        }
        sum = ref_nudge(rounding, sum, magnitude);
        return info->score.softcap > 0
                   ? info->score.softcap * tanh(sum / info->score.softcap)
                   : sum;
    }

    const float *of_query = model->arrays[MODEL_ADDITIVE_QUERY].numbers;
    const float *of_key = model->arrays[MODEL_ADDITIVE_KEY].numbers;
    const float *of_score = model->arrays[MODEL_ADDITIVE_SCORE].numbers;
    for (size_t a = 0; a < info->width.additive; a++) {
        double inner = 0;
        for (size_t d = 0; d < head_size; d++)
            inner += (double)of_query[a * head_size + d] * query[d] +
                     (double)of_key[a * head_size + d] * key[d];
        sum += (double)of_score[a] * tanh(inner);
        magnitude += fabs((double)of_score[a]);
    }
    return ref_nudge(rounding, sum, magnitude);
}

/* Turns `count` scores into weights; -INFINITY becomes 0. They sum to 1,
 * or with a sink (not NULL) to less. Returns the logarithm of the sum. */
static double ref_softmax(double *scores, size_t count, const float *sink) {
    double max = sink != NULL ? (double)*sink : -(double)INFINITY, sum;

    for (size_t k = 0; k < count; k++)
        max = fmax(max, scores[k]);
    sum = sink != NULL ? exp((double)*sink - max) : 0;
    for (size_t k = 0; k < count; k++)
        sum += scores[k] = exp(scores[k] - max);
    for (size_t k = 0; k < count; k++)
        scores[k] /= sum;
    return max + log(sum);
}

/* Computes the weights [Tk] of query q in head h. Returns its logarithm of the sum. */
static double ref_weigh(const struct reference *ref, const struct ref_position *at,
                        size_t h, size_t q, double *ret_weights) {
    const attn_model_info *info = &ref->model->info;
    size_t size = ref->score_size, kv_heads = info->num_kv_heads;
    size_t key_len = ref->request->key_lens[at->sequence], attended = 0;
    size_t kv_head = h * kv_heads / info->num_heads;
    const double *query =
        ref->queries + ((at->first_query + q) * info->num_heads + h) * size;

    for (size_t k = 0; k < key_len; k++) {
        const double *key = ref->keys + ((at->first_key + k) * kv_heads + kv_head) * size;
        double bias = ref_given_bias(ref->request, at, h, q, k);
        ret_weights[k] = -(double)INFINITY;
        if (!ref_attends(ref->request, at, q, k) || isinf(bias))
            continue;
        bias += ref_distance_bias(ref->model, ref->request, at, h, q, k, query, key);
        double score = bias + ref_score(ref->model, at->rounding, size, query, key);
        ret_weights[k] = ref_nudge(at->rounding, score, 1 + fabs(bias));
        attended++;
    }
    size_t row = h * ref->request->query_lens[at->sequence] + q;
    if (at->scores != NULL)
        memcpy(at->scores + row * key_len, ret_weights, key_len * sizeof *ret_weights);
    if (attended > 0)
        return ref_softmax(ret_weights, key_len,
                           info->score.sinks ? &ref->model->arrays[MODEL_SINKS].numbers[h]
                                             : NULL);
    for (size_t k = 0; k < key_len; k++)
        ret_weights[k] = info->score.sinks ? 0 : 1.0 / (double)key_len;
    return -(double)INFINITY;
}

/* Returns which of the selected queries row `q` of a sequence is, or `rows` when it is
 * none; -1 selects the last row. */
static size_t ref_find_query(const attn_request *request, size_t sequence, size_t rows,
                             size_t q) {
    ptrdiff_t from_end = (ptrdiff_t)q - (ptrdiff_t)request->query_lens[sequence];
    size_t i = 0;

    if (request->weights_queries == NULL)
        return q;
    while (i < rows && request->weights_queries[i] != (ptrdiff_t)q &&
           request->weights_queries[i] != from_end)
        i++;
    return i;
}

/* Returns where `index` is in a list, or `count` when it is not; NULL lists all. */
static size_t ref_find(const size_t *list, size_t count, size_t index) {
    size_t i = 0;

    if (list == NULL)
        return index;
    while (i < count && list[i] != index)
        i++;
    return i;
}

/* Returns how many matrices of weights each sequence has in the result. */
static size_t ref_weights_heads(const struct reference *ref) {
    if (ref->request->need_weights == ATTN_WEIGHTS_MEAN)
        return 1;
    return ref->request->weights_heads != NULL ? ref->request->num_weights_heads
                                               : ref->model->info.num_heads;
}

/* Returns how many rows each of these matrices has. */
static size_t ref_weights_rows(const attn_request *request, size_t sequence) {
    return request->weights_queries != NULL ? request->num_weights_queries
                                            : request->query_lens[sequence];
}

/* Writes the row of weights of query q in head h, if it is selected; the mean adds up
 * over the heads. */
static void ref_write_weights(const struct reference *ref, const struct ref_position *at,
                              size_t h, size_t q) {
    const attn_request *request = ref->request;
    size_t rows = ref_weights_rows(request, at->sequence);
    size_t key_len = request->key_lens[at->sequence];
    size_t to_row = ref_find_query(request, at->sequence, rows, q);
    size_t to_head = ref_find(request->weights_heads, request->num_weights_heads, h);
    bool all = request->need_weights == ATTN_WEIGHTS_ALL;

    if (to_row == rows || (all && to_head == ref_weights_heads(ref)))
        return;
    for (size_t k = 0; k < key_len; k++) {
        if (all)
            at->weights[(to_head * rows + to_row) * key_len + k] = ref->row[k];
        else
            at->weights[to_row * key_len + k] +=
                ref->row[k] / (double)ref->model->info.num_heads;
    }
}

/* Sums up the values of a direct sequence as they came, and projects the sum. */
static void ref_sum_direct(const struct reference *ref, const struct ref_position *at,
                           size_t h, double *ret_outputs) {
    const attn_model *model = ref->model;
    size_t size = model->info.width.head, in = model->info.width.value;
    const float *values = ref->request->values + at->first_key * in;
    const float *bias = model_bias(model, ATTN_VALUE);
    double *sums = calloc(in, sizeof *sums);

    for (size_t k = 0; sums != NULL && k < ref->request->key_lens[at->sequence]; k++) {
        for (size_t i = 0; ref->row[k] != 0 && i < in; i++)
            sums[i] += ref->row[k] * (double)values[k * in + i];
    }
    for (size_t i = 0; sums != NULL && i < in; i++)
        sums[i] = ref_nudge(ref->rounding, sums[i], fabs(sums[i]));
    if (sums != NULL)
        ref_linear(ref->rounding, model_weight(model, ATTN_VALUE) + h * size * in,
                   bias != NULL ? bias + h * size : NULL, size, in, sums, ret_outputs);
    free(sums);
}

/* Sums up the values of one head by their weights. */
static void ref_sum_values(const struct reference *ref, const struct ref_position *at,
                           size_t h, double *ret_outputs) {
    const attn_model_info *info = &ref->model->info;
    size_t size = info->width.head, kv_heads = info->num_kv_heads;
    size_t key_len = ref->request->key_lens[at->sequence];
    const double *values =
        ref->values + (at->first_key * kv_heads + h * kv_heads / info->num_heads) * size;
    const double *factors = ref_round_weights(ref->rounding, ref->row, key_len, KEY_BLOCK,
                                              KERNEL_CHUNK_KEYS, ref->factors);

    for (size_t d = 0; d < size; d++) {
        double sum = 0, magnitude = 0;
        for (size_t k = 0; k < key_len; k++) {
            double value =
                ref_factor(ref->rounding->rows, values[k * kv_heads * size + d]);
            double product = factors[k] == 0 ? 0 : factors[k] * value;
            sum += product;
            magnitude += fabs(product);
        }
        ret_outputs[d] = ref_nudge(ref->rounding, sum, magnitude);
    }
}

/* Query q of head h attends. */
static void ref_attend(const struct reference *ref, const struct ref_position *at,
                       size_t h, size_t q) {
    const attn_model_info *info = &ref->model->info;
    size_t size = info->width.head;
    size_t row = (at->first_query + q) * info->num_heads + h;
    double *outputs = ref->context + row * size;
    double factor =
        ref->request->head_mask != NULL ? (double)ref->request->head_mask[h] : 1.0;

    double lse = ref_weigh(ref, at, h, q, ref->row);
    if (ref->result->lse != NULL)
        ref->result->lse[row] = lse;
    if (at->direct)
        ref_sum_direct(ref, at, h, outputs);
    else
        ref_sum_values(ref, at, h, outputs);
    for (size_t d = 0; d < size; d++)
        outputs[d] *= factor;
    if (at->weights != NULL)
        ref_write_weights(ref, at, h, q);
}

/* Finds out whether a sequence is direct, see plan_find_kind(), where that changes what
 * is rounded: neither its queries nor its keys are. Their products with the model weights
 * are as if its keys had been projected without being rounded, which is done here. */
static void ref_find_kind(const struct reference *ref, struct ref_rounding *ret_rounding,
                          struct ref_position *at) {
    const attn_model *model = ref->model;
    const attn_model_info *info = &model->info;
    size_t width = info->num_heads * ref->score_size;
    size_t key_len = ref->request->key_lens[at->sequence];
    size_t sizes = ref->score_size + info->width.head;

    at->rounding = ref->rounding;
    at->direct =
        ref->rounding->rows && !ref->rounding->projected && !model->effects.indirect &&
        ref->request->positions == NULL && ref->request->key_positions == NULL &&
        ref->request->window == 0 && ref->request->chunk == 0 &&
        info->score.kind == ATTN_SCALED_DOT_PRODUCT && key_len >= PLAN_DIRECT_KEYS_MIN &&
        ref->request->query_lens[at->sequence] <= sizes / 2 / PLAN_DIRECT_SHARE;
    if (!at->direct)
        return;
    *ret_rounding = *ref->rounding;
    ret_rounding->rows = false;
    at->rounding = ret_rounding;
    double *keys =
        ref_project(model, ret_rounding, ATTN_KEY, width, info->width.key, 0,
                    (struct ref_latent){.size = 0},
                    ref->request->keys + at->first_key * info->width.key, key_len, false);
    if (keys != NULL)
        memcpy(ref->keys + at->first_key * width, keys, key_len * width * sizeof *keys);
    free(keys);
}

static void ref_batch(const struct reference *ref) {
    const attn_request *request = ref->request;
    struct ref_rounding rounding;
    struct ref_position at = {.weights = ref->result->weights,
                              .scores = ref->result->scores};

    if (request->need_weights == ATTN_WEIGHTS_NONE)
        at.weights = NULL;
    for (; at.sequence < request->num_sequences; at.sequence++) {
        size_t query_len = request->query_lens[at.sequence];
        size_t key_len = request->key_lens[at.sequence];
        size_t count =
            ref_weights_heads(ref) * ref_weights_rows(request, at.sequence) * key_len;

        ref_find_kind(ref, &rounding, &at);
        ref_finish_rows(ref, &at);
        for (size_t i = 0; at.weights != NULL && i < count; i++)
            at.weights[i] = 0;
        for (size_t h = 0; h < ref->model->info.num_heads; h++) {
            for (size_t q = 0; q < query_len; q++)
                ref_attend(ref, &at, h, q);
        }
        at.first_query += query_len;
        at.first_key += key_len;
        at.weights = at.weights != NULL ? at.weights + count : NULL;
        if (at.scores != NULL)
            at.scores += ref->model->info.num_heads * query_len * key_len;
    }
}

/* Gates and norms the heads' outputs. */
static void ref_finish_outputs(const struct reference *ref, size_t rows) {
    const attn_model_info *info = &ref->model->info;
    size_t hidden = info->num_heads * info->width.head;

    for (size_t i = 0; ref->gates != NULL && i < rows * hidden; i++)
        ref->context[i] /= 1 + exp(-ref->gates[i]);
    for (size_t q = 0; q < rows; q++)
        ref_norm(info->out_norm.kind, info->out_norm.eps,
                 ref->model->arrays[MODEL_OUT_NORM].numbers, NULL, hidden,
                 ref->context + q * hidden);
}

/* Writes what is made from the heads' outputs. */
static void ref_write_outputs(const struct reference *ref, size_t rows) {
    const attn_model_info *info = &ref->model->info;
    const struct ref_result *result = ref->result;
    size_t hidden = info->num_heads * info->width.head;

    for (size_t i = 0; result->heads != NULL && i < rows * hidden; i++)
        result->heads[i] = ref->context[i];
    for (size_t q = 0; result->outputs != NULL && q < rows; q++) {
        const double *context = ref->context + q * hidden;
        if (info->linears[ATTN_OUTPUT].weight)
            ref_linear(ref->rounding, model_weight(ref->model, ATTN_OUTPUT),
                       model_bias(ref->model, ATTN_OUTPUT), info->width.out, hidden,
                       context, result->outputs + q * info->width.out);
        for (size_t i = 0; !info->linears[ATTN_OUTPUT].weight && i < hidden; i++)
            result->outputs[q * hidden + i] = context[i];
    }
}

/* Computes a layer whose additive scoring is folded where it is rounded. */
static attn_status ref_run(const attn_model *model, const attn_request *request,
                           struct ref_rounding *rounding,
                           const struct ref_result *ret_result) {
    const attn_model_info *info = &model->info;
    size_t heads = info->num_heads, kv_heads = info->num_kv_heads,
           size = info->width.score;
    double clip = info->projection.clip;
    bool norm = info->pre_norm.applied;
    double first_clip = info->projection.clip_last ? 0 : clip; /* of queries and keys */
    bool norm_keys = norm && (info->kind == NULL || strcmp(info->kind, "self") == 0);
    attn_sizes sizes;

    attn_status status = attn_plan(model, request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;

    struct reference ref = {
        .model = model,
        .request = request,
        .queries = ref_project(
            model, rounding, ATTN_QUERY, heads * size, info->width.query, first_clip,
            ref_find_latent(model, false), request->queries, sizes.num_queries, norm),
        .keys = ref_project(model, rounding, ATTN_KEY, kv_heads * size, info->width.key,
                            first_clip, ref_find_latent(model, true), request->keys,
                            sizes.num_keys, norm_keys),
        .values = ref_project(model, rounding, ATTN_VALUE, kv_heads * info->width.head,
                              info->width.value, clip, ref_find_latent(model, true),
                              request->values, sizes.num_keys, norm_keys),
        .gates = info->linears[ATTN_GATE].weight
                     ? ref_project(model, rounding, ATTN_GATE, heads * info->width.head,
                                   info->width.query, 0, (struct ref_latent){.size = 0},
                                   request->queries, sizes.num_queries, norm)
                     : NULL,
        .context = calloc(sizes.num_queries * heads * info->width.head, sizeof(double)),
        .row = calloc(sizes.num_keys, sizeof(double)),
        .factors = calloc(sizes.num_keys, sizeof(double)),
        .rounding = rounding,
        .result = ret_result,
        .score_size = size,
    };
    status = ATTN_E_NOMEM;
    if (ref.queries != NULL && ref.keys != NULL && ref.values != NULL &&
        ref.context != NULL && ref.row != NULL && ref.factors != NULL &&
        (ref.gates != NULL || !info->linears[ATTN_GATE].weight)) {
        ref_batch(&ref);
        ref_finish_outputs(&ref, sizes.num_queries);
        ref_write_outputs(&ref, sizes.num_queries);
        status = ATTN_OK;
    }

    free(ref.queries);
    free(ref.keys);
    free(ref.values);
    free(ref.gates);
    free(ref.context);
    free(ref.row);
    free(ref.factors);
    return status;
}

attn_status attn_ref_run_rounded(const attn_model *model, const attn_request *request,
                                 struct ref_rounding *rounding,
                                 const struct ref_result *ret_result) {
    struct ref_folded folded;
    attn_status status = ATTN_E_NOMEM;

    if (!rounding->weights || model->info.score.kind != ATTN_ADDITIVE)
        return ref_run(model, request, rounding, ret_result);
    if (ref_folded_init(model, &folded))
        status = ref_run(&folded.model, request, rounding, ret_result);
    ref_folded_deinit(&folded);
    return status;
}

attn_status attn_ref_run(const attn_model *model, const attn_request *request,
                         const struct ref_result *ret_result) {
    struct ref_rounding none = {.nudge = 0};

    return attn_ref_run_rounded(model, request, &none, ret_result);
}
