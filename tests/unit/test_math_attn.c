/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_attn.c: results of the layer, against the reference and against cases worked
 * out by hand, with every engine, instruction set and precision; and what attn_plan()
 * refuses. */
#include "math/model.h"
#include "random_model.h"
#include "sample.h"

#include <attnd/attention.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_engine.h"
#include "near_reference.h"

/* The result of attn_run(), and its scratch. */
struct results {
    attn_result result;
    void *scratch;
};

/* Fills all memory with NaN first, so that what is not written shows. */
static struct results run(const attn_model *model, const attn_request *request,
                          const attn_sizes *sizes) {
    struct results r = {.scratch = aligned_alloc(ATTN_ALIGNMENT, sizes->scratch_bytes)};
    r.result.outputs = malloc(sizes->outputs * sizeof(float));
    r.result.weights = sizes->weights > 0 ? malloc(sizes->weights * sizeof(float)) : NULL;

    assert_non_null(r.scratch);
    assert_non_null(r.result.outputs);
    memset(r.scratch, 0xff, sizes->scratch_bytes);
    memset(r.result.outputs, 0xff, sizes->outputs * sizeof(float));
    if (r.result.weights != NULL)
        memset(r.result.weights, 0xff, sizes->weights * sizeof(float));
    attn_run(model, request, sizes, r.scratch, &r.result);
    return r;
}

static void free_results(struct results *r) {
    free(r->scratch);
    free(r->result.outputs);
    free(r->result.weights);
}

static void compare_with_reference(const attn_model *model, const attn_request *request,
                                   const attn_sizes *sizes, unsigned case_number) {
    double *outputs = malloc(sizes->outputs * sizeof *outputs);
    double *weights = malloc((sizes->weights + 1) * sizeof *weights);
    const struct comparison c = compare_to_reference(model, request, case_number);
    run_reference(model, request,
                  &(struct ref_result){.outputs = outputs, .weights = weights});
    struct results r = run(model, request, sizes);
    assert_expected(&c, REF_OUTPUTS, r.result.outputs, outputs, sizes->outputs, 0);
    assert_expected(&c, REF_WEIGHTS, r.result.weights, weights, sizes->weights, 0);
    free_results(&r);
    free(outputs);
    free(weights);
}

static void compare_random(uint64_t seed, unsigned cases, size_t longest) {
    seed = unit_seed(seed);
    cases = (unsigned)sample_cases(cases);
    print_message("seed %llu, %u cases\n", (unsigned long long)seed, cases);
    for (unsigned i = 0; i < cases; i++) {
        attn_model_info info = random_model_info(&seed);
        attn_model *model = random_model(&seed, &info);
        assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);

        struct random_request r;
        random_request_init(&seed, model, longest, longest, &r);
        compare_with_reference(model, &r.request, &r.sizes, i);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

static void test_random_small_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20260004, 2000, 9);
}

static void test_random_long_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20260002, 60, 150);
}

/* The weights that are not selected are not even stored. */
static void compare_selected(const attn_model *model, const struct random_request *r) {
    const attn_request *some = &r->request;
    const attn_model_info *info = attn_model_get_info(model);
    bool all_heads = some->need_weights == ATTN_WEIGHTS_ALL;
    attn_request every = *some;
    attn_sizes sizes;

    every.weights_heads = NULL;
    every.weights_queries = NULL;
    assert_int_equal(attn_plan(model, &every, &sizes, NULL), ATTN_OK);
    struct results all = run(model, &every, &sizes);
    struct results selected = run(model, some, &r->sizes);
    assert_memory_equal(all.result.outputs, selected.result.outputs,
                        sizes.outputs * sizeof(float));

    const float *plane = all.result.weights, *row = selected.result.weights;
    size_t planes = all_heads ? info->num_heads : 1;
    size_t heads = all_heads && some->weights_heads ? some->num_weights_heads : planes;
    for (size_t s = 0; s < some->num_sequences; s++) {
        size_t queries = some->query_lens[s], keys = some->key_lens[s];
        size_t rows = some->weights_queries ? some->num_weights_queries : queries;
        for (size_t i = 0; i < heads * rows; i++, row += keys) {
            size_t h = i / rows, q = i % rows;
            h = all_heads && some->weights_heads ? some->weights_heads[h] : h;
            q = some->weights_queries ? (size_t)some->weights_queries[q] : q;
            assert_memory_equal(row, plane + (h * queries + q) * keys,
                                keys * sizeof *row);
        }
        plane += planes * queries * keys;
    }
    assert_int_equal(row - selected.result.weights, r->sizes.weights);
    free_results(&all);
    free_results(&selected);
}

static void test_selected_weights_have_the_bits_of_all(void **state) {
    uint64_t seed = unit_seed(20261122);
    (void)state;
    if (strcmp(engine.engine, "native") != 0) {
        print_message("only the native engine has the same bits for some heads\n");
        skip();
    }
    for (unsigned i = 0; i < 100; i++) {
        attn_model_info info = random_model_info(&seed);
        attn_model *model = random_model(&seed, &info);
        struct random_request r;
        assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
        random_request_init(&seed, model, 100, 100, &r);
        if (r.request.need_weights != ATTN_WEIGHTS_NONE)
            compare_selected(model, &r);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

/* A model 4 wide with 2 heads, whose projections copy: for cases worked out by hand. */
static attn_model *identity_model(void) {
    const attn_model_info info = {
        .name = "identity",
        .layout = "test",
        .width = {.query = 4, .key = 4, .value = 4, .out = 4, .head = 2},
        .num_heads = 2,
        .linears[ATTN_OUTPUT].weight = true,
        .context_length = 8};
    attn_model *model;
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    for (size_t i = 0; i < 4; i++)
        model_weight(model, ATTN_QUERY)[5 * i] = model_weight(model, ATTN_KEY)[5 * i] =
            model_weight(model, ATTN_VALUE)[5 * i] =
                model_weight(model, ATTN_OUTPUT)[5 * i] = 1.0F;
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    return model;
}

static const size_t three[] = {3}, one[] = {1}, nine[] = {9}, zero[] = {0}, four[] = {4};

/* One query of zeros, three keys: all scores are equal. */
static attn_request equal_scores(const float *queries, const float *values) {
    return (attn_request){.num_sequences = 1,
                          .query_lens = one,
                          .key_lens = three,
                          .queries = queries,
                          .keys = values,
                          .values = values};
}

static const float no_query[4] = {0};
static const float some_values[12] = {1, 2, 3, 4, 3, 2, 1, 0, 5, 5, 5, 5};

static void assert_near(float got, float expected) {
    bool bf16 = strcmp(engine.precision, "bf16") == 0;
    float tolerance = (float)(bf16 ? REF_TOLERANCE_BF16 : ATTN_TOLERANCE_F32);
    if (!(fabsf(got - expected) <= tolerance * fmaxf(fabsf(expected), 1.0F)))
        fail_msg("%.9g, not %.9g", (double)got, (double)expected);
}

static void expect_outputs(const attn_request *request, const float expected[4]) {
    attn_model *model = identity_model();
    attn_sizes sizes;
    assert_int_equal(attn_plan(model, request, &sizes, NULL), ATTN_OK);
    struct results r = run(model, request, &sizes);
    for (size_t i = 0; i < 4; i++)
        assert_near(r.result.outputs[i], expected[i]);
    free_results(&r);
    attn_model_destroy(model);
}

static void test_equal_scores_give_the_mean_of_the_values(void **state) {
    (void)state;
    attn_request request = equal_scores(no_query, some_values);
    expect_outputs(&request, (const float[]){3, 3, 3, 3});
}

static void test_row_with_no_valid_key_is_uniform_even_when_causal(void **state) {
    (void)state;
    attn_request request = equal_scores((const float[]){9, 9, 9, 9}, some_values);
    request.valid_lens = zero;
    request.causal = true;
    expect_outputs(&request, (const float[]){3, 3, 3, 3});
}

static void test_pruned_head_gives_nothing(void **state) {
    (void)state;
    attn_request request = equal_scores(no_query, some_values);
    request.head_mask = (const float[]){0, 2};
    expect_outputs(&request, (const float[]){0, 0, 6, 6});
}

static void test_masked_values_cannot_reach_the_result(void **state) {
    (void)state;
    const float values[12] = {1,         2,   3,   4,   NAN, INFINITY,
                              -INFINITY, NAN, NAN, NAN, NAN, NAN};
    attn_request request = equal_scores(no_query, values);
    request.causal = true;
    expect_outputs(&request, (const float[]){1, 2, 3, 4});
    request.causal = false;
    request.valid_lens = one;
    expect_outputs(&request, (const float[]){1, 2, 3, 4});
}

/* Causal self-attention of one sequence, rows [length[0], 4]. */
static struct results run_causal(const attn_model *model, const float *rows,
                                 const size_t *length) {
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = length,
                                  .key_lens = length,
                                  .queries = rows,
                                  .keys = rows,
                                  .values = rows,
                                  .causal = true};
    attn_sizes sizes;
    assert_int_equal(attn_plan(model, &request, &sizes, NULL), ATTN_OK);
    return run(model, &request, &sizes);
}

/* Many queries with differing lengths share products: none may see another's keys. */
static void test_masked_values_do_not_leak_between_queries_of_a_block(void **state) {
    (void)state;
    enum { LENGTH = 100 };
    float rows[LENGTH * 4];
    const size_t length[] = {LENGTH};
    attn_model *model = identity_model();

    model->info.context_length = 0;
    for (size_t i = 0; i < LENGTH * 4; i++)
        rows[i] = i / 4 < LENGTH - 1 ? 1.0F : NAN;

    struct results r = run_causal(model, rows, length);
    for (size_t i = 0; i < (LENGTH - 1) * 4; i++)
        assert_near(r.result.outputs[i], 1.0F);
    assert_true(isnan(r.result.outputs[(LENGTH - 1) * 4]));
    free_results(&r);
    attn_model_destroy(model);
}

static void test_large_scores_do_not_overflow(void **state) {
    (void)state;
    const float queries[4] = {1e18F, 0, 0, 0};
    const float values[12] = {1e18F, 0, 1, 1, -1e18F, 0, 2, 2, 0, 0, 3, 3};
    attn_request request = equal_scores(queries, values);
    expect_outputs(&request, (const float[]){1e18F, 0, 2, 2});
}

/* Query 0 of a causal sequence attends to key 0 alone. Its score may overflow, also
 * beside queries that attend to more keys. */
static void test_single_key_gets_all_weight_even_when_its_score_overflows(void **state) {
    (void)state;
    static const size_t two[] = {2};
    const float rows[8] = {1e30F, 0, 1, 1, 0, 0, 0, 0};
    attn_model *model = identity_model();
    struct results r = run_causal(model, rows, two);
    assert_near(r.result.outputs[0], 1e30F);
    assert_near(r.result.outputs[2], 1);
    free_results(&r);
    attn_model_destroy(model);
}

static void expect_refused(attn_request *request, attn_status expected,
                           const char *text) {
    attn_model *model = identity_model();
    attn_error error = {.text = ""};
    attn_sizes sizes = {.outputs = 77};
    assert_int_equal(attn_plan(model, request, &sizes, &error), expected);
    assert_non_null(strstr(error.text, text));
    assert_int_equal(sizes.outputs, 77);
    attn_model_destroy(model);
}

static void test_plan_refuses_an_empty_batch(void **state) {
    (void)state;
    attn_request request = equal_scores(no_query, some_values);
    request.num_sequences = 0;
    expect_refused(&request, ATTN_E_SHAPE, "batch is empty");
}

static void test_plan_refuses_an_empty_sequence(void **state) {
    (void)state;
    attn_request request = equal_scores(no_query, some_values);
    request.key_lens = zero;
    expect_refused(&request, ATTN_E_SHAPE, "sequence 0 is empty");
}

static void test_plan_refuses_more_tokens_than_the_context_length(void **state) {
    (void)state;
    attn_request request = equal_scores(no_query, some_values);
    request.key_lens = nine;
    expect_refused(&request, ATTN_E_SHAPE, "context length 8");
}

static void test_plan_refuses_a_valid_len_over_the_keys(void **state) {
    (void)state;
    attn_request request = equal_scores(no_query, some_values);
    request.valid_lens = four;
    expect_refused(&request, ATTN_E_VALUE, "valid_lens of sequence 0");
    request.valid_lens_per_query = true;
    expect_refused(&request, ATTN_E_VALUE, "valid_lens of sequence 0");
    request.prefix_lens = four;
    expect_refused(&request, ATTN_E_VALUE, "prefix_lens of sequence 0");
}

static void test_plan_refuses_a_selection_that_does_not_exist(void **state) {
    (void)state;
    attn_request request = equal_scores(no_query, some_values);
    request.need_weights = ATTN_WEIGHTS_ALL;
    request.weights_heads = (const size_t[]){1, 2};
    request.num_weights_heads = 2;
    expect_refused(&request, ATTN_E_VALUE,
                   "weights of head 2 are selected, but the last one is 1");
    request.num_weights_heads = 1;
    request.weights_queries = (const ptrdiff_t *)one;
    request.num_weights_queries = 1;
    expect_refused(&request, ATTN_E_VALUE,
                   "but the last one of the shortest sequence is 0");
}

static void test_plan_refuses_what_cannot_be_counted(void **state) {
    (void)state;
    attn_model *model = identity_model();
    model->info.context_length = 0;
    const size_t many[] = {SIZE_MAX / 2, SIZE_MAX / 2, SIZE_MAX / 2};
    const size_t long_one[] = {(size_t)INT_MAX + 1};
    attn_request request = equal_scores(no_query, some_values);
    attn_sizes sizes;
    request.num_sequences = 3;
    request.query_lens = request.key_lens = many;
    assert_int_equal(attn_plan(model, &request, &sizes, NULL), ATTN_E_OVERFLOW);
    request.num_sequences = 1;
    request.query_lens = request.key_lens = long_one;
    assert_int_equal(attn_plan(model, &request, &sizes, NULL), ATTN_E_OVERFLOW);
    attn_model_destroy(model);
}

static void test_model_create_refuses_sizes_that_wrap(void **state) {
    (void)state;
    attn_model_info info = {.width = {.query = SIZE_MAX / 4,
                                      .key = 1,
                                      .value = 1,
                                      .out = 1,
                                      .head = SIZE_MAX / 4},
                            .num_heads = 8};
    attn_model *model = NULL;
    assert_int_equal(attn_model_create(&info, &model), ATTN_E_OVERFLOW);
    info.num_heads = info.width.head = 1;
    assert_int_equal(attn_model_create(&info, &model), ATTN_E_OVERFLOW);
    assert_null(model);
    attn_model_destroy(NULL);
}

static void
test_plan_needs_memory_that_grows_with_the_sequence_not_its_square(void **state) {
    (void)state;
    attn_model *model = identity_model();
    model->info.context_length = 0;
    const size_t length[] = {100000}, twice[] = {200000};
    attn_request request = equal_scores(no_query, some_values);
    attn_sizes once, double_length;
    request.query_lens = request.key_lens = length;
    assert_int_equal(attn_plan(model, &request, &once, NULL), ATTN_OK);
    request.query_lens = request.key_lens = twice;
    assert_int_equal(attn_plan(model, &request, &double_length, NULL), ATTN_OK);
    assert_true(double_length.scratch_bytes <= 2 * once.scratch_bytes + 4096);
    attn_model_destroy(model);
}

/* Scratch is the projections of queries, keys and values, of which the latter two may be
 * in bfloat16, and at most 64 MiB more. */
static void test_long_sequences_need_little_memory(void **state) {
    (void)state;
    enum { TOKENS = 16384, WIDTH = 768 };
    const attn_model_info info = {
        .name = "wide",
        .width = {.query = WIDTH, .key = WIDTH, .value = WIDTH, .out = WIDTH, .head = 64},
        .num_heads = 12,
        .linears[ATTN_OUTPUT].weight = true};
    const attn_parallel parallel = {.num_threads = 8};
    const size_t length = TOKENS;
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &length,
                                  .key_lens = &length,
                                  .parallel = &parallel};
    attn_model *model;
    attn_sizes sizes;

    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    assert_int_equal(attn_plan(model, &request, &sizes, NULL), ATTN_OK);

    size_t k_step = model->engine.kernels->k_step;
    size_t projections = (k_step + 2) * TOKENS * WIDTH * sizeof(float) / k_step;
    print_message("%zu bytes\n", sizes.scratch_bytes - projections);
    assert_in_range(sizes.scratch_bytes, projections, projections + ((size_t)64 << 20));
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_small_requests_match_the_reference),
        cmocka_unit_test(test_random_long_requests_match_the_reference),
        cmocka_unit_test(test_selected_weights_have_the_bits_of_all),
        cmocka_unit_test(test_equal_scores_give_the_mean_of_the_values),
        cmocka_unit_test(test_row_with_no_valid_key_is_uniform_even_when_causal),
        cmocka_unit_test(test_pruned_head_gives_nothing),
        cmocka_unit_test(test_masked_values_cannot_reach_the_result),
        cmocka_unit_test(test_masked_values_do_not_leak_between_queries_of_a_block),
        cmocka_unit_test(test_large_scores_do_not_overflow),
        cmocka_unit_test(test_single_key_gets_all_weight_even_when_its_score_overflows),
        cmocka_unit_test(test_plan_refuses_an_empty_batch),
        cmocka_unit_test(test_plan_refuses_an_empty_sequence),
        cmocka_unit_test(test_plan_refuses_more_tokens_than_the_context_length),
        cmocka_unit_test(test_plan_refuses_a_valid_len_over_the_keys),
        cmocka_unit_test(test_plan_refuses_a_selection_that_does_not_exist),
        cmocka_unit_test(test_plan_refuses_what_cannot_be_counted),
        cmocka_unit_test(test_model_create_refuses_sizes_that_wrap),
        cmocka_unit_test(
            test_plan_needs_memory_that_grows_with_the_sequence_not_its_square),
        cmocka_unit_test(test_long_sequences_need_little_memory),
    };
    return run_with_every_engine(tests, sizeof tests / sizeof tests[0]);
}
