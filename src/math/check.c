/* SPDX-License-Identifier: Apache-2.0 */
/* check.c: compares the attention of the kernels with plain loops, on noise. */
#include "base/heap.h"
#include "base/noise.h"
#include "base/size.h"
#include "math/engine.h"
#include "math/reserve.h"

#include <math.h>
#include <stdlib.h>

#define CHECK_KEYS (KEY_BLOCK + 35) /* two blocks, the second not whole, an odd number */

/* Of masked panels. */
#define CHECK_SOFTCAP 0.25F
#define CHECK_BIAS_LD ((size_t)2 * KEY_BLOCK) /* between rows of queries */

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
    float *key_bias;   /* [CHECK_KEYS, columns] */
    float *query_bias; /* the same in [columns, CHECK_BIAS_LD] */
    /* [columns, head_size], by plain loops: of panels without masks, and with them */
    float *expected[2];
    float *outputs; /* [columns, head_size] */
    void *scratch;
};

/* Returns how many keys query c attends to. */
static size_t check_num_keys(size_t c) {
    return CHECK_KEYS - 3 * c;
}

/* Returns the first key that query c of a masked panel attends to. */
static size_t check_first_key(size_t c) {
    return c + 1;
}

/* Returns what is added to a score of a masked panel. */
static float check_bias(size_t c, size_t k) {
    return (c + k) % 7 == 3 ? -INFINITY : 0.25F * (float)((5 * c + k) % 9);
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

/* Computes the outputs of query c, which are at most 1, from its weights. */
static void expect_outputs(const struct attention_check *check, size_t c,
                           const double *weights, double sum, float *outputs) {
    for (size_t d = 0; d < check->head_size; d++) {
        double output = 0;
        for (size_t k = 0; k < check_num_keys(c); k++)
            output += weights[k] * (double)check->values[k * check->head_size + d];
        outputs[c * check->head_size + d] = (float)(output / sum);
    }
}

/* Computes what query c gets in a panel without masks, and in one with them. */
static void expect_query(const struct attention_check *check, size_t c) {
    double weights[CHECK_KEYS], masked[CHECK_KEYS] = {0};
    double sum = 0, masked_sum = 0, cap = (double)CHECK_SOFTCAP;

    for (size_t k = 0; k < check_num_keys(c); k++) {
        double score = check_score(check, c, k);
        sum += weights[k] = exp(score);
        if (k >= check_first_key(c))
            masked_sum += masked[k] =
                exp(cap * tanh(score / cap) + (double)check_bias(c, k));
    }
    expect_outputs(check, c, weights, sum, check->expected[0]);
    expect_outputs(check, c, masked, masked_sum, check->expected[1]);
}

/* One way to attend: a form of the kernel, so many queries at a time, how keys lie, and
 * whether with first keys, a softcap and a bias. */
struct attention_way {
    void (*attend)(const struct query_panel *panel);
    size_t num_queries;
    bool in_panels, masked;
};

/* Runs the kernel on the panel's queries, from query c on. */
static void check_some_queries(const struct attention_check *check,
                               struct attention_way way, size_t c,
                               struct query_panel panel) {
    size_t columns = check->kernels->columns;
    size_t first_keys[KERNEL_COLUMNS_MAX], end_keys[KERNEL_COLUMNS_MAX];
    bool by_query =
        way.attend != check->kernels->attend || check->kernels->few == SIZE_MAX;

    panel.num_queries = columns - c < way.num_queries ? columns - c : way.num_queries;
    panel.queries = check->queries + c * check->score_size;
    panel.outputs = check->outputs + c * check->head_size;
    for (size_t i = 0; i < panel.num_queries; i++) {
        end_keys[i] = check_num_keys(c + i);
        first_keys[i] = check_first_key(c + i);
    }
    panel.end_keys = end_keys;
    if (way.masked) {
        panel.first_keys = first_keys;
        panel.softcap = CHECK_SOFTCAP;
        panel.bias = by_query ? check->query_bias + c * CHECK_BIAS_LD : check->key_bias;
        panel.bias_ld = by_query ? CHECK_BIAS_LD : columns;
    }
    way.attend(&panel);
}

/* Runs the kernel in one way; returns its largest difference, infinite where an output is
 * not a number. */
static double check_way(const struct attention_check *check, struct attention_way way) {
    const struct kernels *kernels = check->kernels;
    bool bf16 = kernels->k_step == 2;
    bool uniform[KERNEL_COLUMNS_MAX] = {false};
    const struct query_panel panel = {
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
    const float *expected = check->expected[way.masked ? 1 : 0];
    double worst = 0;

    for (size_t c = 0; c < kernels->columns; c += way.num_queries)
        check_some_queries(check, way, c, panel);
    for (size_t i = 0; i < kernels->columns * check->head_size; i++) {
        double difference = fabs((double)check->outputs[i] - (double)expected[i]);
        if (!(difference <= worst))
            worst = isnan(difference) ? (double)INFINITY : difference;
    }
    return worst;
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

static void fill_bias(const struct attention_check *check) {
    size_t columns = check->kernels->columns;

    for (size_t c = 0; c < columns; c++) {
        for (size_t k = 0; k < CHECK_KEYS; k++)
            check->key_bias[k * columns + c] = check->query_bias[c * CHECK_BIAS_LD + k] =
                check_bias(c, k);
    }
}

/* Takes the arrays of a check; returns their floats. */
static size_t take_arrays(struct attention_check *check, float *memory) {
    size_t columns = check->kernels->columns, score_size = check->score_size;
    size_t bytes = kernel_scratch_bytes(score_size, check->head_size, CHECK_KEYS, false);
    struct reserve block = {memory, 0};

    check->additive_score = reserve_take(&block, 1, score_size);
    check->queries = reserve_take(&block, columns, score_size);
    check->keys = reserve_take(&block, CHECK_KEYS, score_size);
    check->values = reserve_take(&block, CHECK_KEYS, check->head_size);
    check->key_words = reserve_take(&block, CHECK_KEYS, score_size);
    check->value_words = reserve_take(&block, CHECK_KEYS, check->head_size);
    check->key_panels = reserve_take(&block, CHECK_KEYS + KEY_BLOCK, score_size);
    check->key_bias = reserve_take(&block, CHECK_KEYS, columns);
    check->query_bias = reserve_take(&block, columns, CHECK_BIAS_LD);
    check->expected[0] = reserve_take(&block, columns, check->head_size);
    check->expected[1] = reserve_take(&block, columns, check->head_size);
    check->outputs = reserve_take(&block, columns, check->head_size);
    check->scratch = reserve_take(&block, bytes / sizeof(float), 1);
    return block.floats;
}

/* Fills the arrays of a check. */
static void fill_arrays(const struct attention_check *check) {
    const struct kernels *kernels = check->kernels;

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
    fill_bias(check);
}

/* Returns the largest difference of all ways that serve. A few queries alone go through
 * other tiles than more. */
static double check_ways(const struct attention_check *check) {
    const struct kernels *kernels = check->kernels;
    size_t columns = kernels->columns;
    const struct attention_way ways[] = {
        {kernels->attend, columns, false, false},
        {kernels->attend_few, columns, false, false},
        {kernels->attend, columns, true, false},
        {kernels->attend_few, columns, true, false},
        {kernels->attend_few, 2, true, false},
        {kernels->attend_few, 1, true, false},
        {kernels->attend, columns, true, true},
        {kernels->attend_few, columns, true, true},
        {kernels->attend_few, 1, true, true},
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
    size_t bytes, floats = take_arrays(&check, NULL);
    float *memory = size_mul(floats, sizeof(float), &bytes) ? heap_alloc(bytes) : NULL;

    if (memory == NULL)
        return ATTN_E_NOMEM;
    take_arrays(&check, memory);
    fill_arrays(&check);
    *ret_difference = check_ways(&check);
    free(memory);
    return ATTN_OK;
}
