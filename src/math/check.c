/* SPDX-License-Identifier: Apache-2.0 */
/* check.c: compares the attention of the kernels with plain loops, on noise. */
#include "base/noise.h"
#include "base/size.h"
#include "math/engine.h"

#include <math.h>
#include <stdlib.h>

#define CHECK_KEYS (KEY_BLOCK + 35) /* two blocks, the second not whole, an odd number */

/* A panel of noise, and what the kernels make of it. */
struct attention_check {
    const struct kernels *kernels;
    size_t score_size, head_size;
    bool additive;
    float *additive_score; /* [score_size], of additive scoring */
    float *queries;        /* [columns, score_size] */
    float *keys, *values;  /* [CHECK_KEYS, score_size or head_size] float32 */
    float *key_words, *value_words;
    float *expected; /* [columns, head_size], by plain loops */
    float *outputs;  /* [columns, head_size] */
    void *scratch;
};

/* Query c attends to so many keys. */
static size_t check_num_keys(size_t c) {
    return CHECK_KEYS - 3 * c;
}

static double check_score(const struct attention_check *check, size_t c, size_t k) {
    const float *query = check->queries + c * check->score_size;
    const float *key = check->keys + k * check->score_size;
    double sum = 0;

    for (size_t i = 0; i < check->score_size; i++) {
        double q = (double)query[i], x = (double)key[i];
        sum += check->additive ? (double)check->additive_score[i] * tanh(q + x)
                               : q * x / sqrt((double)check->score_size);
    }
    return sum;
}

/* Computes the outputs of query c, which are at most 1. */
static void expect_query(const struct attention_check *check, size_t c) {
    double weights[CHECK_KEYS], sum = 0;

    for (size_t k = 0; k < check_num_keys(c); k++)
        sum += weights[k] = exp(check_score(check, c, k));
    for (size_t d = 0; d < check->head_size; d++) {
        double output = 0;
        for (size_t k = 0; k < check_num_keys(c); k++)
            output += weights[k] / sum * (double)check->values[k * check->head_size + d];
        check->expected[c * check->head_size + d] = (float)output;
    }
}

/* Runs one form of the kernel; returns its largest difference, infinite where an output
 * is not a number. */
static double check_form(const struct attention_check *check,
                         void (*attend)(const struct query_panel *panel)) {
    const struct kernels *kernels = check->kernels;
    bool bf16 = kernels->k_step == 2;
    size_t num_keys[KERNEL_COLUMNS_MAX];
    bool uniform[KERNEL_COLUMNS_MAX] = {false};
    const struct query_panel panel = {
        .queries = check->queries,
        .queries_ld = check->score_size,
        .num_queries = kernels->columns,
        .keys = bf16 && !check->additive ? check->key_words : check->keys,
        .keys_ld =
            bf16 && !check->additive ? (check->score_size + 1) / 2 : check->score_size,
        .values = bf16 ? check->value_words : check->values,
        .values_ld = check->head_size,
        .key_len = CHECK_KEYS,
        .num_keys = num_keys,
        .uniform = uniform,
        .additive_score = check->additive ? check->additive_score : NULL,
        .score_size = check->score_size,
        .head_size = check->head_size,
        .scale = 1.0F / sqrtf((float)check->score_size),
        .factor = 1.0F,
        .outputs = check->outputs,
        .outputs_ld = check->head_size,
        .scratch = check->scratch,
    };
    double worst = 0;

    for (size_t c = 0; c < kernels->columns; c++)
        num_keys[c] = check_num_keys(c);
    attend(&panel);
    for (size_t i = 0; i < kernels->columns * check->head_size; i++) {
        double difference = fabs((double)check->outputs[i] - (double)check->expected[i]);
        if (!(difference <= worst))
            worst = isnan(difference) ? (double)INFINITY : difference;
    }
    return worst;
}

/* Allocates floats, or returns NULL; the caller frees them. */
static float *alloc_rows(size_t rows, size_t columns) {
    size_t bytes;
    if (!size_mul(rows, columns, &bytes) || !size_mul(bytes, sizeof(float), &bytes))
        return NULL;
    return malloc(bytes);
}

static bool check_init(struct attention_check *check) {
    size_t bytes =
        kernel_scratch_bytes(check->score_size, check->head_size, CHECK_KEYS, false);
    const struct kernels *kernels = check->kernels;

    check->additive_score = alloc_rows(1, check->score_size);
    check->queries = alloc_rows(kernels->columns, check->score_size);
    check->keys = alloc_rows(CHECK_KEYS, check->score_size);
    check->values = alloc_rows(CHECK_KEYS, check->head_size);
    check->key_words = alloc_rows(CHECK_KEYS, check->score_size);
    check->value_words = alloc_rows(CHECK_KEYS, check->head_size);
    check->expected = alloc_rows(kernels->columns, check->head_size);
    check->outputs = alloc_rows(kernels->columns, check->head_size);
    check->scratch = bytes < SIZE_MAX ? aligned_alloc(64, bytes) : NULL;
    if (check->additive_score == NULL || check->queries == NULL || check->keys == NULL ||
        check->values == NULL || check->key_words == NULL || check->value_words == NULL ||
        check->expected == NULL || check->outputs == NULL || check->scratch == NULL)
        return false;

    noise_fill(check->additive_score, check->score_size,
               1.0F / sqrtf((float)check->score_size));
    noise_fill(check->queries, kernels->columns * check->score_size, 1.0F);
    noise_fill(check->keys, CHECK_KEYS * check->score_size, -1.0F);
    noise_fill(check->values, CHECK_KEYS * check->head_size, 1.0F);
    for (size_t c = 0; c < kernels->columns; c++)
        expect_query(check, c);
    if (kernels->convert_bf16 != NULL) {
        kernels->convert_bf16(check->keys, check->score_size, CHECK_KEYS,
                              check->score_size, check->key_words,
                              (check->score_size + 1) / 2);
        kernels->pack_pairs_bf16(check->values, check->head_size, CHECK_KEYS,
                                 check->head_size, check->value_words, check->head_size);
    }
    return true;
}

attn_status engine_check_attention(const struct engine *engine, size_t head_size,
                                   double *ret_difference) {
    struct attention_check check = {.kernels = engine->kernels,
                                    .score_size = engine->score_size,
                                    .head_size = head_size,
                                    .additive = engine->additive_score != NULL};
    bool ready = check_init(&check);

    if (ready) {
        double lanes = check_form(&check, engine->kernels->attend);
        double few = check_form(&check, engine->kernels->attend_few);
        *ret_difference = few > lanes ? few : lanes;
    }
    free(check.additive_score);
    free(check.queries);
    free(check.keys);
    free(check.values);
    free(check.key_words);
    free(check.value_words);
    free(check.expected);
    free(check.outputs);
    free(check.scratch);
    return ready ? ATTN_OK : ATTN_E_NOMEM;
}
