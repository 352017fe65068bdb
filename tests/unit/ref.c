/* SPDX-License-Identifier: Apache-2.0 */
/* ref.c: the definition of the layer, loop by loop, in float64. */
#include "ref.h"

#include "ref_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the loops below share. */
struct reference {
    const attn_model *model;
    const attn_request *request;
    double *queries, *keys,
        *values;     /* projected: [rows of the batch, heads of each * D] */
    double *gates;   /* [sum of Tq, H*D]; NULL without a gate */
    double *context; /* [sum of Tq, H*D]: the heads' outputs */
    double *row;     /* [longest Tk]: the weights of one query and head */
    const struct ref_result *result;
    size_t score_size; /* of one head in queries and keys */
};

/* A sequence, and where it begins in the batch. */
struct ref_position {
    size_t sequence, first_query, first_key;
    double *weights, *scores; /* its part of the results, or NULL */
};

/* Returns the position of row `i` of a sequence that begins at row `first`. */
static size_t ref_position(const size_t *positions, size_t first, size_t i) {
    return positions != NULL ? positions[first + i] : i;
}

/* Returns whether query q attends to key k, by their rows in the sequence. */
static bool ref_attends(const attn_request *request, const struct ref_position *at,
                        size_t q, size_t k) {
    size_t i = ref_position(request->positions, at->first_query, q);
    size_t j = ref_position(request->key_positions, at->first_key, k);
    size_t distance = i > j ? i - j : j - i;

    if (request->valid_lens != NULL) {
        size_t row = request->valid_lens_per_query ? at->first_query + q : at->sequence;
        if (k >= request->valid_lens[row])
            return false;
    }
    if (request->causal && j > i)
        return false;
    if (request->chunk > 0 && i / request->chunk != j / request->chunk)
        return false;
    if (request->window == 0)
        return true;
    return request->causal ? distance < request->window : distance <= request->window;
}

/* Projects `rows` float32 rows to `heads` heads, normed before when `norm`, and clips
 * them to `clip`; those that are given become float64. The caller frees the result [rows,
 * heads * D], which is NULL when memory runs out. */
static double *ref_project(const attn_model *model, const float *weight,
                           const float *bias, size_t heads, size_t in, double clip,
                           const float *x, size_t rows, bool norm) {
    const attn_model_info *info = &model->info;
    bool given = info->projection.given;
    size_t out = given ? in : heads * info->width.head;
    double *y = calloc(rows * out, sizeof *y), *row = calloc(in, sizeof *row);

    for (size_t r = 0; y != NULL && row != NULL && x != NULL && r < rows; r++) {
        for (size_t i = 0; i < in; i++)
            (given ? y + r * out : row)[i] = (double)x[r * in + i];
        if (given)
            continue;
        if (norm)
            ref_norm(info->pre_norm.kind, info->pre_norm.eps, model->pre_norm_weight,
                     model->pre_norm_bias, in, row);
        ref_linear(weight, bias, out, in, row, y + r * out);
        ref_clip(clip, out, y + r * out);
    }
    if (row == NULL) {
        free(y);
        y = NULL;
    }
    free(row);
    return y;
}

/* Finds the position of row `i` of a sequence of `count` rows on each axis. */
static void ref_find_axes(const attn_model_info *info, const size_t *positions,
                          const size_t *axes, size_t first, size_t count, size_t i,
                          size_t ret_axes[ATTN_AXES]) {
    size_t position = ref_position(positions, first, i), grid = info->rotation.grid;

    for (size_t axis = 0; axis < ATTN_AXES; axis++)
        ret_axes[axis] =
            axes != NULL ? axes[ATTN_AXES * first + axis * count + i] : position;
    if (grid == 0)
        return;
    bool patch = position >= info->rotation.grid_first;
    position -= info->rotation.grid_first;
    ret_axes[1] = patch ? 2 * (position / grid) + 1 : grid;
    ret_axes[2] = patch ? 2 * (position % grid) + 1 : grid;
}

/* Norms the projected heads of one row, and rotates them to their position. */
static void ref_finish_row(const attn_model *model, const float *norm_weight,
                           const float *norm_bias, size_t heads,
                           const size_t position[ATTN_AXES], size_t length, double *row) {
    const attn_model_info *info = &model->info;
    size_t parts = info->head_norm.whole ? 1 : heads;
    size_t size = heads * info->width.head / parts;

    for (size_t i = 0; i < parts; i++)
        ref_norm(info->head_norm.kind, info->head_norm.eps, norm_weight, norm_bias, size,
                 row + i * size);
    for (size_t h = 0; h < heads; h++)
        ref_rotate(model, position, length, row + h * info->width.head);
}

/* Returns the length of a sequence: its largest position plus 1. */
static size_t ref_length(const attn_request *request, const struct ref_position *at) {
    size_t length = 0;

    for (size_t q = 0; q < request->query_lens[at->sequence]; q++) {
        size_t position = ref_position(request->positions, at->first_query, q);
        length = position >= length ? position + 1 : length;
    }
    for (size_t k = 0; k < request->key_lens[at->sequence]; k++) {
        size_t position = ref_position(request->key_positions, at->first_key, k);
        length = position >= length ? position + 1 : length;
    }
    return length;
}

/* Norms and rotates the queries and keys of a sequence. */
static void ref_finish_rows(const struct reference *ref, const struct ref_position *at) {
    const attn_model *model = ref->model;
    const attn_request *request = ref->request;
    size_t heads = model->info.num_heads, kv_heads = model->info.num_kv_heads;
    size_t length = ref_length(request, at), size = ref->score_size;
    size_t query_len = request->query_lens[at->sequence];
    size_t key_len = request->key_lens[at->sequence], axes[ATTN_AXES];

    for (size_t q = 0; q < query_len; q++) {
        ref_find_axes(&model->info, request->positions, request->axis_positions,
                      at->first_query, query_len, q, axes);
        ref_finish_row(model, model->query_norm_weight, model->query_norm_bias, heads,
                       axes, length, ref->queries + (at->first_query + q) * heads * size);
    }
    for (size_t k = 0; k < key_len; k++) {
        ref_find_axes(&model->info, request->key_positions, request->axis_key_positions,
                      at->first_key, key_len, k, axes);
        ref_finish_row(model, model->key_norm_weight, model->key_norm_bias, kv_heads,
                       axes, length, ref->keys + (at->first_key + k) * kv_heads * size);
    }
}

/* Returns the score of one query and one key, both [D], before a bias. */
static double ref_score(const attn_model *model, size_t head_size, const double *query,
                        const double *key) {
    const attn_model_info *info = &model->info;
    double sum = 0;

    if (info->score.kind == ATTN_SCALED_DOT_PRODUCT) {
        for (size_t d = 0; d < head_size; d++)
            sum += query[d] * key[d];
        sum *= info->score.scale;
        return info->score.softcap > 0
                   ? info->score.softcap * tanh(sum / info->score.softcap)
                   : sum;
    }

    for (size_t a = 0; a < info->width.additive; a++) {
        double inner = 0;
        for (size_t d = 0; d < head_size; d++)
            inner += (double)model->additive_query[a * head_size + d] * query[d] +
                     (double)model->additive_key[a * head_size + d] * key[d];
        sum += (double)model->additive_score[a] * tanh(inner);
    }
    return sum;
}

/* Rounds a number to 8 bits, to even, as bfloat16 does. */
static double ref_round(double number) {
    int exponent;
    double fraction = frexp(number, &exponent);

    return ldexp(rint(ldexp(fraction, 8)), exponent - 8);
}

/* Returns the request's bias of query q and key k in head h. */
static double ref_given_bias(const attn_request *request, const struct ref_position *at,
                             size_t h, size_t q, size_t k) {
    size_t i = at->sequence * request->bias_sequence_ld + h * request->bias_head_ld +
               q * request->bias_row_ld + k;

    return request->bias != NULL ? (double)request->bias[i] : 0;
}

/* Returns what is added to the score of query q and key k in head h by their distance. */
static double ref_bias(const struct reference *ref, const struct ref_position *at,
                       size_t h, size_t q, size_t k) {
    const attn_model_info *info = &ref->model->info;
    double i = (double)ref_position(ref->request->positions, at->first_query, q);
    double j = (double)ref_position(ref->request->key_positions, at->first_key, k);
    double farthest = (double)info->score.bias_distance;

    switch (info->score.bias) {
    case ATTN_BIAS_ALIBI:
        return (double)ref->model->alibi_slopes[h] * (j - i);
    case ATTN_BIAS_BUCKETS:
        return (double)ref->model
            ->distance_bias[h * (2 * info->score.bias_distance + 1) +
                            (size_t)(fmin(fmax(j - i, -farthest), farthest) + farthest)];
    case ATTN_BIAS_ALIBI_ROUNDED:
        return info->score.scale *
               (ref_round((double)ref->model->alibi_slopes[h] * ref_round(j)) -
                ref_round((double)ref->model->alibi_slopes[h] * ref_round(i)));
    case ATTN_BIAS_NONE:
        break;
    }
    return 0;
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
        ret_weights[k] =
            ref_score(ref->model, size, query, key) + ref_bias(ref, at, h, q, k) + bias;
        attended++;
    }
    size_t row = h * ref->request->query_lens[at->sequence] + q;
    if (at->scores != NULL)
        memcpy(at->scores + row * key_len, ret_weights, key_len * sizeof *ret_weights);
    if (attended > 0)
        return ref_softmax(ret_weights, key_len,
                           info->score.sinks ? &ref->model->sinks[h] : NULL);
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

/* Query q of head h attends. */
static void ref_attend(const struct reference *ref, const struct ref_position *at,
                       size_t h, size_t q) {
    const attn_model_info *info = &ref->model->info;
    size_t size = info->width.head, kv_heads = info->num_kv_heads;
    size_t row = (at->first_query + q) * info->num_heads + h;
    const double *values =
        ref->values + (at->first_key * kv_heads + h * kv_heads / info->num_heads) * size;
    double factor =
        ref->request->head_mask != NULL ? (double)ref->request->head_mask[h] : 1.0;

    double lse = ref_weigh(ref, at, h, q, ref->row);
    if (ref->result->lse != NULL)
        ref->result->lse[row] = lse;
    for (size_t d = 0; d < size; d++) {
        double sum = 0;
        for (size_t k = 0; k < ref->request->key_lens[at->sequence]; k++)
            sum += ref->row[k] == 0 ? 0 : ref->row[k] * values[k * kv_heads * size + d];
        ref->context[row * size + d] = factor * sum;
    }
    if (at->weights != NULL)
        ref_write_weights(ref, at, h, q);
}

static void ref_batch(const struct reference *ref) {
    const attn_request *request = ref->request;
    struct ref_position at = {.weights = ref->result->weights,
                              .scores = ref->result->scores};

    if (request->need_weights == ATTN_WEIGHTS_NONE)
        at.weights = NULL;
    for (; at.sequence < request->num_sequences; at.sequence++) {
        size_t query_len = request->query_lens[at.sequence];
        size_t key_len = request->key_lens[at.sequence];
        size_t count =
            ref_weights_heads(ref) * ref_weights_rows(request, at.sequence) * key_len;

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
        ref_norm(info->out_norm.kind, info->out_norm.eps, ref->model->out_norm_weight,
                 NULL, hidden, ref->context + q * hidden);
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
        if (info->projection.output)
            ref_linear(ref->model->output_weight, ref->model->output_bias,
                       info->width.out, hidden, context,
                       result->outputs + q * info->width.out);
        for (size_t i = 0; !info->projection.output && i < hidden; i++)
            result->outputs[q * hidden + i] = context[i];
    }
}

attn_status attn_ref_run(const attn_model *model, const attn_request *request,
                         const struct ref_result *ret_result) {
    const attn_model_info *info = &model->info;
    bool norm = info->pre_norm.applied;
    double clip = info->projection.clip;
    bool norm_keys = norm && (info->kind == NULL || strcmp(info->kind, "cross") != 0);
    attn_sizes sizes;

    attn_status status = attn_plan(model, request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;

    struct reference ref = {
        .model = model,
        .request = request,
        .queries = ref_project(model, model->query_weight, model->query_bias,
                               info->num_heads, info->width.query, clip, request->queries,
                               sizes.num_queries, norm),
        .keys =
            ref_project(model, model->key_weight, model->key_bias, info->num_kv_heads,
                        info->width.key, clip, request->keys, sizes.num_keys, norm_keys),
        .values = ref_project(model, model->value_weight, model->value_bias,
                              info->num_kv_heads, info->width.value, clip,
                              request->values, sizes.num_keys, norm_keys),
        .gates = info->projection.gate
                     ? ref_project(model, model->gate_weight, model->gate_bias,
                                   info->num_heads, info->width.query, 0,
                                   request->queries, sizes.num_queries, norm)
                     : NULL,
        .context = calloc(sizes.num_queries * info->num_heads * info->width.head,
                          sizeof(double)),
        .row = calloc(sizes.num_keys, sizeof(double)),
        .result = ret_result,
        .score_size = info->projection.given ? info->width.query / info->num_heads
                                             : info->width.head,
    };
    status = ATTN_E_NOMEM;
    if (ref.queries != NULL && ref.keys != NULL && ref.values != NULL &&
        ref.context != NULL && ref.row != NULL &&
        (ref.gates != NULL || !info->projection.gate)) {
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
    return status;
}
