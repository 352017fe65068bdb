/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.c: computes the layer by calls to cblas, for some queries of one head at a
 * time. */
#include "bench/tiles.h"

#include "math/blas.h"
#include "math/mask.h"
#include "math/model.h"
#include "math/plan/rules.h"

#include <string.h>

#define QUERIES_AT_ONCE 64 /* queries of one head whose scores are one product */

struct tiles {
    const attn_model *model;
    const attn_request *request;
    size_t hidden;        /* H*D */
    float *queries;       /* [sum of Tq, H*D]; the heads' outputs overwrite them */
    float *keys, *values; /* [sum of Tk, H*D] */
    float *scores;        /* [QUERIES_AT_ONCE, longest Tk] */
};

/* One head of one sequence. */
struct tiles_head {
    struct mask mask; /* of its sequence */
    size_t query_len, key_len;
    float factor;
    float *queries;                  /* [Tq, D], rows H*D apart */
    struct blas_matrix keys, values; /* [Tk, D] */
    float *weights;                  /* [Tq, Tk]; NULL when not wanted */
};

/* Some queries of one head, and the keys that they attend to. */
struct tiles_queries {
    const struct tiles_head *head;
    size_t count;
    float *rows;                      /* [count, D], rows H*D apart */
    float *scores;                    /* [count, Tk] */
    size_t common;                    /* keys that all of them attend to */
    size_t num_keys[QUERIES_AT_ONCE]; /* 1..Tk */
    bool uniform[QUERIES_AT_ONCE];    /* attends to all keys alike */
};

static void tiles_project(const float *weight, const float *bias, size_t out, size_t in,
                          const float *x, size_t rows, float *y) {
    blas_multiply_transposed(rows, out, in, 1.0F, (struct blas_matrix){x, in},
                             (struct blas_matrix){weight, in}, 0.0F, y, out);
    for (size_t r = 0; bias != NULL && r < rows; r++) {
        for (size_t o = 0; o < out; o++)
            y[r * out + o] += bias[o];
    }
}

/* Uses the kernels' powers of 2: expf() one by one would make the comparison too easy. */
static void tiles_softmax(const struct kernels *kernels, float *scores, size_t count) {
    float max = scores[0], sum = 0;

    for (size_t k = 1; k < count; k++)
        max = scores[k] > max ? scores[k] : max;
    for (size_t k = 0; k < count; k++)
        scores[k] = (scores[k] - max) * 1.4426950408889634F;
    kernels->exp2(scores, count);
    for (size_t k = 0; k < count; k++)
        sum += scores[k];
    float scale = 1.0F / sum;
    for (size_t k = 0; k < count; k++)
        scores[k] *= scale;
}

/* Selects queries first..first+count of a head. */
static void select_queries(const struct tiles *t, const struct tiles_head *head,
                           size_t first, size_t count,
                           struct tiles_queries *ret_queries) {
    struct tiles_queries *q = ret_queries;

    q->head = head;
    q->count = count;
    q->rows = head->queries + first * t->hidden;
    q->scores = head->weights != NULL ? head->weights + first * head->key_len : t->scores;
    q->common = head->key_len;
    for (size_t i = 0; i < count; i++) {
        size_t num_keys = mask_find_keys(&head->mask, 0, first + i).end;
        q->uniform[i] = num_keys == 0;
        q->num_keys[i] = num_keys > 0 ? num_keys : head->key_len;
        if (q->num_keys[i] < q->common)
            q->common = q->num_keys[i];
    }
}

/* Keys that all queries attend to are one product. The others are multiplied query by
 * query: multiplying masked values by 0 would let infinities through. */
static void weigh_keys(const struct tiles *t, const struct tiles_queries *q) {
    const struct tiles_head *head = q->head;
    size_t head_size = t->model->info.width.head, ld = head->key_len;
    const struct blas_matrix rest = {head->keys.data + q->common * t->hidden, t->hidden};
    float scale = (float)t->model->info.score.scale;

    blas_multiply_transposed(q->count, q->common, head_size, scale,
                             (struct blas_matrix){q->rows, t->hidden}, head->keys, 0.0F,
                             q->scores, ld);
    for (size_t i = 0; i < q->count; i++) {
        const struct blas_matrix query = {q->rows + i * t->hidden, t->hidden};
        float *row = q->scores + i * ld;

        if (q->num_keys[i] > q->common)
            blas_multiply_transposed(1, q->num_keys[i] - q->common, head_size, scale,
                                     query, rest, 0.0F, row + q->common, ld);
        for (size_t k = 0; q->uniform[i] && k < ld; k++)
            row[k] = 0;
        tiles_softmax(t->model->engine.kernels, row, q->num_keys[i]);
        if (head->weights != NULL)
            memset(row + q->num_keys[i], 0, (ld - q->num_keys[i]) * sizeof *row);
    }
}

/* As weigh_keys(), for the weighted sums of values, which overwrite the queries. */
static void tiles_sum_values(const struct tiles *t, const struct tiles_queries *q) {
    const struct tiles_head *head = q->head;
    size_t head_size = t->model->info.width.head, ld = head->key_len;
    const struct blas_matrix rest = {head->values.data + q->common * t->hidden,
                                     t->hidden};

    blas_multiply(q->count, head_size, q->common, (struct blas_matrix){q->scores, ld},
                  head->values, 0.0F, q->rows, t->hidden);
    for (size_t i = 0; i < q->count; i++) {
        const struct blas_matrix weights = {q->scores + i * ld + q->common, ld};
        float *output = q->rows + i * t->hidden;

        if (q->num_keys[i] > q->common)
            blas_multiply(1, head_size, q->num_keys[i] - q->common, weights, rest, 1.0F,
                          output, t->hidden);
        for (size_t d = 0; d < head_size; d++)
            output[d] = head->factor != 0.0F ? output[d] * head->factor : 0.0F;
    }
}

static void tiles_head_run(const struct tiles *t, const struct tiles_head *head) {
    for (size_t first = 0; first < head->query_len; first += QUERIES_AT_ONCE) {
        size_t left = head->query_len - first;
        struct tiles_queries queries;
        select_queries(t, head, first, left < QUERIES_AT_ONCE ? left : QUERIES_AT_ONCE,
                       &queries);
        weigh_keys(t, &queries);
        tiles_sum_values(t, &queries);
    }
}

static void tiles_attend(const struct tiles *t, float *weights) {
    const attn_request *request = t->request;
    const attn_model_info *info = &t->model->info;
    size_t first_query = 0, first_key = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];

        for (size_t h = 0; h < info->num_heads; h++) {
            size_t at = first_key * t->hidden + h * info->width.head;
            struct tiles_head head = {
                .query_len = query_len,
                .key_len = key_len,
                .factor = mask_head_factor(request, h),
                .queries = t->queries + first_query * t->hidden + h * info->width.head,
                .keys = {t->keys + at, t->hidden},
                .values = {t->values + at, t->hidden},
                .weights = weights,
            };
            mask_init(&head.mask, request, s, first_query, first_key);
            tiles_head_run(t, &head);
            if (weights != NULL)
                weights += query_len * key_len;
        }
        first_query += query_len;
        first_key += key_len;
    }
}

size_t bench_tiles_scratch(const attn_model *model, const attn_sizes *sizes) {
    size_t hidden = model->info.num_heads * model->info.width.head;
    size_t floats = (sizes->num_queries + 2 * sizes->num_keys) * hidden +
                    QUERIES_AT_ONCE * sizes->num_keys;

    return (floats * sizeof(float) + ATTN_ALIGNMENT - 1) / ATTN_ALIGNMENT *
           ATTN_ALIGNMENT;
}

bool bench_tiles_support(const attn_model *model, const attn_request *request) {
    return model->info.score.kind != ATTN_ADDITIVE && plan_is_plain(model, request) &&
           model->info.width.score == model->info.width.head && !request->omit_outputs &&
           !request->need_heads && !request->need_lse &&
           request->need_weights != ATTN_WEIGHTS_MEAN && request->weights_heads == NULL &&
           request->weights_queries == NULL;
}

attn_status bench_tiles_run(const attn_model *model, const attn_request *request,
                            void *scratch, const attn_result *result, unsigned steps) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->width.head;
    bool wanted = request->need_weights == ATTN_WEIGHTS_ALL;
    attn_sizes sizes;

    attn_status status = attn_plan(model, request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;
    if (!bench_tiles_support(model, request))
        return ATTN_E_UNSUPPORTED;

    float *memory = scratch;
    struct tiles t = {
        .model = model,
        .request = request,
        .hidden = hidden,
        .queries = memory,
        .keys = memory + sizes.num_queries * hidden,
        .values = memory + (sizes.num_queries + sizes.num_keys) * hidden,
        .scores = memory + (sizes.num_queries + 2 * sizes.num_keys) * hidden,
    };
    if ((steps & ATTN_STEP_PROJECT_IN) != 0) {
        tiles_project(model_weight(model, ATTN_QUERY), model_bias(model, ATTN_QUERY),
                      hidden, info->width.query, request->queries, sizes.num_queries,
                      t.queries);
        tiles_project(model_weight(model, ATTN_KEY), model_bias(model, ATTN_KEY), hidden,
                      info->width.key, request->keys, sizes.num_keys, t.keys);
        tiles_project(model_weight(model, ATTN_VALUE), model_bias(model, ATTN_VALUE),
                      hidden, info->width.value, request->values, sizes.num_keys,
                      t.values);
    }
    if ((steps & ATTN_STEP_ATTEND) != 0)
        tiles_attend(&t, wanted ? result->weights : NULL);
    if ((steps & ATTN_STEP_PROJECT_OUT) != 0 && info->linears[ATTN_OUTPUT].weight)
        tiles_project(model_weight(model, ATTN_OUTPUT), model_bias(model, ATTN_OUTPUT),
                      info->width.out, hidden, t.queries, sizes.num_queries,
                      result->outputs);
    else if ((steps & ATTN_STEP_PROJECT_OUT) != 0)
        memcpy(result->outputs, t.queries, sizes.outputs * sizeof *t.queries);
    return ATTN_OK;
}
