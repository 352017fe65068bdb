/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_overflow.c: numbers near the ends of float32's range. A result is right, or
 * it is not finite: then a client gets an error. */
#include "math/dot_product.h"
#include "math/model.h"
#include "random_model.h"

#include <attnd/heads.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_engine.h"
#include "run_layer.h"

enum { SIZE = 32, KEYS = 4, ROWS_MAX = 40 };

/* A layer of one head whose projections are the identity, and a request of rows that are
 * alike. */
struct single {
    attn_model *model;
    attn_request request;
    size_t query_len, key_len;
    float queries[ROWS_MAX * SIZE], keys[KEYS * SIZE], values[KEYS * SIZE];
};

/* Creates the layer. Tests change numbers and then call single_ready(). */
static void single_init(struct single *s, attn_model_info info, size_t query_len) {
    *s = (struct single){.query_len = query_len, .key_len = KEYS};
    strcpy(info.name, "single");
    info.layout = "test";
    info.width.query = info.width.key = info.width.value = info.width.out = SIZE;
    info.num_heads = 1;
    info.width.head = SIZE;
    assert_int_equal(attn_model_create(&info, &s->model), ATTN_OK);
    for (size_t i = 0; i < SIZE; i++)
        model_weight(s->model, ATTN_QUERY)[i * SIZE + i] =
            model_weight(s->model, ATTN_KEY)[i * SIZE + i] =
                model_weight(s->model, ATTN_VALUE)[i * SIZE + i] = 1;
    for (size_t k = 0; k < KEYS * SIZE; k++)
        s->values[k] = (float)k;
    s->request = (attn_request){.num_sequences = 1,
                                .query_lens = &s->query_len,
                                .key_lens = &s->key_len,
                                .queries = s->queries,
                                .keys = s->keys,
                                .values = s->values,
                                .need_weights = ATTN_WEIGHTS_ALL,
                                .need_heads = true,
                                .need_lse = true};
}

static void single_ready(struct single *s) {
    assert_int_equal(attn_model_set_engine(s->model, &engine, NULL), ATTN_OK);
}

/* Makes all queries `row`, but for what is behind its `count` numbers: zeros. */
static void set_queries(struct single *s, const float *row, size_t count) {
    for (size_t q = 0; q < s->query_len; q++)
        memcpy(s->queries + q * SIZE, row, count * sizeof *row);
}

/* Runs, and expects that nothing of any row is a number. */
static void expect_no_numbers(struct single *s) {
    attn_sizes sizes;
    attn_result result = run(s->model, &s->request, &sizes);

    for (size_t q = 0; q < s->query_len; q++) {
        assert_false(isfinite(result.outputs[q * SIZE]));
        assert_false(isfinite(result.heads[q * SIZE]));
        assert_false(isfinite(result.weights[q * KEYS]));
        assert_true(isnan(result.lse[q]) || result.lse[q] > 0);
    }
    free_result(&result);

    /* Nothing hides it from a request for less. */
    s->request.need_heads = s->request.need_lse = false;
    result = run(s->model, &s->request, &sizes);
    assert_false(isfinite(result.outputs[0]) || isfinite(result.weights[0]));
    free_result(&result);
    attn_model_destroy(s->model);
}

static void test_scores_that_are_all_out_of_range_give_no_numbers(void **state) {
    (void)state;
    for (size_t rows = 1; rows <= ROWS_MAX; rows += ROWS_MAX - 1) {
        struct single s;
        single_init(&s, (attn_model_info){0}, rows);
        for (size_t i = 0; i < rows * SIZE; i++)
            s.queries[i] = 1e19F;
        for (size_t i = 0; i < KEYS * SIZE; i++)
            s.keys[i] = -1e19F;
        single_ready(&s);
        expect_no_numbers(&s);
    }
}

static void test_a_sink_takes_all_where_scores_are_out_of_range(void **state) {
    (void)state;
    for (size_t rows = 1; rows <= ROWS_MAX; rows += ROWS_MAX - 1) {
        struct single s;
        single_init(&s, (attn_model_info){.score.sinks = true}, rows);
        s.model->arrays[MODEL_SINKS].numbers[0] = -3;
        for (size_t i = 0; i < rows * SIZE; i++)
            s.queries[i] = 1e19F;
        for (size_t i = 0; i < KEYS * SIZE; i++)
            s.keys[i] = -1e19F;
        single_ready(&s);
        assert_as_reference(s.model, &s.request, (unsigned)rows);
        s.model->arrays[MODEL_SINKS].numbers[0] =
            -3e38F; /* may be below the scores or above */
        expect_no_numbers(&s);
    }
}

/* The products of the first key are infinite in passing, and its score is 0. */
static void test_sums_that_overflow_in_passing_give_the_right_scores(void **state) {
    const float query[] = {0x1p66F, 0x1p66F, 0x1p66F, 0x1p66F, 1, 1e-20F};
    const float keys[KEYS][SIZE] = {{-0x1p64F, -0x1p64F, 0x1p64F, 0x1p64F, 1},
                                    {0, 0, 0, 0, 2},
                                    {0, 0, 0, 0, 0, 1e19F},
                                    {-0x1p64F, -0x1p64F, -0x1p64F}};
    (void)state;
    for (size_t rows = 1; rows <= ROWS_MAX; rows += ROWS_MAX - 1) {
        for (size_t sinks = 0; sinks < 2; sinks++) {
            struct single s;
            single_init(&s, (attn_model_info){.score.sinks = sinks == 1}, rows);
            set_queries(&s, query, sizeof query / sizeof *query);
            memcpy(s.keys, keys, sizeof keys);
            single_ready(&s);
            assert_as_reference(s.model, &s.request, (unsigned)rows);
            attn_model_destroy(s.model);
        }
    }
}

static void test_a_query_may_overflow_where_it_is_scaled(void **state) {
    const float query[] = {3e38F, -2e38F, 1e38F};
    const float keys[KEYS][SIZE] = {
        {1e-38F, 2e-38F}, {2e-38F, 3e-38F, -1e-38F}, {-4e-38F}, {0, 0, 3e-38F}};
    (void)state;
    for (size_t rows = 1; rows <= ROWS_MAX; rows += ROWS_MAX - 1) {
        struct single s;
        single_init(&s, (attn_model_info){.score.scale = 8}, rows);
        set_queries(&s, query, 3);
        memcpy(s.keys, keys, sizeof keys);
        single_ready(&s);
        if (strcmp(engine.precision, "bf16") != 0) /* which takes these keys for 0 */
            assert_as_reference(s.model, &s.request, (unsigned)rows);
        attn_model_destroy(s.model);
    }
}

/* A projected key is 3e38 + 3e38 - 6e38: infinite in float32. Whatever comes after must
 * not make numbers of it. */
static void test_what_follows_does_not_hide_an_infinite_projection(void **state) {
    const attn_model_info infos[] = {{.score.sinks = true},
                                     {.score.softcap = 3},
                                     {.projection.clip = 5},
                                     {.score = {.softcap = 3, .sinks = true}},
                                     {.score.kind = ATTN_ADDITIVE, .width.additive = 2}};
    (void)state;
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++) {
        struct single s;
        const float query = i % 2 == 0 ? -1 : 1;
        single_init(&s, infos[i], i % 2 == 0 ? 1 : ROWS_MAX);
        set_queries(&s, &query, 1);
        memcpy(model_weight(s.model, ATTN_KEY), (const float[]){1e38F, 1e38F, 2e38F},
               3 * 4);
        memcpy(s.keys, (const float[]){3, 3, 3}, 3 * 4);
        for (size_t a = 0; a < infos[i].width.additive; a++)
            s.model->arrays[MODEL_ADDITIVE_SCORE].numbers[a] =
                s.model->arrays[MODEL_ADDITIVE_KEY].numbers[a * SIZE] = 1;
        single_ready(&s);
        expect_no_numbers(&s);
    }
}

/* --- norms --- */

static void test_norms_of_numbers_whose_squares_overflow_are_right(void **state) {
    static const float factors[] = {1e-25F, 1, 1e18F, 1e19F, 1e30F, 1e37F};
    (void)state;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        for (unsigned norm = 0; norm < 4; norm++) {
            attn_norm kind = norm % 2 == 0 ? ATTN_NORM_RMS : ATTN_NORM_LAYER;
            attn_model_info info = {.pre_norm.eps = 1e-30, .head_norm.eps = 1e-30};
            uint64_t seed = unit_seed(20261140);
            struct single s;
            *(norm < 2 ? &info.pre_norm.kind : &info.head_norm.kind) = kind;
            info.pre_norm.applied = norm < 2;
            single_init(&s, info, 3);
            random_fill(&seed, s.queries, 3 * SIZE);
            random_fill(&seed, s.keys, KEYS * SIZE);
            for (size_t n = 0; n < SIZE; n++) {
                if (norm < 2)
                    s.model->arrays[MODEL_PRE_NORM].numbers[n] = 1;
                else
                    s.model->arrays[MODEL_QUERY_NORM].numbers[n] =
                        s.model->arrays[MODEL_KEY_NORM].numbers[n] = 0.5F;
            }
            for (size_t n = 0; n < 3 * SIZE; n++)
                s.queries[n] *= factors[i];
            for (size_t n = 0; n < KEYS * SIZE; n++)
                s.keys[n] *= factors[i];
            single_ready(&s);
            assert_as_reference(s.model, &s.request, (unsigned)(4 * i + norm));
            attn_model_destroy(s.model);
        }
    }
}

/* --- powers of 2 that cancel --- */

static void multiply(float *numbers, size_t count, int exponent) {
    for (size_t i = 0; numbers != NULL && i < count; i++)
        numbers[i] = ldexpf(numbers[i], exponent);
}

static int random_exponent(uint64_t *seed, int most) {
    return (int)random_between(seed, 0, (size_t)(2 * most)) - most;
}

/* Multiplies inputs, and the weights and biases that project them, so that what is
 * projected is 2^exponent times as large as before. */
static void multiply_projection(uint64_t *seed, int exponent, float *inputs, size_t rows,
                                size_t in, float *weight, float *bias, size_t out) {
    int of_inputs = random_exponent(seed, 60) + exponent / 2;

    multiply(inputs, rows * in, of_inputs);
    multiply(weight, in * out, exponent - of_inputs);
    multiply(bias, out, exponent);
}

static void test_powers_of_two_that_cancel_change_nothing(void **state) {
    const unsigned features = RANDOM_KV_HEADS | RANDOM_ROTATION | RANDOM_SOFTCAP |
                              RANDOM_SINKS | RANDOM_BIAS | RANDOM_POSITIONS |
                              RANDOM_WINDOW;
    uint64_t seed = unit_seed(20261141);
    size_t num_threads = 3;
    const attn_parallel parallel = {
        .num_threads = num_threads, .run = run_backwards, .context = &num_threads};
    (void)state;
    for (unsigned i = 0; i < 60; i++) {
        attn_model_info info = random_model_info(&seed);
        info.score.kind = ATTN_SCALED_DOT_PRODUCT;
        info.width.additive = 0;
        random_add_features(&seed, features, &info);
        int queries = random_exponent(&seed, 58), keys = random_exponent(&seed, 58);
        int values = random_exponent(&seed, 60);
        info.score.scale = ldexp(1 / sqrt((double)info.width.head), -queries - keys);

        attn_model *model = random_model(&seed, &info);
        /* float32 holds the tolerance for scores up to about 100. What rounded slopes add
         * is multiplied by the scale: powers of 2 cancel there, too. */
        bool scaled = info.score.bias == ATTN_BIAS_ALIBI_ROUNDED;
        multiply(model->arrays[MODEL_SLOPES].numbers, info.num_heads,
                 scaled ? queries + keys - 8 : -5);
        const struct model_array *position_keys = &model->arrays[MODEL_POSITION_KEYS],
                                 *position_queries = position_keys + 1;
        multiply(position_keys->numbers, position_keys->rows * position_keys->columns,
                 keys);
        multiply(position_queries->numbers,
                 position_queries->rows * position_queries->columns, queries);
        for (size_t h = 0; info.score.sinks && i % 4 == 0 && h < info.num_heads; h++)
            multiply(model->arrays[MODEL_SINKS].numbers + h, 1,
                     random_exponent(&seed, 126));
        size_t hidden = info.num_heads * info.width.head;
        size_t kv_hidden = model->info.num_kv_heads * info.width.head;
        struct random_request r;
        random_request_init(&seed, model, 30, i % 6 == 0 ? 3000 : 200, &r);
        random_request_add(&seed, RANDOM_POSITIONS | RANDOM_WINDOW, model, &r);
        r.request.need_heads = r.request.need_lse = true;
        r.request.parallel = i % 2 == 0 ? &parallel : NULL;
        multiply_projection(&seed, queries, r.queries, r.sizes.num_queries,
                            info.width.query, model_weight(model, ATTN_QUERY),
                            model_bias(model, ATTN_QUERY), hidden);
        multiply_projection(&seed, keys, r.keys, r.sizes.num_keys, info.width.key,
                            model_weight(model, ATTN_KEY), model_bias(model, ATTN_KEY),
                            kv_hidden);
        multiply_projection(&seed, values, r.values, r.sizes.num_keys, info.width.value,
                            model_weight(model, ATTN_VALUE),
                            model_bias(model, ATTN_VALUE), kv_hidden);
        multiply(model_bias(model, ATTN_OUTPUT), info.width.out, values);
        assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
        attn_plan(model, &r.request, &r.sizes, NULL);
        assert_as_reference(model, &r.request, i);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

/* Contributions whose squares are out of range have the same importance. */
static void test_heads_matter_alike_whatever_the_unit_of_the_outputs(void **state) {
    enum { HEADS = 3, WIDTH = 12, TOKENS = 20 };
    const attn_model_info info = {
        .name = "heads",
        .layout = "test",
        .width = {.query = WIDTH, .key = WIDTH, .value = WIDTH, .out = WIDTH, .head = 4},
        .num_heads = HEADS,
        .linears[ATTN_OUTPUT].weight = true};
    static const int exponents[] = {0, -100, -60, -40, 40, 60, 70, 110};
    const size_t len = TOKENS;
    double first[HEADS];
    (void)state;
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        uint64_t seed = unit_seed(20261142);
        attn_model *model = random_model(&seed, &info);
        float x[TOKENS * WIDTH];
        attn_head_sums sums[HEADS] = {{0}};
        double gram[HEADS * HEADS] = {0};
        attn_heads heads = {.num_heads = HEADS, .sums = sums, .gram = gram};
        attn_sizes sizes;
        size_t wrong;
        random_fill(&seed, x, TOKENS * WIDTH);
        multiply(model_weight(model, ATTN_OUTPUT), (size_t)WIDTH * WIDTH, exponents[i]);
        assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = &len,
                                      .key_lens = &len,
                                      .queries = x,
                                      .keys = x,
                                      .values = x};
        assert_int_equal(attn_heads_plan(model, &request, &sizes, NULL), ATTN_OK);
        void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
        attn_heads_add(model, &request, &sizes, scratch, &heads);
        assert_true(attn_heads_are_finite(&heads, &wrong));
        for (size_t h = 0; h < HEADS; h++) {
            attn_head head;
            attn_heads_describe(&heads, h, &head);
            if (i == 0)
                first[h] = head.importance;
            assert_true(fabs(head.importance - first[h]) < 1e-5);
        }
        free(scratch);
        attn_model_destroy(model);
    }
}

/* What clients add for minus infinity: a row of nothing else is even, as in float64. */
static void test_lowest_biases_are_numbers(void **state) {
    enum { QUERIES = 40, LONG = KERNEL_CHUNK_KEYS + 300 };
    static const float others[] = {-FLT_MAX, -3.3e38F, -2.5e38F, -2e38F, -1e38F, 0};
    static float queries[QUERIES], keys[LONG], bias[QUERIES * LONG];
    uint64_t seed = 20261310;
    (void)state;
    random_fill(&seed, queries, QUERIES);
    random_fill(&seed, keys, LONG);
    for (unsigned i = 0; i < 4; i++) { /* both forms, one chunk and two */
        const attn_dot_product options = {
            .num_heads = 1, .head_size = 1, .scale = 0.5, .cpu = engine.cpu};
        size_t rows = i % 2 == 0 ? QUERIES : 2, length = i < 2 ? LONG : 200;
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = &rows,
                                      .key_lens = &length,
                                      .queries = queries,
                                      .keys = keys,
                                      .bias = bias,
                                      .bias_row_ld = length,
                                      .omit_outputs = true,
                                      .need_lse = true,
                                      .need_weights = ATTN_WEIGHTS_ALL};
        attn_model model;
        attn_sizes sizes;

        for (size_t q = 0; q < rows; q++) {
            for (size_t k = 0; k < length; k++)
                bias[q * length + k] = -FLT_MAX;
            bias[q * length + length - 1] = others[(q + i / 2) % 6];
        }
        assert_int_equal(dot_product_init(&options, &model, NULL), ATTN_OK);
        attn_result got = run(&model, &request, &sizes);
        for (size_t q = 0; q < rows; q++) {
            const float *weights = got.weights + q * length, last = weights[length - 1];
            bool even = (q + i / 2) % 6 == 0, known = (q + i / 2) % 6 > 2;
            assert_true(last == (even ? 1.0F / (float)length : 1.0F));
            assert_true(weights[0] == (even ? last : 0.0F));
            assert_true(isfinite(got.lse[q]) == known);
        }
        free_result(&got);
    }
}

/* Slopes and biases leave the range of float32 together: that masks no key. */
static void test_sums_of_biases_below_the_range_have_no_score(void **state) {
    const float slope = 1e38F, low[] = {-2e38F, 0}, ones[] = {1, 1};
    const attn_dot_product options = {
        .num_heads = 1, .head_size = 1, .scale = 1, .slopes = &slope, .cpu = engine.cpu};
    const size_t one = 1, two = 2, last = 4;
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const size_t positions[] = {i < 2 ? 1 : 0, 4};
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = &one,
                                      .key_lens = &two,
                                      .positions = &last,
                                      .key_positions = positions,
                                      .queries = ones,
                                      .keys = ones,
                                      .bias = i < 2 ? low : NULL,
                                      .omit_outputs = true,
                                      .reduce.scores = i % 2 == 0,
                                      .need_weights = ATTN_WEIGHTS_ALL};
        attn_model model;
        attn_sizes sizes;

        assert_int_equal(dot_product_init(&options, &model, NULL), ATTN_OK);
        attn_result got = run(&model, &request, &sizes);
        assert_true(got.weights[0] == 0 && got.weights[1] == 1);
        assert_true(i % 2 == 1 || isnan(got.scores[0]));
        free_result(&got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores_that_are_all_out_of_range_give_no_numbers),
        cmocka_unit_test(test_a_sink_takes_all_where_scores_are_out_of_range),
        cmocka_unit_test(test_sums_that_overflow_in_passing_give_the_right_scores),
        cmocka_unit_test(test_a_query_may_overflow_where_it_is_scaled),
        cmocka_unit_test(test_what_follows_does_not_hide_an_infinite_projection),
        cmocka_unit_test(test_norms_of_numbers_whose_squares_overflow_are_right),
        cmocka_unit_test(test_powers_of_two_that_cancel_change_nothing),
        cmocka_unit_test(test_lowest_biases_are_numbers),
        cmocka_unit_test(test_sums_of_biases_below_the_range_have_no_score),
        cmocka_unit_test(test_heads_matter_alike_whatever_the_unit_of_the_outputs),
    };

    return run_with_every_engine(tests, sizeof tests / sizeof *tests);
}
