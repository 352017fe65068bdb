/* SPDX-License-Identifier: Apache-2.0 */
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

#define NUMBERS_MAX 4096

/* The sizes that attn_plan() would give; worked out here so that the test needs no BLAS.
 */
static attn_sizes plan(const struct wire_call *call) {
    const attn_request *request = &call->request;
    const attn_model_info *info = attn_model_get_info(call->model);
    size_t planes = request->need_weights == ATTN_WEIGHTS_NONE  ? 0
                    : request->need_weights == ATTN_WEIGHTS_ALL ? info->num_heads
                                                                : 1;
    attn_sizes sizes = {0};
    for (size_t b = 0; b < request->num_sequences; b++) {
        sizes.num_queries += request->query_lens[b];
        sizes.num_keys += request->key_lens[b];
        sizes.weights += planes * request->query_lens[b] * request->key_lens[b];
    }
    sizes.outputs = sizes.num_queries * info->out_size;
    return sizes;
}

/* Encodes and returns the text, terminated; the result's numbers are those given. */
static char *encode(const struct wire_call *call, float *outputs, float *weights) {
    struct buf body;
    struct wire_problem problem;
    attn_sizes sizes = plan(call);
    size_t size, bound = wire_native_reply_bound(call, &sizes);
    const attn_result result = {outputs, weights};
    buf_init(&body, bound + 1);
    if (!wire_native_encode(call, &result, &body, &problem))
        fail_msg("%s: %s", problem.title, problem.detail);
    assert_true(body.size <= bound);
    assert_int_equal(buf_append(&body, "", 1), ATTND_OK);
    return buf_take(&body, &size);
}

static void assert_encodes(const struct wire_call *call, float *outputs, float *weights,
                           const char *expected) {
    char *text = encode(call, outputs, weights);
    assert_string_equal(text, expected);
    free(text);
}

static float counted[NUMBERS_MAX]; /* 0, 1, 2, ... */

static void test_unbatched_reply_has_no_batch_axis(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {2}, key_lens[] = {1};
    struct wire_call call = {
        .model = fixture->models[MODEL_NARROW],
        .request = {.num_sequences = 1, .query_lens = query_lens, .key_lens = key_lens}};
    assert_encodes(&call, counted, NULL,
                   "{\"model\":\"narrow\",\"outputs\":[[0.0,1.0],[2.0,3.0]]}");
    call.request.need_weights = ATTN_WEIGHTS_ALL;
    assert_encodes(&call, counted, counted,
                   "{\"model\":\"narrow\",\"outputs\":[[0.0,1.0],[2.0,3.0]],"
                   "\"attention_weights\":[[[0.0],[1.0]]]}");
    call.request.need_weights = ATTN_WEIGHTS_MEAN;
    assert_encodes(&call, counted, counted,
                   "{\"model\":\"narrow\",\"outputs\":[[0.0,1.0],[2.0,3.0]],"
                   "\"attention_weights\":[[0.0],[1.0]]}");
}

static void test_ragged_reply_is_ragged_in_the_same_way(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {1, 2}, key_lens[] = {2, 1};
    struct wire_call call = {.model = fixture->models[MODEL_D2L],
                             .batched = true,
                             .request = {.num_sequences = 2,
                                         .query_lens = query_lens,
                                         .key_lens = key_lens,
                                         .need_weights = ATTN_WEIGHTS_ALL}};
    assert_encodes(&call, counted, counted,
                   "{\"model\":\"d2l\",\"outputs\":[[[0.0,1.0,2.0,3.0]],"
                   "[[4.0,5.0,6.0,7.0],[8.0,9.0,10.0,11.0]]],\"attention_weights\":"
                   "[[[[0.0,1.0]],[[2.0,3.0]]],[[[4.0],[5.0]],[[6.0],[7.0]]]]}");
    call.request.need_weights = ATTN_WEIGHTS_MEAN;
    assert_encodes(&call, counted, counted,
                   "{\"model\":\"d2l\",\"outputs\":[[[0.0,1.0,2.0,3.0]],"
                   "[[4.0,5.0,6.0,7.0],[8.0,9.0,10.0,11.0]]],\"attention_weights\":"
                   "[[[0.0,1.0]],[[2.0],[3.0]]]}");
}

static void test_batch_of_one_keeps_its_batch_axis(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {1};
    struct wire_call call = {
        .model = fixture->models[MODEL_NARROW],
        .batched = true,
        .request = {.num_sequences = 1, .query_lens = lens, .key_lens = lens}};
    assert_encodes(&call, counted, NULL,
                   "{\"model\":\"narrow\",\"outputs\":[[[0.0,1.0]]]}");
}

static void test_number_that_is_not_finite_is_refused_with_its_position(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {1, 2}, key_lens[] = {2, 2};
    struct wire_call call = {.model = fixture->models[MODEL_D2L],
                             .batched = true,
                             .request = {.num_sequences = 2,
                                         .query_lens = query_lens,
                                         .key_lens = key_lens,
                                         .need_weights = ATTN_WEIGHTS_ALL}};
    static const struct {
        bool batched, mean;
        size_t output, weight; /* which is not finite */
        const char *where;
    } cases[] = {
        {true, false, 11, NUMBERS_MAX - 1, "outputs[1][1][3] "},
        {true, false, NUMBERS_MAX - 1, 11, "attention_weights[1][1][1][1] "},
        {true, true, NUMBERS_MAX - 1, 3, "attention_weights[1][0][1] "},
    };
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float outputs[NUMBERS_MAX] = {0}, weights[NUMBERS_MAX] = {0};
        struct wire_problem problem;
        struct buf body;
        outputs[cases[i].output] = bad[i];
        weights[cases[i].weight] = bad[i];
        call.request.need_weights = cases[i].mean ? ATTN_WEIGHTS_MEAN : ATTN_WEIGHTS_ALL;
        const attn_result result = {outputs, weights};
        buf_init(&body, 1 << 16);
        assert_false(wire_native_encode(&call, &result, &body, &problem));
        assert_int_equal(problem.status, 422);
        assert_string_equal(problem.title, "Result not finite");
        if (strstr(problem.detail, cases[i].where) != problem.detail)
            fail_msg("'%s' does not begin with '%s'", problem.detail, cases[i].where);
        buf_deinit(&body);
    }
}

/* The longest numbers there are, in shapes with the most brackets per number. */
static void test_reply_bound_holds_for_the_longest_numbers(void **state) {
    (void)state;
    static float longest[NUMBERS_MAX];
    for (size_t i = 0; i < NUMBERS_MAX; i++)
        longest[i] = i % 2 == 0 ? -1.17549449e-38f : -1.0000123e-5f;
    static const size_t lens[][3] = {{1, 1, 1}, {1, 2, 3}, {5, 1, 4}};
    attn_model_info info = fixture_info(MODEL_D2L);
    memset(info.name, '\x01', ATTN_NAME_MAX);
    info.out_size = 1;
    attn_model *model;
    assert_int_equal(attn_model_create(&info, &model), ATTND_OK);
    for (size_t i = 0; i < 3 * 3 * 2 * 3; i++) {
        struct wire_call call = {
            .model = model,
            .batched = i % 2 == 0,
            .request = {.query_lens = lens[i / 2 % 3],
                        .key_lens = lens[i / 6 % 3],
                        .need_weights = (attn_need_weights)(i / 18)}};
        call.request.num_sequences = call.batched ? 3 : 1;
        free(encode(&call, longest, longest)); /* which checks the bound */
    }
    attn_model_destroy(model);
}

static void test_reply_bound_saturates(void **state) {
    struct fixture *fixture = *state;
    struct wire_call call = {.model = fixture->models[MODEL_D2L],
                             .request = {.num_sequences = 1}};
    attn_sizes sizes = {.num_queries = 1, .outputs = SIZE_MAX / 4};
    assert_true(wire_native_reply_bound(&call, &sizes) == SIZE_MAX);
}

static void test_reply_of_random_numbers_reads_back_bitwise(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {NUMBERS_MAX / 4};
    struct wire_call call = {
        .model = fixture->models[MODEL_D2L],
        .request = {.num_sequences = 1, .query_lens = lens, .key_lens = lens}};
    static float numbers[NUMBERS_MAX];
    uint64_t random = 20;
    for (size_t i = 0; i < NUMBERS_MAX; i++) {
        uint32_t bits = (uint32_t)(fixture_random(&random) >> 32);
        memcpy(&numbers[i], &bits, sizeof bits);
        if (!isfinite(numbers[i]))
            numbers[i] = 0;
    }
    char *text = encode(&call, numbers, NULL);
    json_t *root = json_loads(text, 0, NULL), *rows = json_object_get(root, "outputs");
    for (size_t i = 0; i < NUMBERS_MAX; i++) {
        json_t *number = json_array_get(json_array_get(rows, i / 4), i % 4);
        float value = (float)json_real_value(number);
        assert_memory_equal(&value, &numbers[i], sizeof value);
    }
    json_decref(root);
    free(text);
}

static void test_full_buffer_is_told(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {2, 1};
    struct wire_call call = {.model = fixture->models[MODEL_D2L],
                             .batched = true,
                             .request = {.num_sequences = 2,
                                         .query_lens = lens,
                                         .key_lens = lens,
                                         .need_weights = ATTN_WEIGHTS_ALL}};
    char *text = encode(&call, counted, counted);
    for (size_t max = 0; max < strlen(text); max++) {
        struct buf body;
        struct wire_problem problem;
        const attn_result result = {counted, counted};
        buf_init(&body, max);
        assert_false(wire_native_encode(&call, &result, &body, &problem));
        assert_int_equal(problem.status, 503);
        buf_deinit(&body);
    }
    free(text);
}

static void test_every_failed_allocation_is_told(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {20};
    struct wire_call call = {
        .model = fixture->models[MODEL_D2L],
        .request = {.num_sequences = 1, .query_lens = lens, .key_lens = lens}};
    const attn_result result = {counted, NULL};
    size_t nth = 1;
    for (;; nth++) {
        struct buf body;
        struct wire_problem problem;
        buf_init(&body, 1 << 20);
        fail_alloc_at(nth);
        bool encoded = wire_native_encode(&call, &result, &body, &problem);
        bool failed = fail_alloc_stop();
        buf_deinit(&body);
        if (!failed) {
            assert_true(encoded);
            break;
        }
        assert_false(encoded);
        assert_int_equal(problem.status, 503);
    }
    assert_true(nth > 2);
}

int main(void) {
    for (size_t i = 0; i < NUMBERS_MAX; i++)
        counted[i] = (float)i;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unbatched_reply_has_no_batch_axis),
        cmocka_unit_test(test_ragged_reply_is_ragged_in_the_same_way),
        cmocka_unit_test(test_batch_of_one_keeps_its_batch_axis),
        cmocka_unit_test(test_number_that_is_not_finite_is_refused_with_its_position),
        cmocka_unit_test(test_reply_bound_holds_for_the_longest_numbers),
        cmocka_unit_test(test_reply_bound_saturates),
        cmocka_unit_test(test_reply_of_random_numbers_reads_back_bitwise),
        cmocka_unit_test(test_full_buffer_is_told),
        cmocka_unit_test(test_every_failed_allocation_is_told),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
