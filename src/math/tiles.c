/* SPDX-License-Identifier: Apache-2.0 */
#include "math/tiles.h"

#include "math/blas.h"
#include "math/mask.h"
#include "math/model.h"

#include <math.h>
#include <string.h>

#define QUERY_BLOCK 64 /* queries of one head whose scores are computed together */

struct tiles {
    const attn_model *model;
    const attn_request *request;
    size_t hidden; /* H*D */
    float *queries, *keys,
        *values;   /* [rows, H*D]; the heads' outputs take the queries' place */
    float *scores; /* [QUERY_BLOCK, longest Tk] */
};

/* One head of one sequence. */
struct head {
    size_t sequence, first_query, key_len;
    float factor;
    float *queries;                  /* [Tq, D], rows H*D apart */
    struct blas_matrix keys, values; /* [Tk, D] */
    float *weights;                  /* [Tq, Tk]; NULL when not wanted */
};

static void project(const float *weight, const float *bias, size_t out, size_t in,
                    const float *x, size_t rows, float *y) {
    blas_multiply_transposed(rows, out, in, 1.0F, (struct blas_matrix){x, in},
                             (struct blas_matrix){weight, in}, y, out);
    for (size_t r = 0; bias != NULL && r < rows; r++) {
        for (size_t o = 0; o < out; o++)
            y[r * out + o] += bias[o];
    }
}

/* With the kernels' own powers of 2: expf() one by one would make the comparison too
 * easy. */
static void softmax(const struct kernels *kernels, float *scores, size_t count) {
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

/* Queries first..first+count. Columns that all of them attend to are one product, the
 * rest is done query by query: multiplying masked values by 0 would let infinities
 * through. */
static void run_block(const struct tiles *t, const struct head *head, size_t first,
                      size_t count) {
    size_t head_size = t->model->info.head_size, ld = head->key_len, common = ld;
    size_t num_keys[QUERY_BLOCK];
    float *queries = head->queries + first * t->hidden;
    float *scores = head->weights != NULL ? head->weights + first * ld : t->scores;
    float scale = 1.0F / sqrtf((float)head_size);
    for (size_t q = 0; q < count; q++) {
        num_keys[q] =
            mask_num_keys(t->request, head->sequence, head->first_query, first + q);
        size_t attended = num_keys[q] > 0 ? num_keys[q] : ld;
        common = attended < common ? attended : common;
    }
    blas_multiply_transposed(count, common, head_size, scale,
                             (struct blas_matrix){queries, t->hidden}, head->keys, scores,
                             ld);
    for (size_t q = 0; q < count; q++) {
        float *row = scores + q * ld;
        size_t attended = num_keys[q] > 0 ? num_keys[q] : ld;
        const struct blas_matrix rest = {head->keys.data + common * t->hidden, t->hidden};
        if (attended > common)
            blas_multiply_transposed(
                1, attended - common, head_size, scale,
                (struct blas_matrix){queries + q * t->hidden, t->hidden}, rest,
                row + common, ld);
        for (size_t k = 0; num_keys[q] == 0 && k < ld; k++)
            row[k] = 0;
        softmax(t->model->engine.kernels, row, attended);
        if (head->weights != NULL)
            memset(row + attended, 0, (ld - attended) * sizeof *row);
    }
    blas_multiply(count, head_size, common, (struct blas_matrix){scores, ld},
                  head->values, 0.0F, queries, t->hidden);
    for (size_t q = 0; q < count; q++) {
        float *output = queries + q * t->hidden;
        size_t attended = num_keys[q] > 0 ? num_keys[q] : ld;
        const struct blas_matrix rest = {head->values.data + common * t->hidden,
                                         t->hidden};
        if (attended > common)
            blas_multiply(1, head_size, attended - common,
                          (struct blas_matrix){scores + q * ld + common, ld}, rest, 1.0F,
                          output, t->hidden);
        for (size_t d = 0; d < head_size; d++)
            output[d] = head->factor != 0.0F ? output[d] * head->factor : 0.0F;
    }
}

static void run_heads(const struct tiles *t, float *weights) {
    const attn_request *request = t->request;
    const attn_model_info *info = &t->model->info;
    size_t first_query = 0, first_key = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];
        for (size_t h = 0; h < info->num_heads; h++) {
            size_t at = first_key * t->hidden + h * info->head_size;
            const struct head head = {
                .sequence = s,
                .first_query = first_query,
                .key_len = key_len,
                .factor = request->head_mask != NULL ? request->head_mask[h] : 1.0F,
                .queries = t->queries + first_query * t->hidden + h * info->head_size,
                .keys = {t->keys + at, t->hidden},
                .values = {t->values + at, t->hidden},
                .weights = weights,
            };
            for (size_t first = 0; first < query_len; first += QUERY_BLOCK)
                run_block(t, &head, first,
                          query_len - first < QUERY_BLOCK ? query_len - first
                                                          : QUERY_BLOCK);
            if (weights != NULL)
                weights += query_len * key_len;
        }
        first_query += query_len;
        first_key += key_len;
    }
}

size_t attn_tiles_scratch(const attn_model *model, const attn_sizes *sizes) {
    size_t hidden = model->info.num_heads * model->info.head_size;
    size_t floats = (sizes->num_queries + 2 * sizes->num_keys) * hidden +
                    QUERY_BLOCK * sizes->num_keys;
    return (floats * sizeof(float) + ATTN_ALIGNMENT - 1) / ATTN_ALIGNMENT *
           ATTN_ALIGNMENT;
}

attn_status attn_tiles_run(const attn_model *model, const attn_request *request,
                           void *scratch, const attn_result *result, unsigned steps) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->head_size;
    attn_sizes sizes;
    attn_status status = attn_plan(model, request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;
    if (info->scoring == ATTN_ADDITIVE || request->need_weights == ATTN_WEIGHTS_MEAN)
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
        project(model->query_weight, model->query_bias, hidden, info->query_size,
                request->queries, sizes.num_queries, t.queries);
        project(model->key_weight, model->key_bias, hidden, info->key_size, request->keys,
                sizes.num_keys, t.keys);
        project(model->value_weight, model->value_bias, hidden, info->value_size,
                request->values, sizes.num_keys, t.values);
    }
    bool wanted = request->need_weights == ATTN_WEIGHTS_ALL;
    if ((steps & ATTN_STEP_ATTEND) != 0)
        run_heads(&t, wanted ? result->weights : NULL);
    if ((steps & ATTN_STEP_PROJECT_OUT) != 0 && info->output_projection)
        project(model->output_weight, model->output_bias, info->out_size, hidden,
                t.queries, sizes.num_queries, result->outputs);
    else if ((steps & ATTN_STEP_PROJECT_OUT) != 0)
        memcpy(result->outputs, t.queries, sizes.outputs * sizeof *t.queries);
    return ATTN_OK;
}
