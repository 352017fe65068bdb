/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_decode.c: requests in JSON that are accepted, and what they decode to. */
#include "wire_fixture.h"

#include "fail_alloc.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Decodes a request that is accepted. */
static const attn_request *decode(struct fixture *fixture, const char *body) {
    if (!fixture_decode(fixture, body))
        fail_msg("%s: %s", fixture->problem.title, fixture->problem.detail);
    return &fixture->request.batch;
}

static void assert_floats(const float *got, const float *expected, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&got[i], &expected[i], sizeof(float)) != 0)
            fail_msg("number %zu is %.9g, not %.9g", i, (double)got[i],
                     (double)expected[i]);
    }
}

#define ASSERT_FLOATS(got, ...)                                                          \
    assert_floats(got, (const float[]){__VA_ARGS__},                                     \
                  sizeof((const float[]){__VA_ARGS__}) / sizeof(float))

static void test_batched_request_keeps_rows_in_order(void **state) {
    struct fixture *fixture = *state;
    const attn_request *batch =
        decode(fixture, "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4],[5,6,7,8]],"
                        "[[9,10,11,12],[13,14,15,16]]],"
                        "\"keys\":[[[0.5,0,0,0]],[[-0.5,1e1,1E+1,1e-1]]],"
                        "\"values\":[[[1,0,0,0]],[[2,0,0,0]]]}");
    assert_ptr_equal(fixture->request.model, fixture->models[MODEL_D2L]);
    assert_true(fixture->request.batched);
    assert_int_equal(batch->num_sequences, 2);
    assert_int_equal(batch->query_lens[0], 2);
    assert_int_equal(batch->query_lens[1], 2);
    assert_int_equal(batch->key_lens[0], 1);
    assert_int_equal(batch->key_lens[1], 1);
    ASSERT_FLOATS(batch->queries, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);
    ASSERT_FLOATS(batch->keys, 0.5f, 0, 0, 0, -0.5f, 10, 10, 0.1f);
    ASSERT_FLOATS(batch->values, 1, 0, 0, 0, 2, 0, 0, 0);
    assert_null(batch->valid_lens);
    assert_null(batch->head_mask);
    assert_false(batch->causal);
    assert_int_equal(batch->need_weights, ATTN_WEIGHTS_NONE);
    assert_null(batch->weights_heads);
    assert_null(batch->weights_queries);
}

static void test_unbatched_request_is_one_sequence(void **state) {
    struct fixture *fixture = *state;
    const attn_request *batch =
        decode(fixture, "{\"model\":\"narrow\",\"queries\":[[1,2,3]],"
                        "\"keys\":[[1,2],[3,4]],\"values\":[[5,6],[7,8]]}");
    assert_ptr_equal(fixture->request.model, fixture->models[MODEL_NARROW]);
    assert_false(fixture->request.batched);
    assert_int_equal(batch->num_sequences, 1);
    assert_int_equal(batch->query_lens[0], 1);
    assert_int_equal(batch->key_lens[0], 2);
    ASSERT_FLOATS(batch->keys, 1, 2, 3, 4);
    ASSERT_FLOATS(batch->values, 5, 6, 7, 8);
    assert_true(batch->causal); /* the model's */
}

static void test_ragged_request_has_a_length_per_sequence(void **state) {
    const attn_request *batch = decode(
        *state, "{\"model\":\"d2l\",\"queries\":[[[1,1,1,1]],[[2,2,2,2],[3,3,3,3]]],"
                "\"keys\":[[[4,4,4,4],[5,5,5,5],[6,6,6,6]],[[7,7,7,7]]]}");
    assert_int_equal(batch->query_lens[0], 1);
    assert_int_equal(batch->query_lens[1], 2);
    assert_int_equal(batch->key_lens[0], 3);
    assert_int_equal(batch->key_lens[1], 1);
    ASSERT_FLOATS(batch->queries, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    assert_float_equal(batch->keys[12], 7, 0);
}

static void test_keys_and_values_left_out_are_the_queries_themselves(void **state) {
    const attn_request *batch =
        decode(*state, "{\"model\":\"d2l\",\"queries\":[[1,2,3,4]]}");
    assert_ptr_equal(batch->keys, batch->queries);
    assert_ptr_equal(batch->values, batch->queries);
    assert_ptr_equal(batch->key_lens, batch->query_lens);
}

static void test_values_left_out_are_the_keys_themselves(void **state) {
    const attn_request *batch =
        decode(*state, "{\"model\":\"narrow\",\"queries\":[[1,2,3]],\"keys\":[[1,2]]}");
    assert_ptr_equal(batch->values, batch->keys);
    assert_ptr_not_equal(batch->keys, batch->queries);
}

static void test_values_without_keys_join_default_keys(void **state) {
    const attn_request *batch = decode(
        *state, "{\"model\":\"d2l\",\"queries\":[[1,2,3,4]],\"values\":[[5,6,7,8]]}");
    assert_ptr_equal(batch->keys, batch->queries);
    ASSERT_FLOATS(batch->values, 5, 6, 7, 8);
}

static void test_values_of_another_size_than_the_keys_cannot_be_left_out(void **state) {
    struct fixture *fixture = *state;
    attn_model_info info = fixture_info(MODEL_D2L);
    attn_model *wide;
    info.width.value = 5;
    assert_int_equal(attn_model_create(&info, &wide), ATTN_OK);
    const attn_model *models[] = {wide};
    const char *body = "{\"queries\":[[1,2,3,4]]}";
    size_t reserved;
    assert_false(
        fixture_read(fixture, models, 1, &fixture->arena, body, strlen(body), &reserved));
    assert_string_equal(fixture->problem.title, "Missing key");
    assert_string_equal(fixture->problem.field, "values");
    attn_model_destroy(wide);
}

static void test_null_means_left_out(void **state) {
    struct fixture *fixture = *state;
    const char *body =
        "{\"model\":null,\"queries\":[[1,2,3,4]],\"keys\":null,\"values\":null,"
        "\"valid_lens\":null,\"causal\":null,\"need_weights\":null,"
        "\"head_mask\":null,\"weights_heads\":null,\"weights_queries\":null,"
        "\"timeout_ms\":null,\"priority\":null}";
    assert_true(fixture_decode_bytes(fixture, body, strlen(body), 1));
    const attn_request *batch = &fixture->request.batch;
    assert_ptr_equal(batch->keys, batch->queries);
    assert_ptr_equal(batch->values, batch->queries);
    assert_null(batch->valid_lens);
    assert_null(batch->head_mask);
    assert_false(batch->causal);
    assert_int_equal(batch->need_weights, ATTN_WEIGHTS_NONE);
    assert_int_equal(fixture->request.timeout_ns, 0);
    assert_int_equal(fixture->request.priority, 0);
}

static void test_only_model_need_not_be_named(void **state) {
    struct fixture *fixture = *state;
    const char *body = "{\"queries\":[[1,2,3,4]]}";
    assert_true(fixture_decode_bytes(fixture, body, strlen(body), 1));
    assert_ptr_equal(fixture->request.model, fixture->models[MODEL_D2L]);
    assert_false(fixture_decode_bytes(fixture, body, strlen(body), 2));
    assert_string_equal(fixture->problem.title, "Model not named");
    assert_false(fixture_decode_bytes(fixture, body, strlen(body), 0));
    assert_string_equal(fixture->problem.title, "Unknown model");
}

static void test_many_models_are_not_all_listed(void **state) {
    struct fixture *fixture = *state;
    attn_model *models[9];
    for (int i = 0; i < 9; i++) {
        attn_model_info info = fixture_info(MODEL_D2L);
        memset(info.name, 'a' + i, ATTN_NAME_MAX);
        info.name[ATTN_NAME_MAX] = '\0';
        assert_int_equal(attn_model_create(&info, &models[i]), ATTN_OK);
    }
    const char *body = "{\"queries\":[[1,2,3,4]]}";
    size_t reserved;
    assert_false(fixture_read(fixture, (const attn_model *const *)models, 9,
                              &fixture->arena, body, strlen(body), &reserved));
    assert_non_null(strstr(fixture->problem.detail, "eee', ...; name one of them"));
    for (int i = 0; i < 9; i++)
        attn_model_destroy(models[i]);
}

static void test_valid_lens_per_sequence(void **state) {
    const attn_request *batch = decode(
        *state, "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4],[1,2,3,4]],[[1,2,3,4]]],"
                "\"valid_lens\":[2,0]}");
    assert_false(batch->valid_lens_per_query);
    assert_int_equal(batch->valid_lens[0], 2);
    assert_int_equal(batch->valid_lens[1], 0);
}

static void test_valid_lens_per_query_follow_each_other_when_ragged(void **state) {
    const attn_request *batch = decode(
        *state, "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4],[1,2,3,4]],[[1,2,3,4]]],"
                "\"valid_lens\":[[1,2],[0]]}");
    assert_true(batch->valid_lens_per_query);
    assert_int_equal(batch->valid_lens[0], 1);
    assert_int_equal(batch->valid_lens[1], 2);
    assert_int_equal(batch->valid_lens[2], 0);
}

static void test_unbatched_valid_lens_are_an_integer_or_one_per_query(void **state) {
    const attn_request *batch = decode(
        *state, "{\"model\":\"d2l\",\"queries\":[[1,2,3,4],[1,2,3,4]],\"valid_lens\":1}");
    assert_false(batch->valid_lens_per_query);
    assert_int_equal(batch->valid_lens[0], 1);
    batch = decode(
        *state,
        "{\"model\":\"d2l\",\"queries\":[[1,2,3,4],[1,2,3,4]],\"valid_lens\":[0,2]}");
    assert_true(batch->valid_lens_per_query);
    assert_int_equal(batch->valid_lens[0], 0);
    assert_int_equal(batch->valid_lens[1], 2);
}

/* JSON has one type of numbers, so 3.0 is an integer. */
static void test_integer_may_have_any_spelling(void **state) {
    static const struct {
        const char *text;
        size_t value;
    } spellings[] = {
        {"3", 3},
        {"3.0", 3},
        {"3e0", 3},
        {"3E+00", 3},
        {"30e-1", 3},
        {"0.3e1", 3},
        {"0.0003e4", 3},
        {"300.00e-2", 3},
        {"0", 0},
        {"-0", 0},
        {"-0.0", 0},
        {"0.000e5", 0},
        {"0e-99999", 0},
        {"0e999999999", 0},
        {"1.2e1", 12},
        {"1000e-2", 10},
        {"10.50e1", 105},
        {"2147483647", INT32_MAX},
        {"2.147483647e9", INT32_MAX},
        {"0.0000000000000000000000000000000000000000000000001e49", 1},
        {"10000000000000000000000000000000000000000000000000e-49", 1},
        {"1.000000000000000000000000000000000000000000000000000", 1},
    };
    static const char *const others[] = {"3.5",
                                         "1e-1",
                                         "0.1e0",
                                         "1.00000000000000000001",
                                         "10.5e-1",
                                         "1e-400",
                                         "1e-99999999999999999999"};
    struct fixture *fixture = *state;
    char body[256];
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        snprintf(body, sizeof body,
                 "{\"model\":\"d2l\",\"queries\":[[1,2,3,4]],\"priority\":%s}",
                 spellings[i].text);
        decode(fixture, body);
        if (fixture->request.priority != spellings[i].value)
            fail_msg("%s is %zu", spellings[i].text, fixture->request.priority);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        snprintf(body, sizeof body,
                 "{\"model\":\"d2l\",\"queries\":[[1,2,3,4]],\"priority\":%s}",
                 others[i]);
        if (fixture_decode(fixture, body) ||
            strcmp(fixture->problem.title, "Wrong type") != 0)
            fail_msg("%s is an integer", others[i]);
    }
}

static void test_options_override_the_model(void **state) {
    const attn_request *batch =
        decode(*state, "{\"need_weights\":true,\"head_mask\":[0.25],\"causal\":false,"
                       "\"model\":\"narrow\",\"queries\":[[1,2,3]],\"keys\":[[1,2]]}");
    assert_false(batch->causal);
    assert_int_equal(batch->need_weights, ATTN_WEIGHTS_ALL);
    ASSERT_FLOATS(batch->head_mask, 0.25f);
    batch = decode(*state, "{\"model\":\"d2l\",\"queries\":[[1,2,3,4]],\"causal\":true,"
                           "\"need_weights\":\"mean\",\"head_mask\":[0,-1.5]}");
    assert_true(batch->causal);
    assert_int_equal(batch->need_weights, ATTN_WEIGHTS_MEAN);
    ASSERT_FLOATS(batch->head_mask, 0, -1.5f);
    batch = decode(*state,
                   "{\"model\":\"d2l\",\"queries\":[[1,2,3,4]],\"need_weights\":false}");
    assert_int_equal(batch->need_weights, ATTN_WEIGHTS_NONE);
}

static void test_weights_are_selected_in_the_order_sent(void **state) {
    const attn_request *batch =
        decode(*state, "{\"model\":\"d2l\",\"queries\":[[1,2,3,4],[1,2,3,4],[1,2,3,4]],"
                       "\"weights_heads\":[1,0],\"weights_queries\":[2,0],"
                       "\"need_weights\":true}");
    assert_int_equal(batch->num_weights_heads, 2);
    assert_int_equal(batch->weights_heads[0], 1);
    assert_int_equal(batch->weights_heads[1], 0);
    assert_int_equal(batch->num_weights_queries, 2);
    assert_int_equal(batch->weights_queries[0], 2);
    assert_int_equal(batch->weights_queries[1], 0);
    batch = decode(*state, "{\"model\":\"d2l\",\"queries\":[[1,2,3,4]],"
                           "\"need_weights\":\"mean\",\"weights_queries\":[0]}");
    assert_null(batch->weights_heads);
    assert_int_equal(batch->num_weights_queries, 1);
}

static void test_numbers_are_rounded_to_double_and_then_to_float32(void **state) {
    const attn_request *batch = decode(
        *state, "{\"model\":\"d2l\",\"queries\":["
                "[0.1,16777217,9223372036854775807,-9223372036854775808],"
                "[-0.0,1e-999,1e-45,3.4028235677973362e38],"
                "[3.4028234663852886e38,-3.4028234663852886e38,123456789,1.5E3]]}");
    ASSERT_FLOATS(batch->queries, 0.1f, 16777216, 0x1p63f, -0x1p63f, -0.0f, 0, 0x1p-149f,
                  FLT_MAX, FLT_MAX, -FLT_MAX, 123456792, 1500);
}

static void test_sequence_of_the_context_length_is_accepted(void **state) {
    const attn_request *batch =
        decode(*state, "{\"model\":\"narrow\",\"keys\":[[1,2]],\"queries\":"
                       "[[1,2,3],[1,2,3],[1,2,3],[1,2,3],[1,2,3],[1,2,3]]}");
    assert_int_equal(batch->query_lens[0], 6);
}

static void test_key_with_an_escape_is_the_same_key(void **state) {
    decode(*state, "{\"model\":\"d2l\",\"quer\\u0069es\":[[1,2,3,4]]}");
}

/* Decodes a request again and again, while each allocation fails in turn, in an arena
 * with room for `allocations` small ones. Returns how many allocations failed. */
static size_t fail_each_allocation(struct fixture *fixture, const char *body,
                                   size_t allocations) {
    for (size_t nth = 1;; nth++) {
        struct arena arena;
        fixture_fill_arena(&arena, allocations);
        fail_alloc_at(nth);
        size_t reserved;
        bool decoded = fixture_read(fixture, (const attn_model *const *)fixture->models,
                                    NUM_MODELS, &arena, body, strlen(body), &reserved);
        bool failed = fail_alloc_stop();
        arena_deinit(&arena);

        if (!failed) {
            assert_true(decoded);
            return nth - 1;
        }
        assert_false(decoded);
        assert_int_equal(fixture->problem.status, 503);
        assert_string_equal(fixture->problem.title, "Out of memory");
    }
}

/* jansson's lexer ignores failed allocations; see safetensors/parse.h. */
static void test_every_failed_allocation_is_reported(void **state) {
    const char *body =
        "{\"mod\\u0065l\":\"d2l\",\"queries\":[[[0.12345678901234567e-05,2,3,4],"
        "[1,2,3,4]],[[1,2,3,4]]],\"keys\":[[[1,2,3,4]],[[1,2,3,4]]],"
        "\"values\":[[[1,2,3,4]],[[1,2,3,4]]],\"valid_lens\":[[1,1],[0]],"
        "\"head_mask\":[1,0.333333333333333333333],\"need_weights\":true,"
        "\"weights_heads\":[1,0],\"weights_queries\":[0]}";
    decode(*state, body);
    for (size_t allocations = 0; allocations < 14; allocations++)
        assert_true(fail_each_allocation(*state, body, allocations) >= 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batched_request_keeps_rows_in_order),
        cmocka_unit_test(test_unbatched_request_is_one_sequence),
        cmocka_unit_test(test_ragged_request_has_a_length_per_sequence),
        cmocka_unit_test(test_keys_and_values_left_out_are_the_queries_themselves),
        cmocka_unit_test(test_values_left_out_are_the_keys_themselves),
        cmocka_unit_test(test_values_without_keys_join_default_keys),
        cmocka_unit_test(test_values_of_another_size_than_the_keys_cannot_be_left_out),
        cmocka_unit_test(test_null_means_left_out),
        cmocka_unit_test(test_only_model_need_not_be_named),
        cmocka_unit_test(test_many_models_are_not_all_listed),
        cmocka_unit_test(test_valid_lens_per_sequence),
        cmocka_unit_test(test_valid_lens_per_query_follow_each_other_when_ragged),
        cmocka_unit_test(test_unbatched_valid_lens_are_an_integer_or_one_per_query),
        cmocka_unit_test(test_integer_may_have_any_spelling),
        cmocka_unit_test(test_options_override_the_model),
        cmocka_unit_test(test_weights_are_selected_in_the_order_sent),
        cmocka_unit_test(test_numbers_are_rounded_to_double_and_then_to_float32),
        cmocka_unit_test(test_sequence_of_the_context_length_is_accepted),
        cmocka_unit_test(test_key_with_an_escape_is_the_same_key),
        cmocka_unit_test(test_every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
