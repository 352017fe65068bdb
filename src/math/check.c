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
    float *key_panels; /* [CHECK_KEYS, score_size], in panels */
    float *expected;   /* [columns, head_size], by plain loops */
    float *outputs;    /* [columns, head_size] */
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

/* One way to attend: a form of the kernel, so many queries at a time, and how keys
 * lie. */
struct attention_way {
    void (*attend)(const struct query_panel *panel);
    size_t num_queries;
    bool in_panels;
};

/* Runs the kernel in one way; returns its largest difference, infinite where an output is
 * not a number. */
static double check_way(const struct attention_check *check, struct attention_way way) {
    const struct kernels *kernels = check->kernels;
    bool bf16 = kernels->k_step == 2;
    size_t num_keys[KERNEL_COLUMNS_MAX];
    bool uniform[KERNEL_COLUMNS_MAX] = {false};
    struct query_panel panel = {
        .queries_ld = check->score_size,
        .keys = way.in_panels              ? check->key_panels
                : bf16 && !check->additive ? check->key_words
                                           : check->keys,
        .keys_ld =
            bf16 && !check->additive ? (check->score_size + 1) / 2 : check->score_size,
        .keys_in_panels = way.in_panels,
        .values = bf16 ? check->value_words : check->values,
        .values_ld = check->head_size,
        .key_len = CHECK_KEYS,
        .uniform = uniform,
        .additive_score = check->additive ? check->additive_score : NULL,
        .score_size = check->score_size,
        .head_size = check->head_size,
        .scale = 1.0F / sqrtf((float)check->score_size),
        .factor = 1.0F,
        .outputs_ld = check->head_size,
        .scratch = check->scratch,
    };
    double worst = 0;

    for (size_t c = 0; c < kernels->columns; c++)
        num_keys[c] = check_num_keys(c);
    for (size_t c = 0; c < kernels->columns; c += panel.num_queries) {
        size_t left = kernels->columns - c;
        panel.num_queries = left < way.num_queries ? left : way.num_queries;
        panel.queries = check->queries + c * check->score_size;
        panel.outputs = check->outputs + c * check->head_size;
        panel.num_keys = num_keys + c;
        way.attend(&panel);
    }
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

/* Transposes the words of the keys into panels. */
static void fill_key_panels(const struct attention_check *check) {
    const struct kernels *kernels = check->kernels;
    bool bf16 = kernels->k_step == 2;
    size_t words = bf16 ? (check->score_size + 1) / 2 : check->score_size;
    const float *from = bf16 ? check->key_words : check->keys;

    for (size_t k = 0; k < CHECK_KEYS; k += KEY_BLOCK) {
        size_t count = CHECK_KEYS - k < KEY_BLOCK ? CHECK_KEYS - k : KEY_BLOCK;
        kernels->transpose(from + k * words, words, count, words,
                           check->key_panels + k * words, count);
    }
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
    check->key_panels = alloc_rows(CHECK_KEYS + KEY_BLOCK, check->score_size);
    check->expected = alloc_rows(kernels->columns, check->head_size);
    check->outputs = alloc_rows(kernels->columns, check->head_size);
    check->scratch = bytes < SIZE_MAX ? aligned_alloc(64, bytes) : NULL;
    if (check->additive_score == NULL || check->queries == NULL || check->keys == NULL ||
        check->values == NULL || check->key_words == NULL || check->value_words == NULL ||
        check->key_panels == NULL || check->expected == NULL || check->outputs == NULL ||
        check->scratch == NULL)
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
    fill_key_panels(check);
    return true;
}

/* Returns the largest difference of all ways that serve. A few queries alone go through
 * other tiles than more. */
static double check_ways(const struct attention_check *check) {
    const struct kernels *kernels = check->kernels;
    size_t columns = kernels->columns;
    const struct attention_way ways[] = {
        {kernels->attend, columns, false}, {kernels->attend_few, columns, false},
        {kernels->attend, columns, true},  {kernels->attend_few, columns, true},
        {kernels->attend_few, 2, true},    {kernels->attend_few, 1, true},
    };
    size_t count = check->additive ? 2 : sizeof ways / sizeof ways[0];
    double worst = 0;

    for (size_t i = 0; i < count; i++) {
        double difference = check_way(check, ways[i]);
        worst = difference > worst ? difference : worst;
    }
    return worst;
}

attn_status engine_check_attention(const struct engine *engine, size_t head_size,
                                   double *ret_difference) {
    struct attention_check check = {.kernels = engine->kernels,
                                    .score_size = engine->score_size,
                                    .head_size = head_size,
                                    .additive = engine->additive_score != NULL};
    bool ready = check_init(&check);

    if (ready)
        *ret_difference = check_ways(&check);
    free(check.additive_score);
    free(check.queries);
    free(check.keys);
    free(check.values);
    free(check.key_words);
    free(check.value_words);
    free(check.key_panels);
    free(check.expected);
    free(check.outputs);
    free(check.scratch);
    return ready ? ATTN_OK : ATTN_E_NOMEM;
}
