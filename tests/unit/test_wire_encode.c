/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_encode.c: replies in JSON, their bounds and their pieces. */
#include "wire/reply.h"
#include "wire_fixture.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define NUMBERS_MAX 4096

/* Encodes the result in pieces of `size` bytes, or at once when that is 0. The model is
 * one that the request has made: it is gone once the reply has begun. Returns the text
 * with a terminator; the caller frees it. */
static char *encode_result(const struct wire_request *request, const attn_result *result,
                           size_t size) {
    const struct wire_writer *writer = &wire_native_writer;
    struct arena arena;
    struct wire_reply_head head;
    struct wire_problem problem;
    size_t bound = writer->bound(request), used = 0, written;

    if (size == 0)
        size = bound + WIRE_PIECE_MIN;
    char *text = malloc(bound + size + 1), *piece = malloc(size);
    struct wire_request own = *request;
    attn_model *model = malloc(sizeof *model);

    *model = *request->model;
    own.model = model;
    arena_init(&arena, 0);
    void *encoder = writer->begin(&arena, &own, result, &head, &problem);
    memset(model, 0xff, sizeof *model);
    free(model);
    if (encoder == NULL)
        fail_msg("%s: %s", problem.title, problem.detail);
    while ((written = writer->fill(encoder, piece, size)) > 0) {
        assert_true(written <= size);
        memcpy(text + used, piece, written);
        used += written;
        assert_true(used <= bound);
        if (size > bound)
            break; /* the first piece must have been all of it */
    }

    assert_int_equal(writer->fill(encoder, piece, size), 0);
    text[used] = '\0';
    arena_deinit(&arena);
    free(piece);
    return text;
}

static char *encode_in_pieces(const struct wire_request *request, float *outputs,
                              float *weights, size_t size) {
    const attn_result result = {
        .outputs = outputs, .weights = weights, .heads = outputs, .lse = weights};
    return encode_result(request, &result, size);
}

static char *encode(const struct wire_request *request, float *outputs, float *weights) {
    return encode_in_pieces(request, outputs, weights, 0);
}

static void assert_encodes(const struct wire_request *request, float *outputs,
                           float *weights, const char *expected) {
    char *text = encode(request, outputs, weights);
    assert_string_equal(text, expected);
    free(text);
}

static float counted[NUMBERS_MAX]; /* 0, 1, 2, ... */

static void test_unbatched_reply_has_no_batch_axis(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {2}, key_lens[] = {1};
    struct wire_request request = {
        .model = fixture->models[MODEL_NARROW],
        .batch = {.num_sequences = 1, .query_lens = query_lens, .key_lens = key_lens}};
    assert_encodes(&request, counted, NULL,
                   "{\"model\":\"narrow\",\"outputs\":[[0.0,1.0],[2.0,3.0]]}");
    request.batch.need_weights = ATTN_WEIGHTS_ALL;
    assert_encodes(&request, counted, counted,
                   "{\"model\":\"narrow\",\"outputs\":[[0.0,1.0],[2.0,3.0]],"
                   "\"attention_weights\":[[[0.0],[1.0]]]}");
    request.batch.need_weights = ATTN_WEIGHTS_MEAN;
    assert_encodes(&request, counted, counted,
                   "{\"model\":\"narrow\",\"outputs\":[[0.0,1.0],[2.0,3.0]],"
                   "\"attention_weights\":[[0.0],[1.0]]}");
}

static void test_ragged_reply_is_ragged_in_the_same_way(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {1, 2}, key_lens[] = {2, 1};
    struct wire_request request = {.model = fixture->models[MODEL_D2L],
                                   .batched = true,
                                   .batch = {.num_sequences = 2,
                                             .query_lens = query_lens,
                                             .key_lens = key_lens,
                                             .need_weights = ATTN_WEIGHTS_ALL}};
    assert_encodes(&request, counted, counted,
                   "{\"model\":\"d2l\",\"outputs\":[[[0.0,1.0,2.0,3.0]],"
                   "[[4.0,5.0,6.0,7.0],[8.0,9.0,10.0,11.0]]],\"attention_weights\":"
                   "[[[[0.0,1.0]],[[2.0,3.0]]],[[[4.0],[5.0]],[[6.0],[7.0]]]]}");
    request.batch.need_weights = ATTN_WEIGHTS_MEAN;
    assert_encodes(&request, counted, counted,
                   "{\"model\":\"d2l\",\"outputs\":[[[0.0,1.0,2.0,3.0]],"
                   "[[4.0,5.0,6.0,7.0],[8.0,9.0,10.0,11.0]]],\"attention_weights\":"
                   "[[[0.0,1.0]],[[2.0],[3.0]]]}");
}

static void test_batch_of_one_keeps_its_batch_axis(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {1};
    struct wire_request request = {
        .model = fixture->models[MODEL_NARROW],
        .batched = true,
        .batch = {.num_sequences = 1, .query_lens = lens, .key_lens = lens}};
    assert_encodes(&request, counted, NULL,
                   "{\"model\":\"narrow\",\"outputs\":[[[0.0,1.0]]]}");
}

static void test_reply_has_the_results_that_are_needed(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {1, 2}, key_lens[] = {2, 1};
    struct wire_request request = {.model = fixture->models[MODEL_D2L],
                                   .batched = true,
                                   .batch = {.num_sequences = 2,
                                             .query_lens = query_lens,
                                             .key_lens = key_lens,
                                             .omit_outputs = true,
                                             .need_lse = true}};
    float lse[] = {0, -INFINITY, 0.5F, -2, -INFINITY, -INFINITY};
    assert_encodes(&request, counted, lse,
                   "{\"model\":\"d2l\",\"lse\":[[[0.0,null]],[[0.5,-2.0],[null,null]]]}");
    request.batch.need_heads = true;
    assert_encodes(&request, counted, lse,
                   "{\"model\":\"d2l\",\"heads\":[[[[0.0,1.0],[2.0,3.0]]],"
                   "[[[4.0,5.0],[6.0,7.0]],[[8.0,9.0],[10.0,11.0]]]],"
                   "\"lse\":[[[0.0,null]],[[0.5,-2.0],[null,null]]]}");
    request.batched = false;
    request.batch.num_sequences = 1;
    request.batch.need_lse = false;
    request.batch.omit_outputs = false;
    assert_encodes(&request, counted, NULL,
                   "{\"model\":\"d2l\",\"outputs\":[[0.0,1.0,2.0,3.0]],"
                   "\"heads\":[[[0.0,1.0],[2.0,3.0]]]}");
}

static void test_only_a_query_without_keys_may_lack_its_lse(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {2};
    const struct wire_request request = {.model = fixture->models[MODEL_D2L],
                                         .batch = {.num_sequences = 1,
                                                   .query_lens = lens,
                                                   .key_lens = lens,
                                                   .omit_outputs = true,
                                                   .need_lse = true}};
    const float bad[] = {NAN, INFINITY};
    for (size_t i = 0; i < 2; i++) {
        float lse[] = {-INFINITY, 0, -INFINITY, bad[i]};
        const attn_result result = {.lse = lse};
        struct wire_problem problem;
        assert_false(wire_reply_check(&request, &result, &problem));
        assert_string_equal(problem.title, "Result not finite");
        assert_non_null(strstr(problem.detail, "lse[1][1] "));
    }
}

static void test_number_that_is_not_finite_is_refused_with_its_position(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {1, 2}, key_lens[] = {2, 2};
    struct wire_request request = {.model = fixture->models[MODEL_D2L],
                                   .batched = true,
                                   .batch = {.num_sequences = 2,
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
        outputs[cases[i].output] = bad[i];
        weights[cases[i].weight] = bad[i];

        request.batch.need_weights = cases[i].mean ? ATTN_WEIGHTS_MEAN : ATTN_WEIGHTS_ALL;
        const attn_result result = {.outputs = outputs, .weights = weights};
        assert_false(wire_reply_check(&request, &result, &problem));
        assert_int_equal(problem.status, 422);
        assert_string_equal(problem.title, "Result not finite");
        if (strstr(problem.detail, cases[i].where) != problem.detail)
            fail_msg("'%s' does not begin with '%s'", problem.detail, cases[i].where);
    }
}

/* The longest numbers, in the shapes that have the most brackets per number. */
static void test_reply_bound_holds_for_the_longest_numbers(void **state) {
    (void)state;
    static float longest[NUMBERS_MAX];
    for (size_t i = 0; i < NUMBERS_MAX; i++)
        longest[i] = i % 2 == 0 ? -1.17549449e-38f : -1.0000123e-5f;

    static const size_t lens[][3] = {{1, 1, 1}, {1, 2, 3}, {5, 1, 4}};
    attn_model_info info = fixture_info(MODEL_D2L);
    memset(info.name, '\x01', ATTN_NAME_MAX);
    info.width.out = 1;
    attn_model *model;
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);

    for (size_t i = 0; i < 3 * 3 * 2 * 3 * 8; i++) {
        struct wire_request request = {
            .model = model,
            .batched = i % 2 == 0,
            .batch = {.query_lens = lens[i / 2 % 3],
                      .key_lens = lens[i / 6 % 3],
                      .need_weights = (attn_need_weights)(i / 18 % 3),
                      .omit_outputs = i / 54 == 7,
                      .need_heads = (i / 54 & 1) != 0,
                      .need_lse = (i / 54 & 2) != 0}};
        request.batch.num_sequences = request.batched ? 3 : 1;
        free(encode(&request, longest, longest)); /* which checks the bound */
    }
    attn_model_destroy(model);
}

static void test_reply_bound_saturates(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {SIZE_MAX / 16}; /* of rows of 4 numbers */
    struct wire_request request = {.model = fixture->models[MODEL_D2L],
                                   .batch = {.num_sequences = 1, .query_lens = lens}};
    assert_true(wire_native_writer.bound(&request) == SIZE_MAX);
}

static void test_reply_of_random_numbers_reads_back_bitwise(void **state) {
    struct fixture *fixture = *state;
    const size_t lens[] = {NUMBERS_MAX / 4};
    struct wire_request request = {
        .model = fixture->models[MODEL_D2L],
        .batch = {.num_sequences = 1, .query_lens = lens, .key_lens = lens}};
    static float numbers[NUMBERS_MAX];
    uint64_t random = unit_seed(20);
    for (size_t i = 0; i < NUMBERS_MAX; i++) {
        uint32_t bits = (uint32_t)(fixture_random(&random) >> 32);
        memcpy(&numbers[i], &bits, sizeof bits);
        if (!isfinite(numbers[i]))
            numbers[i] = 0;
    }

    char *text = encode(&request, numbers, NULL);
    json_t *root = json_loads(text, 0, NULL), *rows = json_object_get(root, "outputs");
    for (size_t i = 0; i < NUMBERS_MAX; i++) {
        json_t *number = json_array_get(json_array_get(rows, i / 4), i % 4);
        float value = (float)json_real_value(number);
        assert_memory_equal(&value, &numbers[i], sizeof value);
    }
    json_decref(root);
    free(text);
}

/* Pieces end after a number, a row, a head or a sequence. */
static void test_pieces_of_any_size_make_the_same_reply(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {1, 40, 3, 7}, key_lens[] = {200, 9, 1, 20};
    struct wire_request request = {
        .model = fixture->models[MODEL_D2L],
        .batched = true,
        .batch = {.num_sequences = 4, .query_lens = query_lens, .key_lens = key_lens}};
    static float numbers[NUMBERS_MAX];
    for (size_t i = 0; i < NUMBERS_MAX; i++)
        numbers[i] = i % 5 == 0 ? 0.0f : 1.0f / (float)i - 0.01f;

    for (int need = ATTN_WEIGHTS_NONE; need <= ATTN_WEIGHTS_MEAN; need++) {
        request.batch.need_weights = (attn_need_weights)need;
        char *whole = encode(&request, numbers, numbers);
        assert_true(strlen(whole) > 2 * WIRE_PIECE_MIN);
        for (size_t size = WIRE_PIECE_MIN; size < 4000; size++) {
            char *text = encode_in_pieces(&request, numbers, numbers, size);
            assert_string_equal(text, whole);
            free(text);
        }
        free(whole);
    }
}

static void test_selected_weights_have_their_own_shape(void **state) {
    struct fixture *fixture = *state;
    const size_t query_lens[] = {2, 3}, key_lens[] = {1, 2};
    const size_t heads[] = {1};
    const ptrdiff_t queries[] = {1};
    struct wire_request request = {.model = fixture->models[MODEL_D2L],
                                   .batched = true,
                                   .batch = {.num_sequences = 2,
                                             .query_lens = query_lens,
                                             .key_lens = key_lens,
                                             .need_weights = ATTN_WEIGHTS_ALL}};
    static const struct {
        bool heads, queries, mean;
        const char *weights;
    } cases[] = {
        {true, true, false, "[[[[0.0]]],[[[1.0,2.0]]]]"},
        {false, true, false, "[[[[0.0]],[[1.0]]],[[[2.0,3.0]],[[4.0,5.0]]]]"},
        {true, false, false, "[[[[0.0],[1.0]]],[[[2.0,3.0],[4.0,5.0],[6.0,7.0]]]]"},
        {false, true, true, "[[[0.0]],[[1.0,2.0]]]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        request.batch.need_weights = cases[i].mean ? ATTN_WEIGHTS_MEAN : ATTN_WEIGHTS_ALL;
        request.batch.weights_heads = cases[i].heads ? heads : NULL;
        request.batch.weights_queries = cases[i].queries ? queries : NULL;
        request.batch.num_weights_heads = request.batch.num_weights_queries = 1;

        char *text = encode(&request, counted, counted);
        const char *weights = strstr(text, "\"attention_weights\":") + 20;
        if (strncmp(weights, cases[i].weights, strlen(cases[i].weights)) != 0 ||
            strcmp(weights + strlen(cases[i].weights), "}") != 0)
            fail_msg("%s instead of %s", weights, cases[i].weights);
        free(text);
    }
}

static const size_t one_range[] = {0, 1};

/* Returns a request for all reductions of 2 queries of 3 keys, and then of 1 of 2. */
static struct wire_request reduced_request(struct fixture *fixture) {
    static const size_t query_lens[] = {2, 1}, key_lens[] = {3, 2};
    return (struct wire_request){.model = fixture->models[MODEL_D2L],
                                 .batched = true,
                                 .batch = {.num_sequences = 2,
                                           .query_lens = query_lens,
                                           .key_lens = key_lens,
                                           .omit_outputs = true,
                                           .reduce = {.spans = one_range,
                                                      .num_spans = 1,
                                                      .top_k = 1,
                                                      .targets = one_range,
                                                      .block = 2,
                                                      .received = true,
                                                      .entropy = true}}};
}

/* Encodes counted numbers, and keys 0, -1, 1, -1, ..., as all that weights are reduced
 * to. The caller frees the text. */
static char *encode_reduced(const struct wire_request *request, size_t size) {
    static int64_t keys[NUMBERS_MAX];
    for (size_t i = 0; i < NUMBERS_MAX; i++)
        keys[i] = i % 2 == 0 ? (int64_t)(i / 2) : -1;
    const attn_result result = {.span_weights = counted,
                                .top_keys = keys,
                                .top_weights = counted,
                                .target_weights = counted,
                                .received = counted,
                                .entropy = counted,
                                .block_weights = counted};
    return encode_result(request, &result, size);
}

static void test_reductions_have_their_own_shapes(void **state) {
    struct wire_request request = reduced_request(*state);
    char *text = encode_reduced(&request, 0);
    assert_string_equal(
        text, "{\"model\":\"d2l\","
              "\"span_weights\":[[[[0.0],[1.0]],[[2.0],[3.0]]],[[[4.0]],[[5.0]]]],"
              "\"top_keys\":[[[[0],[null]],[[1],[null]]],[[[2]],[[null]]]],"
              "\"top_weights\":[[[[0.0],[1.0]],[[2.0],[3.0]]],[[[4.0]],[[5.0]]]],"
              "\"target_weights\":[[[0.0,1.0],[2.0,3.0]],[[4.0,5.0]]],"
              "\"received\":[[[0.0,1.0,2.0],[3.0,4.0,5.0]],[[6.0,7.0],[8.0,9.0]]],"
              "\"entropy\":[[[0.0,1.0],[2.0,3.0]],[[4.0,5.0]]],"
              "\"block_weights\":[[[[0.0,1.0]],[[2.0,3.0]]],[[[4.0]],[[5.0]]]]}");
    free(text);
}

static void test_ranges_of_the_largest_weights_are_an_axis(void **state) {
    static const size_t ranges[] = {0, 2, 1, 3};
    const size_t heads[] = {1};
    const ptrdiff_t queries[] = {-1};
    struct wire_request request = reduced_request(*state);
    request.batched = false;
    request.batch.num_sequences = 1;
    request.batch.weights_heads = heads;
    request.batch.weights_queries = queries;
    request.batch.num_weights_heads = request.batch.num_weights_queries = 1;
    request.batch.reduce =
        (attn_reductions){.top_k = 2, .top_in = ranges, .num_top_in = 2, .entropy = true};
    char *text = encode_reduced(&request, 0);
    assert_string_equal(text, "{\"model\":\"d2l\","
                              "\"top_keys\":[[[[0,null],[1,null]]]],"
                              "\"top_weights\":[[[[0.0,1.0],[2.0,3.0]]]],"
                              "\"entropy\":[[0.0]]}");
    free(text);
}

static void test_pieces_of_reductions_make_the_same_reply(void **state) {
    static const size_t query_lens[] = {40, 7}, key_lens[] = {9, 200};
    static size_t ranges[6] = {0, 5, 0, 4, 1, 4};
    struct wire_request request = reduced_request(*state);
    request.batch.query_lens = query_lens;
    request.batch.key_lens = key_lens;
    request.batch.reduce.top_k = 3;
    request.batch.reduce.top_in = ranges;
    request.batch.reduce.num_top_in = 3;

    char *whole = encode_reduced(&request, 0);
    assert_true(strlen(whole) > 2 * WIRE_PIECE_MIN);
    for (size_t size = WIRE_PIECE_MIN; size < 4000; size += 7) {
        char *text = encode_reduced(&request, size);
        assert_string_equal(text, whole);
        free(text);
    }
    free(whole);
}

static void test_reduction_that_is_not_finite_is_refused(void **state) {
    struct wire_request request = reduced_request(*state);
    float numbers[NUMBERS_MAX] = {[5] = NAN};
    const attn_result result = {.top_weights = numbers};
    struct wire_problem problem;
    request.batch.reduce = (attn_reductions){.top_k = 1};
    assert_false(wire_reply_check(&request, &result, &problem));
    assert_non_null(strstr(problem.detail, "top_weights[1][1][0][0] "));
}

int main(void) {
    for (size_t i = 0; i < NUMBERS_MAX; i++)
        counted[i] = (float)i;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unbatched_reply_has_no_batch_axis),
        cmocka_unit_test(test_ragged_reply_is_ragged_in_the_same_way),
        cmocka_unit_test(test_batch_of_one_keeps_its_batch_axis),
        cmocka_unit_test(test_reply_has_the_results_that_are_needed),
        cmocka_unit_test(test_only_a_query_without_keys_may_lack_its_lse),
        cmocka_unit_test(test_number_that_is_not_finite_is_refused_with_its_position),
        cmocka_unit_test(test_reply_bound_holds_for_the_longest_numbers),
        cmocka_unit_test(test_reply_bound_saturates),
        cmocka_unit_test(test_reply_of_random_numbers_reads_back_bitwise),
        cmocka_unit_test(test_pieces_of_any_size_make_the_same_reply),
        cmocka_unit_test(test_selected_weights_have_their_own_shape),
        cmocka_unit_test(test_reductions_have_their_own_shapes),
        cmocka_unit_test(test_ranges_of_the_largest_weights_are_an_axis),
        cmocka_unit_test(test_pieces_of_reductions_make_the_same_reply),
        cmocka_unit_test(test_reduction_that_is_not_finite_is_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
