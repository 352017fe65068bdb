/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_dot_product.c: attention of queries, keys and values that are given, in every
 * set of kernels, against the float64 reference. */
#include "base/dtype.h"
#include "math/dot_product.h"
#include "random_model.h"
#include "sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

/* What the tests run with, and what run_layer.h compares with. */
static const char *cpu;

#include "random_dot_product.h"
#include "run_layer.h"

static void assert_same(const attn_result *a, const attn_result *b,
                        const attn_sizes *sizes) {
    assert_memory_equal(a->outputs, b->outputs, sizes->outputs * sizeof(float));
    assert_memory_equal(a->weights, b->weights, sizes->weights * sizeof(float));
    assert_memory_equal(a->heads, b->heads, sizes->heads * sizeof(float));
    assert_memory_equal(a->lse, b->lse, sizes->lse * sizeof(float));
}

/* Compares random requests with the reference, and with the same on several threads. */
static void compare_random(uint64_t seed, unsigned cases, size_t queries, size_t keys) {
    size_t num_threads = 3;
    const attn_parallel parallel = {
        .num_threads = num_threads, .run = run_backwards, .context = &num_threads};

    seed = unit_seed(seed);
    for (unsigned i = 0; i < sample_cases(cases); i++) {
        struct example *e = make_example(&seed, cpu, queries, keys);
        attn_sizes sizes;
        assert_as_reference(&e->model, &e->r.request, i);
        attn_result alone = run(&e->model, &e->r.request, &sizes);
        e->r.request.parallel = &parallel;
        attn_result shared = run(&e->model, &e->r.request, &sizes);
        assert_same(&alone, &shared, &sizes);
        free_result(&alone);
        free_result(&shared);
        destroy_example(e);
    }
}

static void test_small_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20261301, 500, 9, 9);
}

static void test_long_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20261302, 60, 150, 250);
}

static void test_requests_in_chunks_match_the_reference(void **state) {
    (void)state;
    compare_random(20261303, 10, 20, 2 * KERNEL_CHUNK_KEYS + 700);
}

/* Compares the results of some queries of one sequence with those of all of them. */
static void compare_part(const struct example *e, const attn_request *request,
                         const attn_result *all, size_t first, size_t count) {
    const attn_model_info *info = &e->model.info;
    size_t query_len = request->query_lens[0], key_len = request->key_lens[0];
    attn_request part = *request;
    attn_sizes sizes;

    part.query_lens = &count;
    part.queries += first * info->width.query;
    part.positions += first;
    if (part.bias != NULL)
        part.bias += first * part.bias_row_ld;
    attn_result some = run(&e->model, &part, &sizes);
    assert_memory_equal(some.heads, all->heads + first * info->width.out,
                        sizes.heads * sizeof(float));
    assert_memory_equal(some.lse, all->lse + first * info->num_heads,
                        sizes.lse * sizeof(float));
    for (size_t h = 0; h < info->num_heads; h++)
        assert_memory_equal(some.weights + h * count * key_len,
                            all->weights + (h * query_len + first) * key_len,
                            count * key_len * sizeof(float));
    free_result(&some);
}

static void test_other_queries_do_not_change_a_bit(void **state) {
    uint64_t seed = unit_seed(20261304);
    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        struct example *e =
            make_example(&seed, cpu, 40, i % 4 == 0 ? KERNEL_CHUNK_KEYS + 900 : 200);
        size_t positions[40];
        attn_sizes sizes;
        for (size_t q = 0; q < 40; q++)
            positions[q] = random_between(&seed, 0, e->r.key_lens[0]);
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = e->r.query_lens,
                                      .key_lens = e->r.key_lens,
                                      .queries = e->r.queries,
                                      .keys = e->r.keys,
                                      .values = e->r.values,
                                      .positions = positions,
                                      .causal = i % 2 == 1,
                                      .window = e->r.request.window,
                                      .chunk = e->r.request.chunk,
                                      .bias = e->bias,
                                      .bias_head_ld = e->r.request.bias_head_ld,
                                      .bias_row_ld = e->r.request.bias_row_ld,
                                      .need_weights = ATTN_WEIGHTS_ALL,
                                      .omit_outputs = true,
                                      .need_heads = true,
                                      .need_lse = true};
        attn_result all = run(&e->model, &request, &sizes);
        size_t query_len = e->r.query_lens[0];
        for (size_t first = 0, count; first < query_len; first += count) {
            count = random_between(&seed, 1, random_between(&seed, 1, 20));
            count = count < query_len - first ? count : query_len - first;
            compare_part(e, &request, &all, first, count);
        }
        free_result(&all);
        destroy_example(e);
    }
}

/* Neither values nor keys of other heads are read. */
static void test_weights_need_no_values_and_only_keys_of_their_heads(void **state) {
    uint64_t seed = unit_seed(20261305);
    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        struct example *e = make_example(&seed, cpu, 40, 300);
        attn_request *request = &e->r.request;
        size_t size = e->options.head_size, width = e->model.info.width.key;
        size_t kv_heads = e->model.info.num_kv_heads;
        size_t head = random_between(&seed, 0, e->options.num_heads - 1), own;
        attn_sizes sizes;
        own = head * kv_heads / e->options.num_heads;
        request->need_weights = ATTN_WEIGHTS_ALL;
        request->weights_heads = &head;
        request->num_weights_heads = 1;
        request->omit_outputs = true;
        request->need_heads = request->need_lse = false;
        attn_result expected = run(&e->model, request, &sizes);
        for (size_t k = 0; k < sizes.num_keys; k++) {
            for (size_t d = 0; d < width; d++)
                e->r.keys[k * width + d] =
                    d / size == own ? e->r.keys[k * width + d] : NAN;
        }
        request->values = NULL;
        attn_result got = run(&e->model, request, &sizes);
        assert_same(&got, &expected, &sizes);
        assert_int_equal(sizes.outputs + sizes.heads, 0);
        free_result(&expected);
        free_result(&got);
        destroy_example(e);
    }
}

static void test_library_computes_what_the_layer_does(void **state) {
    uint64_t seed = unit_seed(20261306);
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        struct example *e = make_example(&seed, cpu, 20, 100);
        attn_sizes sizes, own_sizes;
        attn_result expected = run(&e->model, &e->r.request, &sizes);
        assert_int_equal(
            attn_dot_product_plan(&e->options, &e->r.request, &own_sizes, NULL), ATTN_OK);
        assert_memory_equal(&own_sizes, &sizes, offsetof(attn_sizes, plan));
        attn_result got = make_result(&sizes);
        void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
        attn_dot_product_run(&e->options, &e->r.request, &own_sizes, scratch, &got);
        assert_same(&got, &expected, &sizes);
        free(scratch);
        free_result(&expected);
        free_result(&got);
        destroy_example(e);
    }
}

/* A bias masks keys and values that are not numbers, and a row whose keys it masks has
 * even weights, or with sinks none. */
/* Copies columns first..first+width of rows `ld` wide. The caller frees them. */
static float *copy_columns(const float *rows, size_t count, size_t ld, size_t first,
                           size_t width) {
    float *to = malloc(count * width * sizeof *to);
    assert_non_null(to);
    for (size_t r = 0; r < count; r++)
        memcpy(to + r * width, rows + r * ld + first, width * sizeof *to);
    return to;
}

/* So many keys that a key head's copies fill the memory of a phase: each attends alone,
 * with the bits that it has when there is no other. */
static void test_phases_of_key_heads_do_not_change_a_bit(void **state) {
    enum { QUERIES = 100, KEYS = 50000, HEADS = 6, KV = 3, SIZE = 64, GROUP = 2 };
    const size_t query_len = QUERIES, key_len = KEYS;
    size_t num_threads = 2, own = (size_t)GROUP * SIZE;
    const attn_parallel parallel = {num_threads, run_backwards, &num_threads};
    const attn_dot_product all = {HEADS, KV, SIZE, 0, 0.125, 0, NULL, NULL, cpu},
                           one = {GROUP, 1, SIZE, 0, 0.125, 0, NULL, NULL, cpu};
    float *queries = malloc(sizeof *queries * QUERIES * HEADS * SIZE);
    float *keys = malloc(sizeof *keys * KEYS * KV * SIZE), *values;
    uint64_t seed = unit_seed(20261307);
    attn_model whole, alone;
    attn_sizes sizes;
    (void)state;

    random_fill(&seed, queries, (size_t)QUERIES * HEADS * SIZE);
    random_fill(&seed, keys, (size_t)KEYS * KV * SIZE);
    values = copy_columns(keys, 1, 0, 0, (size_t)KEYS * KV * SIZE);
    attn_request request = {.num_sequences = 1,
                            .query_lens = &query_len,
                            .key_lens = &key_len,
                            .queries = queries,
                            .keys = keys,
                            .values = values,
                            .reduce.received = true,
                            .reduce.entropy = true,
                            .omit_outputs = true,
                            .need_heads = true,
                            .need_lse = true,
                            .parallel = &parallel};
    assert_int_equal(dot_product_init(&all, &whole, NULL), ATTN_OK);
    assert_int_equal(dot_product_init(&one, &alone, NULL), ATTN_OK);
    attn_result got = run(&whole, &request, &sizes);
    assert_true(sizes.scratch_bytes < sizeof *keys * 2 * KEYS * KV * SIZE);
    for (size_t h = 0; h < KV; h++) {
        attn_request part = request;
        float *rows[] = {copy_columns(queries, QUERIES, HEADS * SIZE, h * own, own),
                         copy_columns(keys, KEYS, KV * SIZE, h * SIZE, SIZE),
                         copy_columns(values, KEYS, KV * SIZE, h * SIZE, SIZE)};
        part.queries = rows[0];
        part.keys = rows[1];
        part.values = rows[2];
        attn_result expected = run(&alone, &part, &sizes);
        for (size_t q = 0; q < QUERIES; q++) {
            assert_memory_equal(got.heads + q * HEADS * SIZE + h * own,
                                expected.heads + q * own, own * sizeof(float));
            assert_memory_equal(got.lse + q * HEADS + h * GROUP, expected.lse + q * GROUP,
                                GROUP * sizeof(float));
            assert_memory_equal(got.entropy + q * HEADS + h * GROUP,
                                expected.entropy + q * GROUP, GROUP * sizeof(float));
        }
        assert_memory_equal(got.received + h * GROUP * KEYS, expected.received,
                            (size_t)GROUP * KEYS * sizeof(float));
        free_result(&expected);
        for (size_t i = 0; i < 3; i++)
            free(rows[i]);
    }
    free_result(&got);
    free(queries);
    free(keys);
    free(values);
}

static void test_bias_masks_as_the_other_masks_do(void **state) {
    enum { QUERIES = 40, KEYS = 200, SIZE = 5 };
    static float queries[QUERIES * SIZE], keys[KEYS * SIZE], values[KEYS * SIZE],
        bias[QUERIES * KEYS];
    const float sink = 0.5F;
    const size_t query_len = QUERIES, key_len = KEYS;
    uint64_t seed = unit_seed(20261307);
    (void)state;
    random_fill(&seed, queries, QUERIES * SIZE);
    random_fill(&seed, keys, KEYS * SIZE);
    random_fill(&seed, values, KEYS * SIZE);
    for (size_t i = 0; i < KEYS * SIZE; i += (size_t)7 * SIZE)
        keys[i] = values[i] = NAN;
    for (size_t q = 0; q < QUERIES; q++) {
        for (size_t k = 0; k < KEYS; k++)
            bias[q * KEYS + k] = k % 7 == 0 || q == 3 ? -INFINITY : 0.0F;
    }
    for (size_t i = 0; i < 4; i++) {
        const attn_dot_product options = {.num_heads = 1,
                                          .head_size = SIZE,
                                          .scale = 0.5,
                                          .sinks = i % 2 == 1 ? &sink : NULL,
                                          .cpu = cpu};
        size_t rows = i < 2 ? query_len : 4;
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = &rows,
                                      .key_lens = &key_len,
                                      .queries = queries,
                                      .keys = keys,
                                      .values = values,
                                      .bias = bias,
                                      .bias_row_ld = KEYS,
                                      .need_weights = ATTN_WEIGHTS_ALL,
                                      .need_lse = true};
        attn_model model;
        attn_sizes sizes;
        assert_int_equal(dot_product_init(&options, &model, NULL), ATTN_OK);
        attn_result got = run(&model, &request, &sizes);
        for (size_t q = 0; q < rows; q++) {
            bool even = q == 3 && options.sinks == NULL;
            assert_true(isfinite(got.outputs[q * SIZE + 1]));
            assert_true(isfinite(got.lse[q]) == (q != 3));
            for (size_t k = 0; k < KEYS; k++) {
                float weight = got.weights[q * KEYS + k];
                if (q == 3)
                    assert_true(weight == (even ? 1.0F / KEYS : 0.0F));
                else
                    assert_true((weight > 0) == (k % 7 != 0));
            }
        }
        free_result(&got);
    }
}

/* Codes that are numbers in both types. */
static const uint16_t codes[] = {0x0000, 0x3c00, 0xb800, 0x3400, 0xbe80, 0x3f80, 0x8001};

static void test_encoded_keys_have_the_bits_of_float32(void **state) {
    uint64_t seed = unit_seed(20261309);
    (void)state;
    for (unsigned i = 0; i < 60; i++) {
        struct example *e = make_example(&seed, cpu, 40, 300);
        attn_request *request = &e->r.request;
        const char *type = i % 2 == 0 ? "BF16" : "F16";
        size_t count = e->r.sizes.num_keys * e->model.info.width.key;
        unsigned char *encoded = malloc(2 * count + 1);
        attn_sizes sizes;
        assert_non_null(encoded);
        for (size_t k = 0; k < count; k++)
            memcpy(encoded + 1 + 2 * k, &codes[random_between(&seed, 0, 6)], 2);
        dtype_find(type)->to_float(encoded + 1, count, e->r.keys);
        attn_result expected = run(&e->model, request, &sizes);
        request->encoded_keys = encoded + 1;
        request->keys_type = type;
        request->keys = NULL;
        attn_result got = run(&e->model, request, &sizes);
        assert_same(&got, &expected, &sizes);
        free_result(&expected);
        free_result(&got);
        free(encoded);
        destroy_example(e);
    }
}

static void test_layers_take_no_encoded_keys(void **state) {
    uint64_t seed = unit_seed(20261308);
    const attn_model_info info = random_model_info(&seed);
    attn_model *model = random_model(&seed, &info);
    const size_t len = 1;
    const float key = 0;
    attn_request request = {
        .num_sequences = 1, .query_lens = &len, .key_lens = &len, .encoded_keys = &key};
    attn_sizes sizes;
    attn_error error;
    (void)state;
    assert_int_equal(attn_plan(model, &request, &sizes, &error), ATTN_E_UNSUPPORTED);
    assert_string_equal(error.text,
                        "a layer with projections takes neither encoded nor packed keys");
    attn_model_destroy(model);
}

/* One row of few heads has scratch for the keys, and little more. */
static void test_scratch_is_the_keys_and_little_more(void **state) {
    const attn_dot_product options = {
        .num_heads = 32, .num_kv_heads = 8, .head_size = 128, .scale = 0.1, .cpu = cpu};
    const size_t one = 1, many = 4096;
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &one,
                                  .key_lens = &many,
                                  .need_weights = ATTN_WEIGHTS_ALL,
                                  .omit_outputs = true};
    attn_sizes sizes;
    (void)state;
    assert_int_equal(attn_dot_product_plan(&options, &request, &sizes, NULL), ATTN_OK);
    assert_true(sizes.scratch_bytes <=
                many * 8 * 128 * sizeof(float) + ((size_t)4 << 20));
}

static void assert_refused(const attn_dot_product *options, const attn_request *request,
                           attn_status status, const char *text) {
    attn_sizes sizes;
    attn_error error;

    assert_int_equal(attn_dot_product_plan(options, request, &sizes, &error), status);
    assert_string_equal(error.text, text);
}

static void test_bad_options_are_refused(void **state) {
    const attn_dot_product fine = {.num_heads = 6, .head_size = 4, .scale = 0.5};
    const size_t len = 3;
    const float numbers[72] = {0};
    attn_request request = {.num_sequences = 1,
                            .query_lens = &len,
                            .key_lens = &len,
                            .queries = numbers,
                            .keys = numbers};
    attn_dot_product options = fine;
    (void)state;

    assert_refused(&options, &request, ATTN_E_VALUE,
                   "outputs or heads are wanted, but there are no values");
    request.values = numbers;
    options.num_heads = 0;
    assert_refused(&options, &request, ATTN_E_SHAPE,
                   "num_heads is 0 and the head size 4, but neither may be 0");
    options = fine;
    options.num_kv_heads = 4;
    assert_refused(&options, &request, ATTN_E_SHAPE,
                   "num_heads is 6, which is not a multiple of num_kv_heads 4");
    options = fine;
    options.scale = (double)NAN;
    assert_refused(&options, &request, ATTN_E_VALUE, "scale is not a finite float32");
    options.scale = 1e39;
    assert_refused(&options, &request, ATTN_E_VALUE, "scale is not a finite float32");
    options = fine;
    options.softcap = -1;
    assert_refused(&options, &request, ATTN_E_VALUE,
                   "softcap is -1, but must be positive and finite, or 0 for none");
    options = fine;
    options.value_size = SIZE_MAX / 4;
    assert_refused(&options, &request, ATTN_E_OVERFLOW,
                   "6 heads of size 4611686018427387903 are too large");
    options = fine;
    request.encoded_keys = numbers;
    request.keys_type = "F4";
    assert_refused(&options, &request, ATTN_E_VALUE,
                   "keys of type F4 are unknown; use BF16, F16 or F32");
    request.encoded_keys = NULL;
    options.cpu = "pdp11";
    attn_sizes sizes;
    assert_int_equal(attn_dot_product_plan(&options, &request, &sizes, NULL),
                     ATTN_E_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_requests_match_the_reference),
        cmocka_unit_test(test_long_requests_match_the_reference),
        cmocka_unit_test(test_requests_in_chunks_match_the_reference),
        cmocka_unit_test(test_other_queries_do_not_change_a_bit),
        cmocka_unit_test(test_weights_need_no_values_and_only_keys_of_their_heads),
        cmocka_unit_test(test_library_computes_what_the_layer_does),
        cmocka_unit_test(test_phases_of_key_heads_do_not_change_a_bit),
        cmocka_unit_test(test_bias_masks_as_the_other_masks_do),
        cmocka_unit_test(test_encoded_keys_have_the_bits_of_float32),
        cmocka_unit_test(test_layers_take_no_encoded_keys),
        cmocka_unit_test(test_scratch_is_the_keys_and_little_more),
        cmocka_unit_test(test_bad_options_are_refused),
    };
    int failures = 0;

    for (size_t i = 0; kernels_available(i) != NULL; i++) {
        cpu = kernels_available(i)->name;
        if (kernels_available(i)->k_step == 1)
            failures += _cmocka_run_group_tests(cpu, tests, sizeof tests / sizeof *tests,
                                                NULL, NULL);
    }
    return failures;
}
