/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_dot_product.c: attention of queries, keys and values that are given, in every
 * set of kernels, against the float64 reference. */
#include "math/dot_product.h"
#include "random_model.h"

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
static const double tolerance = ATTN_TOLERANCE_F32;

#include "run_layer.h"

enum { OF_REQUESTS = RANDOM_POSITIONS | RANDOM_WINDOW | RANDOM_NEED };

/* A request, and what it is computed with. */
struct example {
    attn_dot_product options;
    attn_model model;
    struct random_request r;
    float sinks[16], slopes[16];
};

static size_t random_head_size(uint64_t *seed) {
    return random_between(seed, 0, 1) == 0 ? random_between(seed, 1, 70)
                                           : 32 * random_between(seed, 1, 4);
}

static void make_options(uint64_t *seed, size_t keys, struct example *e) {
    size_t kv_heads = random_between(seed, 1, 3), group = random_between(seed, 1, 4);
    size_t size = random_head_size(seed);

    random_fill(seed, e->sinks, 16);
    random_fill(seed, e->slopes, 16);
    for (size_t h = 0; keys > 100 && h < 16; h++)
        e->slopes[h] = ldexpf(e->slopes[h], -6);
    e->options = (attn_dot_product){
        .num_heads = kv_heads * group,
        .num_kv_heads = group > 1 ? kv_heads : random_between(seed, 0, 1) * kv_heads,
        .head_size = size,
        .value_size = random_between(seed, 0, 1) == 0 ? 0 : random_head_size(seed),
        .scale = random_between(seed, 0, 1) == 0 ? 1 / sqrt((double)size) : -0.25,
        .softcap = random_between(seed, 0, 1) == 0 ? 0 : 1.5,
        .sinks = random_between(seed, 0, 1) == 0 ? NULL : e->sinks,
        .slopes = random_between(seed, 0, 1) == 0 ? NULL : e->slopes,
        .cpu = cpu,
    };
    assert_int_equal(dot_product_init(&e->options, &e->model, NULL), ATTN_OK);
}

static struct example *make_example(uint64_t *seed, size_t queries, size_t keys) {
    struct example *e = calloc(1, sizeof *e);

    assert_non_null(e);
    make_options(seed, keys, e);
    random_request_init(seed, &e->model, queries, keys, &e->r);
    random_request_add(seed, OF_REQUESTS, &e->model, &e->r);
    return e;
}

static void destroy_example(struct example *e) {
    random_request_deinit(&e->r);
    free(e);
}

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

    for (unsigned i = 0; i < cases; i++) {
        struct example *e = make_example(&seed, queries, keys);
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
    uint64_t seed = 20261304;
    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        struct example *e =
            make_example(&seed, 40, i % 4 == 0 ? KERNEL_CHUNK_KEYS + 900 : 200);
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
    uint64_t seed = 20261305;
    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        struct example *e = make_example(&seed, 40, 300);
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
    uint64_t seed = 20261306;
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        struct example *e = make_example(&seed, 20, 100);
        attn_sizes sizes, own_sizes;
        attn_result expected = run(&e->model, &e->r.request, &sizes);
        assert_int_equal(
            attn_dot_product_plan(&e->options, &e->r.request, &own_sizes, NULL), ATTN_OK);
        assert_memory_equal(&own_sizes, &sizes, sizeof sizes);
        attn_result got = {nans(sizes.outputs), nans(sizes.weights), nans(sizes.heads),
                           nans(sizes.lse)};
        void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
        assert_int_equal(attn_dot_product_run(&e->options, &e->r.request, scratch, &got),
                         ATTN_OK);
        assert_same(&got, &expected, &sizes);
        free(scratch);
        free_result(&expected);
        free_result(&got);
        destroy_example(e);
    }
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
    assert_int_equal(attn_dot_product_run(options, request, NULL, NULL), status);
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
