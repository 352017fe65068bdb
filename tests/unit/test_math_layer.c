/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_layer.c: what layers of checkpoints have besides plain attention, against the
 * reference, with every engine, instruction set and precision. */
#include "math/model.h"
#include "math/plan/plan.h"
#include "random_model.h"
#include "ref.h"
#include "sample.h"

#include <attnd/attention.h>
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
#include "run_layer.h"

/* Returns a model with dot products that draws some features, and half of the time heads
 * that fill whole vectors. */
static attn_model *make_model(uint64_t *seed, unsigned features) {
    attn_model_info info = random_model_info(seed);

    info.score.kind = ATTN_SCALED_DOT_PRODUCT;
    info.width.additive = 0;
    if (random_between(seed, 0, 1) == 1)
        info.width.head = 32 * random_between(seed, 1, 2);
    if (!info.linears[ATTN_OUTPUT].weight)
        info.width.out = info.num_heads * info.width.head;
    random_add_features(seed, features, &info);
    attn_model *model = random_model(seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    return model;
}

/* Returns random numbers, which the caller frees. */
static float *random_rows(uint64_t *seed, size_t count) {
    float *rows = malloc(count * sizeof *rows);
    assert_non_null(rows);
    random_fill(seed, rows, count);
    return rows;
}

static void make_request(uint64_t *seed, const attn_model *model, unsigned features,
                         size_t longest, struct random_request *r) {
    random_request_init(seed, model, longest, longest, r);
    random_request_add(seed, features, model, r);
}

static void compare_random(uint64_t seed, unsigned features, unsigned cases,
                           size_t longest) {
    seed = unit_seed(seed);
    for (unsigned i = 0; i < sample_cases(cases); i++) {
        attn_model *model = make_model(&seed, features);
        struct random_request r;
        make_request(&seed, model, features, longest, &r);
        assert_as_reference(model, &r.request, i);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

static void test_heads_that_share_keys_match_the_reference(void **state) {
    (void)state;
    compare_random(20261101, RANDOM_KV_HEADS, 150, 12);
    compare_random(20261102, RANDOM_KV_HEADS, 15, 150);
}

static void test_parts_of_the_result_match_the_reference(void **state) {
    (void)state;
    compare_random(20261103, RANDOM_KV_HEADS | RANDOM_NEED, 150, 12);
}

static void test_rotated_heads_match_the_reference(void **state) {
    (void)state;
    compare_random(20261105, RANDOM_ROTATION | RANDOM_POSITIONS, 150, 12);
    compare_random(20261106, RANDOM_ROTATION | RANDOM_POSITIONS, 15, 150);
}

static void test_normed_heads_match_the_reference(void **state) {
    (void)state;
    compare_random(20261107, RANDOM_HEAD_NORM | RANDOM_CLIP | RANDOM_KV_HEADS, 150, 12);
    compare_random(20261108, RANDOM_HEAD_NORM | RANDOM_CLIP | RANDOM_KV_HEADS, 15, 150);
}

static void test_finished_values_match_the_reference(void **state) {
    const unsigned features = RANDOM_VALUE_ROWS | RANDOM_ROTATION | RANDOM_KV_HEADS |
                              RANDOM_CLIP | RANDOM_POSITIONS | RANDOM_NEED;
    (void)state;
    compare_random(20261113, features, 150, 12);
    compare_random(20261114, features, 15, 150);
}

static void test_scaled_queries_match_the_reference(void **state) {
    const unsigned features =
        RANDOM_QUERY_FACTOR | RANDOM_ROTATION | RANDOM_HEAD_NORM | RANDOM_POSITIONS;
    (void)state;
    compare_random(20261115, features, 150, 12);
    compare_random(20261116, features, 15, 150);
}

static void test_normed_inputs_match_the_reference(void **state) {
    (void)state;
    compare_random(20261109, RANDOM_PRE_NORM, 150, 12);
    compare_random(20261110, RANDOM_PRE_NORM, 15, 150);
}

static void test_heads_of_two_sizes_match_the_reference(void **state) {
    (void)state;
    compare_random(20261120, RANDOM_SIZES | RANDOM_KV_HEADS | RANDOM_ROTATION, 150, 12);
    compare_random(20261121, RANDOM_SIZES | RANDOM_HEAD_NORM | RANDOM_NEED, 150, 12);
    compare_random(20261122, RANDOM_SIZES | RANDOM_KV_HEADS, 15, 150);
}

static void test_latent_rows_match_the_reference(void **state) {
    (void)state;
    compare_random(20261123, RANDOM_LATENTS | RANDOM_PRE_NORM | RANDOM_NEED, 150, 12);
    compare_random(20261124, RANDOM_LATENTS | RANDOM_SIZES | RANDOM_ROTATION, 15, 150);
}

static void test_gated_heads_match_the_reference(void **state) {
    const unsigned features = RANDOM_GATE | RANDOM_KV_HEADS | RANDOM_NEED;

    (void)state;
    compare_random(20261114, features, 150, 12);
    compare_random(20261115, features | RANDOM_PRE_NORM, 15, 150);
}

static void test_heads_that_are_normed_together_match_the_reference(void **state) {
    const unsigned features = RANDOM_OUT_NORM | RANDOM_KV_HEADS | RANDOM_NEED;

    (void)state;
    compare_random(20261116, features, 150, 12);
    compare_random(20261117, features | RANDOM_GATE, 15, 150);
}

/* Gates and norms take what direct sequences sum. */
static void test_ends_of_direct_sequences_match_the_reference(void **state) {
    const bool native = strcmp(engine.engine, "native") == 0;
    uint64_t seed = unit_seed(20261118);
    size_t num_direct = 0;

    (void)state;
    for (unsigned i = 0; i < 12 || (native && i < 200 && num_direct <= 4); i++) {
        attn_model *model = make_model(&seed, RANDOM_GATE | RANDOM_OUT_NORM);
        struct random_request r;
        struct plan plan;
        random_request_init(&seed, model, 8, 2500, &r);
        random_request_add(&seed, RANDOM_NEED, model, &r);
        assert_int_equal(plan_make(model, &r.request, PLAN_RUN, &plan, NULL), ATTN_OK);
        num_direct += plan.batch.num_direct;
        assert_as_reference(model, &r.request, i);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
    assert_true(!native || num_direct > 4);
}

/* What heads contribute are parts of the outputs, behind gate and norm. */
static void compare_contributions(uint64_t *seed, unsigned case_number) {
    const unsigned features = RANDOM_GATE | RANDOM_OUT_NORM;
    attn_model *model = make_model(seed, features);
    const attn_model_info *info = attn_model_get_info(model);
    size_t heads = info->num_heads, out = info->width.out,
           hidden = heads * info->width.head;
    const float *weight = model_weight(model, ATTN_OUTPUT);
    const float *bias = model_bias(model, ATTN_OUTPUT);
    struct random_request r;
    attn_sizes sizes;

    make_request(seed, model, features, 12, &r);
    r.request.weights_heads = NULL;
    r.request.weights_queries = NULL;
    r.request.need_contributions = true;
    r.request.need_heads = true;
    assert_int_equal(attn_plan(model, &r.request, &sizes, NULL), ATTN_OK);
    attn_result result = make_result(&sizes);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    result.contributions = nans(sizes.contributions);
    attn_run(model, &r.request, &sizes, scratch, &result);

    for (size_t i = 0; i < sizes.outputs; i++) {
        double got = (double)result.outputs[i];
        double sum = bias != NULL ? (double)bias[i % out] : 0, magnitude = fabs(sum);
        if (weight != NULL)
            magnitude += sum_products(hidden, weight + i % out * hidden,
                                      result.heads + i / out * hidden);
        else
            magnitude += fabs((double)result.heads[i]);
        for (size_t h = 0; h < heads; h++)
            sum += (double)result.contributions[(i / out * heads + h) * out + i % out];
        if (!(fabs(got - sum) <= ATTN_TOLERANCE_F32 * magnitude))
            fail_msg("case %u: output %zu is %.9g, not %.9g", case_number, i, got, sum);
    }
    free(scratch);
    free(result.contributions);
    free_result(&result);
    random_request_deinit(&r);
    attn_model_destroy(model);
}

static void test_contributions_are_of_gated_and_normed_heads(void **state) {
    uint64_t seed = unit_seed(20261119);

    (void)state;
    for (unsigned i = 0; i < 60; i++)
        compare_contributions(&seed, i);
}

static void test_gates_far_from_0_are_0_or_1_and_infinite_ones_no_numbers(void **state) {
    const float biases[] = {-1e9F, 1e9F, -100, 100, 0, INFINITY, -INFINITY, NAN};
    const float expected[] = {0, 1, 0, 1, 0.5F};
    const size_t len = 1, size = sizeof biases / sizeof *biases;
    const float row = 1;
    const attn_model_info info = {
        .name = "gates",
        .layout = "test",
        .num_heads = 1,
        .width = {.query = 1, .key = 1, .value = 1, .head = size, .out = size},
        .linears = {[ATTN_GATE].weight = true, [ATTN_GATE].bias = true}};
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &len,
                                  .key_lens = &len,
                                  .queries = &row,
                                  .keys = &row,
                                  .values = &row};
    attn_model *model;
    attn_sizes sizes;

    (void)state;
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    memcpy(model_bias(model, ATTN_GATE), biases, sizeof biases);
    for (size_t i = 0; i < size; i++)
        model_weight(model, ATTN_VALUE)[i] = 1;
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    attn_result result = run(model, &request, &sizes);
    for (size_t i = 0; i < size; i++) {
        if (i < sizeof expected / sizeof *expected)
            assert_true(fabsf(result.outputs[i] - expected[i]) < 1e-30F);
        else
            assert_true(isnan(result.outputs[i]));
    }
    free_result(&result);
    attn_model_destroy(model);
}

static void test_everything_matches_the_reference(void **state) {
    (void)state;
    compare_random(20261111, RANDOM_EVERYTHING, 500, 12);
    compare_random(20261112, RANDOM_EVERYTHING, 40, 150);
    compare_random(20261151, RANDOM_GIVEN_BIAS | RANDOM_EVERYTHING, 300, 12);
}

/* Threads share the steps, and every sequence is computed again by itself. */
static void compare_bits(uint64_t *seed, unsigned features, size_t longest) {
    attn_model *model = make_model(seed, features);
    const attn_model_info *info = attn_model_get_info(model);
    size_t num_threads = 3, query = 0, key = 0, weight = 0;
    const attn_parallel parallel = {num_threads, run_backwards, &num_threads};
    struct random_request r;
    attn_sizes sizes;

    make_request(seed, model, features, longest, &r);
    r.request.weights_queries = NULL; /* others than the shortest sequence may have */
    attn_result all = run(model, &r.request, &sizes);
    attn_request shared = r.request;
    shared.parallel = &parallel;
    attn_result split = run(model, &shared, &sizes);
    assert_memory_equal(all.outputs, split.outputs, sizes.outputs * sizeof(float));
    assert_memory_equal(all.weights, split.weights, sizes.weights * sizeof(float));
    assert_memory_equal(all.heads, split.heads, sizes.heads * sizeof(float));
    free_result(&split);

    bool native = strcmp(info->engine.name, "native") == 0;
    for (size_t s = 0; native && s < r.request.num_sequences; s++) {
        attn_request one = request_of_sequence(info, &r.request, s, query, key);
        attn_result alone = run(model, &one, &sizes);
        size_t rows = info->num_heads * info->width.head;
        if (sizes.outputs > 0)
            assert_memory_equal(all.outputs + query * info->width.out, alone.outputs,
                                sizes.outputs * sizeof(float));
        assert_memory_equal(all.weights + weight, alone.weights,
                            sizes.weights * sizeof(float));
        if (sizes.heads > 0)
            assert_memory_equal(all.heads + query * rows, alone.heads,
                                sizes.heads * sizeof(float));
        query += sizes.num_queries;
        key += sizes.num_keys;
        weight += sizes.weights;
        free_result(&alone);
    }
    free_result(&all);
    random_request_deinit(&r);
    attn_model_destroy(model);
}

static void test_bits_do_not_depend_on_threads_or_neighbours(void **state) {
    uint64_t seed = unit_seed(20261104);

    (void)state;
    for (unsigned i = 0; i < 40; i++)
        compare_bits(&seed, RANDOM_EVERYTHING, i % 2 == 0 ? 150 : 12);
}

/* Repeats the positions of each sequence for every axis; NULL are 0, 1, 2, ... The caller
 * frees the result. */
static size_t *repeat_axes(const size_t *positions, const size_t *lens,
                           size_t num_sequences, size_t num_rows) {
    size_t *axes = malloc(ATTN_AXES * num_rows * sizeof *axes), *to = axes;

    assert_non_null(axes);
    for (size_t s = 0, first = 0; s < num_sequences; first += lens[s++]) {
        for (size_t i = 0; i < ATTN_AXES * lens[s]; i++)
            *to++ = positions != NULL ? positions[first + i % lens[s]] : i % lens[s];
    }
    return axes;
}

static void test_equal_axes_have_the_bits_of_plain_positions(void **state) {
    uint64_t seed = unit_seed(20261114);

    (void)state;
    for (unsigned i = 0, tried = 0; tried < 20; i++) {
        attn_model *model = make_model(&seed, RANDOM_EVERYTHING);
        struct random_request r;
        attn_sizes sizes;
        make_request(&seed, model, RANDOM_EVERYTHING, i % 2 == 0 ? 150 : 12, &r);
        attn_request *request = &r.request;
        if (attn_model_get_info(model)->rotation.axes == ATTN_AXES) {
            request->axis_positions = request->axis_key_positions = NULL;
            attn_result plain = run(model, request, &sizes);
            size_t *axes = repeat_axes(r.positions, r.query_lens, request->num_sequences,
                                       sizes.num_queries);
            size_t *key_axes = repeat_axes(r.key_positions, r.key_lens,
                                           request->num_sequences, sizes.num_keys);
            request->axis_positions = axes;
            request->axis_key_positions = key_axes;
            attn_result equal = run(model, request, &sizes);
            assert_memory_equal(plain.outputs, equal.outputs,
                                sizes.outputs * sizeof(float));
            assert_memory_equal(plain.weights, equal.weights,
                                sizes.weights * sizeof(float));
            assert_memory_equal(plain.heads, equal.heads, sizes.heads * sizeof(float));
            free_result(&plain);
            free_result(&equal);
            free(axes);
            free(key_axes);
            tried++;
        }
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

static void test_positions_of_axes_need_sections(void **state) {
    static const size_t one[] = {1}, far[] = {0, ATTN_POSITION_MAX + (size_t)1, 0};
    const float row[4] = {1, 2, 3, 4};
    attn_model_info info = {
        .name = "sections",
        .layout = "test",
        .num_heads = 1,
        .width = {.query = 4, .key = 4, .value = 4, .out = 4, .head = 4},
        .rotation = {.size = 4, .type = "default", .base = 100}};
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = one,
                                  .key_lens = one,
                                  .queries = row,
                                  .keys = row,
                                  .values = row,
                                  .axis_key_positions = far};
    uint64_t seed = unit_seed(20261115);
    attn_sizes sizes;
    attn_error error;

    (void)state;
    attn_model *model = random_model(&seed, &info);
    assert_int_equal(attn_plan(model, &request, &sizes, &error), ATTN_E_UNSUPPORTED);
    assert_string_equal(error.text,
                        "positions of three axes need a rotation with sections");
    attn_model_destroy(model);
    info.rotation.axes = ATTN_AXES;
    model = random_model(&seed, &info);
    assert_int_equal(attn_plan(model, &request, &sizes, &error), ATTN_E_VALUE);
    assert_string_equal(error.text,
                        "axis_key_positions of sequence 0 has 2147483648, but "
                        "positions end at 2147483647");
    attn_model_destroy(model);
}

/* The first queries of a request have the same bits when they come alone, so that the
 * heads of a group attend together. */
static void compare_groups(uint64_t *seed, size_t key_len, size_t few) {
    attn_model_info info = random_model_info(seed);
    size_t num_threads = 3, query_len = 40;
    const attn_parallel parallel = {num_threads, run_backwards, &num_threads};

    info.score.kind = ATTN_SCALED_DOT_PRODUCT;
    info.width.additive = 0;
    info.num_kv_heads = random_between(seed, 1, 2);
    info.num_heads = info.num_kv_heads * random_between(seed, 2, 8);
    info.width.head = random_between(seed, 0, 1) == 0 ? 32 : random_between(seed, 1, 40);
    info.width.out = info.num_heads * info.width.head;
    info.score.sinks = random_between(seed, 0, 1) == 1;
    attn_model *model = random_model(seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    float *queries = random_rows(seed, query_len * info.width.query);
    float *keys = random_rows(seed, key_len * info.width.key);
    float *values = random_rows(seed, key_len * info.width.value);
    float *head_mask = random_rows(seed, info.num_heads);
    head_mask[random_between(seed, 0, info.num_heads - 1)] = 0;
    attn_request request = {.num_sequences = 1,
                            .query_lens = &query_len,
                            .key_lens = &key_len,
                            .queries = queries,
                            .keys = keys,
                            .values = values,
                            .causal = random_between(seed, 0, 1) == 1,
                            .head_mask = head_mask,
                            .need_weights = random_between(seed, 0, 1) == 1
                                                ? ATTN_WEIGHTS_ALL
                                                : ATTN_WEIGHTS_NONE,
                            .need_heads = true,
                            .need_lse = random_between(seed, 0, 1) == 1};
    attn_sizes of_all, of_few;
    attn_result all = run(model, &request, &of_all);
    request.query_lens = &few;
    request.parallel = &parallel;
    attn_result first = run(model, &request, &of_few);

    assert_memory_equal(all.outputs, first.outputs, of_few.outputs * sizeof(float));
    assert_memory_equal(all.heads, first.heads, of_few.heads * sizeof(float));
    assert_memory_equal(all.lse, first.lse, of_few.lse * sizeof(float));
    for (size_t h = 0; of_few.weights > 0 && h < info.num_heads; h++)
        assert_memory_equal(all.weights + h * query_len * key_len,
                            first.weights + h * few * key_len,
                            few * key_len * sizeof(float));
    free_result(&all);
    free_result(&first);
    free(queries);
    free(keys);
    free(values);
    free(head_mask);
    attn_model_destroy(model);
}

static void test_bits_do_not_depend_on_groups(void **state) {
    uint64_t seed = unit_seed(20261113);

    (void)state;
    if (strcmp(engine.engine, "native") != 0)
        return; /* cblas has other bits for fewer rows */
    for (unsigned i = 0; i < 20; i++)
        compare_groups(&seed, random_between(&seed, 1, 300), random_between(&seed, 1, 6));
    compare_groups(&seed, KERNEL_CHUNK_KEYS + 300, 1);
    compare_groups(&seed, KERNEL_CHUNK_KEYS + 300, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_that_share_keys_match_the_reference),
        cmocka_unit_test(test_parts_of_the_result_match_the_reference),
        cmocka_unit_test(test_rotated_heads_match_the_reference),
        cmocka_unit_test(test_normed_heads_match_the_reference),
        cmocka_unit_test(test_finished_values_match_the_reference),
        cmocka_unit_test(test_scaled_queries_match_the_reference),
        cmocka_unit_test(test_normed_inputs_match_the_reference),
        cmocka_unit_test(test_heads_of_two_sizes_match_the_reference),
        cmocka_unit_test(test_latent_rows_match_the_reference),
        cmocka_unit_test(test_gated_heads_match_the_reference),
        cmocka_unit_test(test_heads_that_are_normed_together_match_the_reference),
        cmocka_unit_test(test_ends_of_direct_sequences_match_the_reference),
        cmocka_unit_test(test_contributions_are_of_gated_and_normed_heads),
        cmocka_unit_test(test_gates_far_from_0_are_0_or_1_and_infinite_ones_no_numbers),
        cmocka_unit_test(test_everything_matches_the_reference),
        cmocka_unit_test(test_bits_do_not_depend_on_threads_or_neighbours),
        cmocka_unit_test(test_equal_axes_have_the_bits_of_plain_positions),
        cmocka_unit_test(test_positions_of_axes_need_sections),
        cmocka_unit_test(test_bits_do_not_depend_on_groups),
    };
    return run_with_every_engine(tests, sizeof tests / sizeof *tests);
}
