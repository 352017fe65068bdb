/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_reduce.c: what weights are reduced to, of layers and of given queries and
 * keys, against the same reductions of the float64 reference's weights. */
#include "math/dot_product.h"
#include "math/plan/plan.h"
#include "random_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_engine.h"

#include "random_dot_product.h"
#include "run_layer.h"
#include "sample.h"

#include "random_reductions.h"

/* Whether layers without projections, which are native and float32, can be computed. */
static bool is_native(void) {
    return strcmp(engine.engine, "native") == 0 && strcmp(engine.precision, "f32") == 0;
}

static void compare_layers(uint64_t *seed, unsigned count, size_t queries, size_t keys) {
    for (unsigned i = 0; i < sample_cases(count); i++) {
        attn_model_info info = random_model_info(seed);
        struct random_request r;
        struct random_reductions reductions;

        info.score.kind = ATTN_SCALED_DOT_PRODUCT;
        info.width.additive = 0;
        random_add_features(seed, RANDOM_EVERYTHING, &info);
        attn_model *model = random_model(seed, &info);
        /* over so many keys, steep slopes make scores of thousands */
        for (size_t h = 0; model->arrays[MODEL_SLOPES].numbers != NULL && keys > 1000 &&
                           h < info.num_heads;
             h++)
            model->arrays[MODEL_SLOPES].numbers[h] /= 64;
        assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
        random_request_init(seed, model, queries, keys, &r);
        random_request_add(seed, RANDOM_EVERYTHING, model, &r);
        add_reductions(seed, info.num_heads, &r, &reductions);
        assert_reduced_as_reference(model, &r.request, i);
        free_reductions(&reductions);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

static void compare_given(uint64_t *seed, unsigned count, size_t queries, size_t keys) {
    for (unsigned i = 0; is_native() && i < sample_cases(count); i++) {
        struct random_reductions reductions;
        struct example *e = make_example(seed, engine.cpu, queries, keys);

        add_reductions(seed, e->options.num_heads, &e->r, &reductions);
        assert_reduced_as_reference(&e->model, &e->r.request, i);
        free_reductions(&reductions);
        destroy_example(e);
    }
}

static void test_reductions_match_the_reference(void **state) {
    uint64_t seed = unit_seed(20261401);
    (void)state;
    compare_layers(&seed, 150, 12, 40);
    compare_layers(&seed, 30, 60, 150);
    compare_given(&seed, 300, 12, 40);
    compare_given(&seed, 60, 70, 150);
}

static void test_reductions_of_chunks_match_the_reference(void **state) {
    uint64_t seed = unit_seed(20261404);
    (void)state;
    compare_layers(&seed, 4, 5, 5000);
    compare_given(&seed, 6, 20, 5000);
}

static void assert_same_floats(const float *a, const float *b, size_t count) {
    if (count > 0)
        assert_memory_equal(a, b, count * sizeof *a);
}

static void assert_same_reductions(const attn_result *a, const attn_result *b,
                                   const attn_sizes *sizes) {
    assert_same_floats(a->scores, b->scores, sizes->scores);
    assert_same_floats(a->span_weights, b->span_weights, sizes->span_weights);
    assert_same_floats(a->top_weights, b->top_weights, sizes->top);
    assert_same_floats(a->target_weights, b->target_weights, sizes->target_weights);
    assert_same_floats(a->received, b->received, sizes->received);
    assert_same_floats(a->entropy, b->entropy, sizes->entropy);
    assert_same_floats(a->block_weights, b->block_weights, sizes->block_weights);
    if (sizes->top > 0)
        assert_memory_equal(a->top_keys, b->top_keys, sizes->top * sizeof *a->top_keys);
}

/* Threads share the steps, whose items run in any order, and other heads come along. */
static void test_bits_do_not_depend_on_threads_or_results(void **state) {
    uint64_t seed = unit_seed(20261403);
    size_t num_threads = 3;
    const attn_parallel parallel = {num_threads, run_backwards, &num_threads};
    (void)state;

    for (unsigned i = 0; is_native() && i < 60; i++) {
        struct random_reductions reductions;
        size_t keys = i % 4 == 0 ? 2500 : 200;
        struct example *e = make_example(&seed, engine.cpu, i % 2 == 0 ? 8 : 200, keys);
        attn_request shared = e->r.request;
        attn_sizes sizes, more;

        add_reductions(&seed, e->options.num_heads, &e->r, &reductions);
        attn_result alone = run(&e->model, &e->r.request, &sizes);
        shared = e->r.request;
        shared.parallel = &parallel;
        attn_result split = run(&e->model, &shared, &more);
        assert_same_reductions(&alone, &split, &sizes);
        free_result(&split);
        shared.need_lse = shared.need_heads = true;
        shared.need_weights = ATTN_WEIGHTS_ALL;
        split = run(&e->model, &shared, &more);
        assert_same_reductions(&alone, &split, &sizes);
        free_result(&split);
        free_result(&alone);
        free_reductions(&reductions);
        destroy_example(e);
    }
}

/* One panel over several chunks of keys, which are tasks: their weights wait in memory
 * that threads share until all chunks are merged. */
static void test_weights_of_chunks_are_shared_until_they_are_reduced(void **state) {
    enum { KEYS = 6000, SIZE = 16 };
    const attn_dot_product options = {
        .num_heads = 1, .head_size = SIZE, .scale = 0.25, .cpu = engine.cpu};
    const size_t query_len = 2, key_len = KEYS, spans[] = {0, 3, 2000, 5999};
    uint64_t seed = unit_seed(20261406);
    size_t num_threads = 3;
    const attn_parallel parallel = {num_threads, run_backwards, &num_threads};
    float *rows = malloc(KEYS * SIZE * sizeof *rows);
    attn_request request = {
        .num_sequences = 1,
        .query_lens = &query_len,
        .key_lens = &key_len,
        .queries = rows,
        .keys = rows,
        .values = rows,
        .reduce = {.spans = spans, .num_spans = 2, .top_k = 4, .entropy = true}};
    struct plan plan;
    attn_sizes sizes;
    attn_model model;
    (void)state;

    assert_non_null(rows);
    random_fill(&seed, rows, KEYS * SIZE);
    assert_int_equal(dot_product_init(&options, &model, NULL), ATTN_OK);
    attn_result alone = run(&model, &request, &sizes);
    request.parallel = &parallel;
    attn_result split = run(&model, &request, &sizes);
    memcpy(&plan, sizes.plan, sizeof plan);
    assert_int_equal(plan.scratch.shared_panels, 1);
    assert_same_reductions(&alone, &split, &sizes);
    free_result(&split);
    free_result(&alone);
    free(rows);
}

/* Each sequence has the bits that it has alone. */
static void test_bits_do_not_depend_on_neighbours(void **state) {
    uint64_t seed = unit_seed(20261404);
    (void)state;

    for (unsigned i = 0; is_native() && i < 40; i++) {
        struct example *e = make_example(&seed, engine.cpu, i % 2 == 0 ? 8 : 100, 200);
        attn_request *all = &e->r.request, one;
        size_t query = 0, key = 0, row = 0;
        attn_sizes sizes;

        all->bias = NULL;
        all->weights_queries = NULL;
        all->reduce =
            (attn_reductions){.received = true, .entropy = true, .block = 7, .top_k = 1};
        attn_result batch = run(&e->model, all, &sizes);
        size_t heads = sizes.entropy / sizes.num_queries, block = 0;
        for (size_t s = 0; s < all->num_sequences; s++) {
            one = request_of_sequence(&e->model.info, all, s, query, key);
            attn_result alone = run(&e->model, &one, &sizes);
            attn_result part = {.entropy = batch.entropy + row,
                                .received = batch.received + key * heads,
                                .top_weights = batch.top_weights + row,
                                .top_keys = batch.top_keys + row,
                                .block_weights = batch.block_weights + block};
            assert_same_reductions(&part, &alone, &sizes);
            query += sizes.num_queries;
            key += sizes.num_keys;
            row += sizes.entropy;
            block += sizes.block_weights;
            free_result(&alone);
        }
        free_result(&batch);
        destroy_example(e);
    }
}

/* Many spans are differences of sums up to each key, few are summed one by one. */
static void test_many_spans_are_what_few_are(void **state) {
    enum { MANY = 60 };
    uint64_t seed = unit_seed(20261405);
    (void)state;

    for (unsigned i = 0; is_native() && i < 40; i++) {
        struct example *e = make_example(&seed, engine.cpu, 12, 90);
        attn_request *request = &e->r.request;
        size_t keys = request->key_lens[0];
        attn_sizes sizes, one_size;

        for (size_t s = 0; s < request->num_sequences; s++)
            keys = keys < request->key_lens[s] ? keys : request->key_lens[s];
        size_t *spans = random_ranges(&seed, MANY, keys, 1);
        request->reduce = (attn_reductions){.spans = spans, .num_spans = MANY};
        attn_result many = run(&e->model, request, &sizes);
        for (size_t n = 0; n < MANY; n++) {
            request->reduce = (attn_reductions){.spans = spans + 2 * n, .num_spans = 1};
            attn_result one = run(&e->model, request, &one_size);
            for (size_t r = 0; r < one_size.span_weights; r++)
                assert_true(fabsf(many.span_weights[r * MANY + n] -
                                  one.span_weights[r]) <= 1e-6F);
            free_result(&one);
        }
        free_result(&many);
        free(spans);
        destroy_example(e);
    }
}

/* Plans one sequence of 2 queries and 5 keys. */
static void assert_refused(attn_reductions reduce, const char *text) {
    const attn_dot_product options = {.num_heads = 2, .head_size = 4, .scale = 0.5};
    const size_t query_len = 2, key_len = 5;
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &query_len,
                                  .key_lens = &key_len,
                                  .omit_outputs = true,
                                  .reduce = reduce};
    attn_sizes sizes;
    attn_error error;

    assert_int_equal(attn_dot_product_plan(&options, &request, &sizes, &error),
                     ATTN_E_VALUE);
    assert_string_equal(error.text, text);
}

static void test_bad_reductions_are_refused(void **state) {
    const size_t empty[] = {0, 2, 3, 3}, outside[] = {4, 6}, two[] = {1, 3};
    (void)state;

    assert_refused((attn_reductions){.spans = empty, .num_spans = 2},
                   "span 1 is 3 to 3: give a first key and a larger end, at most 5");
    assert_refused(
        (attn_reductions){.spans = outside, .num_spans = 1, .spans_per_sequence = true},
        "span 0 is 4 to 6: give a first key and a larger end, at most 5");
    assert_refused((attn_reductions){.targets = empty},
                   "target 1 is 3 to 3: give a first key and a larger end, at most 5");
    assert_refused((attn_reductions){.top_k = 1, .top_in = two, .num_top_in = 1025},
                   "top_in has 1025 ranges, but may have 1024 at most");
    assert_refused((attn_reductions){.top_k = 6},
                   "top_k is 6, but a sequence has only 5 keys");
    assert_refused((attn_reductions){.top_k = 3, .top_in = two, .num_top_in = 1},
                   "top_k is 3, but a range of top_in has only 2 keys");
    assert_refused(
        (attn_reductions){.top_k = 1, .top_in = outside, .num_top_in = 1},
        "range of top_in 0 is 4 to 6: give a first key and a larger end, at most 5");
}

static void test_row_weights_need_sequences_of_equal_lengths(void **state) {
    const attn_dot_product options = {.num_heads = 2, .head_size = 4, .scale = 0.5};
    const size_t equal[] = {2, 2}, ragged[] = {2, 3};
    const float row_weights[2] = {0};
    attn_request request = {.num_sequences = 2,
                            .query_lens = equal,
                            .key_lens = ragged,
                            .omit_outputs = true,
                            .reduce = {.received = true, .row_weights = row_weights}};
    attn_sizes sizes;
    attn_error error;
    (void)state;

    assert_int_equal(attn_dot_product_plan(&options, &request, &sizes, &error), ATTN_OK);
    request.query_lens = ragged;
    assert_int_equal(attn_dot_product_plan(&options, &request, &sizes, &error),
                     ATTN_E_VALUE);
    assert_string_equal(error.text,
                        "row_weights are given, and sequences have several numbers of "
                        "queries: give one sequence, or some of equal lengths");
}

/* A weight too small for float32 is one of a key that is attended to; masked keys, and
 * rows without a key but with a sink, have none. */
static void test_top_tells_small_weights_from_masked_keys(void **state) {
    const attn_dot_product options = {
        .num_heads = 1, .head_size = 1, .scale = 1, .cpu = engine.cpu};
    const float sink = 1, queries[] = {1, 1}, keys[] = {-500, 3, -400, 3, 0};
    const float bias[] = {0,         0,         -INFINITY, 0,         -INFINITY,
                          -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const size_t query_len = 2, key_len = 5;
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &query_len,
                                  .key_lens = &key_len,
                                  .queries = queries,
                                  .keys = keys,
                                  .bias = bias,
                                  .bias_row_ld = 5,
                                  .omit_outputs = true,
                                  .reduce = {.top_k = 4}};
    static const int64_t expected[] = {1, 3, 0, -1, 0, 1, 2, 3};
    attn_dot_product with_sink = options;
    attn_model model;
    attn_sizes sizes;
    (void)state;
    if (!is_native())
        return;
    assert_int_equal(dot_product_init(&options, &model, NULL), ATTN_OK);
    attn_result got = run(&model, &request, &sizes);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(got.top_keys[i], expected[i]);
    assert_true(got.top_weights[0] == got.top_weights[1] && got.top_weights[2] == 0);
    assert_true(got.top_weights[4] == 0.2F);
    free_result(&got);
    with_sink.sinks = &sink;
    assert_int_equal(dot_product_init(&with_sink, &model, NULL), ATTN_OK);
    got = run(&model, &request, &sizes);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(got.top_keys[i], i < 4 ? expected[i] : -1);
    free_result(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions_match_the_reference),
        cmocka_unit_test(test_reductions_of_chunks_match_the_reference),
        cmocka_unit_test(test_bits_do_not_depend_on_threads_or_results),
        cmocka_unit_test(test_weights_of_chunks_are_shared_until_they_are_reduced),
        cmocka_unit_test(test_bits_do_not_depend_on_neighbours),
        cmocka_unit_test(test_many_spans_are_what_few_are),
        cmocka_unit_test(test_bad_reductions_are_refused),
        cmocka_unit_test(test_row_weights_need_sequences_of_equal_lengths),
        cmocka_unit_test(test_top_tells_small_weights_from_masked_keys),
    };
    return run_with_every_engine(tests, sizeof tests / sizeof *tests);
}
