/* SPDX-License-Identifier: Apache-2.0 */
/* ref_fold.c: folds the matrices of additive scoring in float64, loop by loop. */
#include "ref_fold.h"

#include <stdlib.h>

/* Returns `additive` [A, S] times each head of `weight` [heads * S, in], as float32; NULL
 * without a weight, or without memory. */
static float *ref_fold(const float *additive, const float *weight,
                       const attn_model_info *info, size_t heads, size_t in) {
    size_t rows = info->width.additive, size = info->width.score;
    float *product = weight != NULL ? malloc(heads * rows * in * sizeof *product) : NULL;

    for (size_t row = 0; product != NULL && row < heads * rows; row++) {
        const float *factors = additive + row % rows * size;
        const float *head = weight + row / rows * size * in;
        for (size_t i = 0; i < in; i++) {
            double sum = 0;
            for (size_t d = 0; d < size; d++)
                sum += (double)factors[d] * (double)head[d * in + i];
            product[row * in + i] = (float)sum;
        }
    }
    return product;
}

bool ref_folded_init(const attn_model *model, struct ref_folded *ret_folded) {
    const attn_model_info *info = &model->info;
    const float *of_queries = model->arrays[MODEL_ADDITIVE_QUERY].numbers,
                *of_keys = model->arrays[MODEL_ADDITIVE_KEY].numbers;
    size_t size = info->width.additive, heads = info->num_heads;
    size_t kv_heads = info->num_kv_heads;
    struct ref_folded f = {
        .model = *model,
        .query_weight = ref_fold(of_queries, model_weight(model, ATTN_QUERY), info, heads,
                                 info->width.query),
        .query_bias = ref_fold(of_queries, model_bias(model, ATTN_QUERY), info, heads, 1),
        .key_weight = ref_fold(of_keys, model_weight(model, ATTN_KEY), info, kv_heads,
                               info->width.key),
        .key_bias = ref_fold(of_keys, model_bias(model, ATTN_KEY), info, kv_heads, 1),
        .one = calloc(size * size, sizeof *f.one)};

    for (size_t a = 0; f.one != NULL && a < size; a++)
        f.one[a * size + a] = 1;
    f.model.info.width.score = size;
    f.model.arrays[MODEL_WEIGHT(ATTN_QUERY)].numbers = f.query_weight;
    f.model.arrays[MODEL_BIAS(ATTN_QUERY)].numbers = f.query_bias;
    f.model.arrays[MODEL_WEIGHT(ATTN_KEY)].numbers = f.key_weight;
    f.model.arrays[MODEL_BIAS(ATTN_KEY)].numbers = f.key_bias;
    f.model.arrays[MODEL_ADDITIVE_QUERY].numbers = f.one;
    f.model.arrays[MODEL_ADDITIVE_KEY].numbers = f.one;
    *ret_folded = f;
    return f.query_weight != NULL && f.key_weight != NULL && f.one != NULL &&
           (f.query_bias != NULL) == (model_bias(model, ATTN_QUERY) != NULL) &&
           (f.key_bias != NULL) == (model_bias(model, ATTN_KEY) != NULL);
}

void ref_folded_deinit(struct ref_folded *folded) {
    free(folded->query_weight);
    free(folded->query_bias);
    free(folded->key_weight);
    free(folded->key_bias);
    free(folded->one);
}
