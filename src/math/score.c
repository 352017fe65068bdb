/* SPDX-License-Identifier: Apache-2.0 */
#include "math/score.h"

#include <math.h>

/* Columns that all queries of the block attend to in one product, the rest query by
 * query, so that no key is multiplied by a query that must not see it. */
static void score_dot_product(const struct score_block *block, float *scores, size_t ld) {
    size_t head_size = block->model->info.head_size;
    float scale = 1.0F / sqrtf((float)head_size);
    blas_multiply_transposed(block->num_queries, block->common, head_size, scale,
                             block->queries, block->keys, scores, ld);
    struct blas_matrix rest = {block->keys.data + block->common * block->keys.ld,
                               block->keys.ld};
    for (size_t q = 0; q < block->num_queries; q++) {
        struct blas_matrix query = {block->queries.data + q * block->queries.ld,
                                    head_size};
        if (block->num_keys[q] > block->common)
            blas_multiply_transposed(1, block->num_keys[q] - block->common, head_size,
                                     scale, query, rest, scores + q * ld + block->common,
                                     ld);
    }
}

static void score_additive(const struct score_block *block, float *scores, size_t ld) {
    const attn_model *model = block->model;
    size_t size = model->info.additive_size, head_size = model->info.head_size;
    struct blas_matrix weight = {model->additive_query, head_size};
    blas_multiply_transposed(block->num_queries, size, head_size, 1.0F, block->queries,
                             weight, block->additive_queries, size);
    for (size_t q = 0; q < block->num_queries; q++) {
        const float *query = block->additive_queries + q * size;
        for (size_t k = 0; k < block->num_keys[q]; k++) {
            const float *key = block->additive_keys + k * size;
            float sum = 0;
            for (size_t a = 0; a < size; a++)
                sum += model->additive_score[a] * tanhf(query[a] + key[a]);
            scores[q * ld + k] = sum;
        }
    }
}

void score_compute(const struct score_block *block, float *scores, size_t ld) {
    if (block->model->info.scoring == ATTN_ADDITIVE)
        score_additive(block, scores, ld);
    else
        score_dot_product(block, scores, ld);
}

void score_additive_keys(const attn_model *model, struct blas_matrix keys,
                         size_t num_keys, float *ret_keys) {
    size_t size = model->info.additive_size, head_size = model->info.head_size;
    struct blas_matrix weight = {model->additive_key, head_size};
    blas_multiply_transposed(num_keys, size, head_size, 1.0F, keys, weight, ret_keys,
                             size);
}

void score_softmax(float *scores, size_t count) {
    float max = scores[0];
    for (size_t k = 1; k < count; k++)
        max = fmaxf(max, scores[k]);
    double sum = 0;
    for (size_t k = 0; k < count; k++) {
        scores[k] = expf(scores[k] - max);
        sum += (double)scores[k];
    }
    float scale = (float)(1.0 / sum);
    for (size_t k = 0; k < count; k++)
        scores[k] *= scale;
}
