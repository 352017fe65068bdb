/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_pace.c: a large request is read and checked in short pieces, whatever it
 * consists of. */
#include "base/pace.h"
#include "weights_file.h"
#include "wire/oip/oip.h"
#include "wire/safetensors/safetensors.h"
#include "wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MIB         ((size_t)1024 * 1024)
#define BODY_BYTES  (8 * MIB)
#define NUM_NUMBERS MIB /* of a tensor */

static void count_checkpoint(void *context) {
    size_t *count = context;
    ++*count;
}

/* wire_input.reserve */
static bool allow_bytes(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)context;
    (void)ret_problem;
    return bytes < SIZE_MAX;
}

/* Reads a body, and returns how many checkpoints there were. */
static size_t count_while_reading(struct fixture *fixture, wire_read *read,
                                  const void *body, size_t size, size_t json_size) {
    size_t count = 0;
    struct pace pace = {.checkpoint = count_checkpoint, .context = &count};
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = json_size,
                                     .models = (const attn_model *const *)fixture->models,
                                     .num_models = 1,
                                     .arena = &fixture->arena,
                                     .reserve = allow_bytes};
    arena_reset(&fixture->arena);
    fixture->problem.status = 200;
    pace_enter(&pace);
    if (read(&input, &fixture->request, &fixture->problem))
        assert_int_equal(fixture->problem.status, 200);
    pace_enter(NULL);
    assert_true(pace.steps < PACE_STEPS);
    assert_true(pace.longest <= PACE_STEPS_MAX);
    return count;
}

/* Returns `before`, then `element` until the body has BODY_BYTES, then `after`. */
static char *make_text(const char *before, const char *element, const char *after,
                       size_t *ret_size) {
    size_t length = strlen(element);
    char *body = malloc(BODY_BYTES + 256), *out = stpcpy(body, before);
    for (; out < body + BODY_BYTES; out += length)
        memcpy(out, element, length);
    out = stpcpy(out, after);
    *ret_size = (size_t)(out - body);
    return body;
}

static void test_text_is_scanned_and_read_in_pieces(void **state) {
    static const struct {
        const char *before, *element, *after;
        size_t passes; /* how often its bytes are gone through */
        wire_read *read;
        int status;
    } cases[] = {
        {"{\"queries\":[", "[[1,2,3,4]],", "[[1,2,3,4]]]}", 2, wire_native_read, 200},
        {"{\"queries\":[[", "[1.25,2,3,4],", "[1,2,3,4]]]}", 2, wire_native_read, 200},
        {"{\"queries\":[[", "1.5,", "1.5]]}", 2, wire_native_read, 400},
        {"{\"queries\":[[", "123456789012345678901234567890,", "1.5]]}", 2,
         wire_native_read, 400},
        {"{\"queries\":[[1,2,3,4]],\"head_mask\":[", "1,", "1]}", 2, wire_native_read,
         400},
        {"{\"queries\":[[1,2,3,4]],\"valid_lens\":[", "0,", "0]}", 2, wire_native_read,
         400},
        {"{\"queries\":[[1,2,3,4]],\"need\":[\"spans\"],\"spans\":[", "[0,1],", "[0,1]]}",
         2, wire_native_read, 200},
        {"{\"queries\":[[1,2,3,4]],\"need\":[\"target\"],\"targets\":[", "null,",
         "null]}", 2, wire_native_read, 400},
        {"{\"model\":\"", "a", "\"}", 1, wire_native_read, 404},
        {"{\"model\":\"", "\\\\", "\"}", 1, wire_native_read, 404},
        {"{\"model\":[", "{},", "0]}", 1, wire_native_read, 400},
        {"{\"queries\":[", "1 ", "", 1, wire_native_read, 400},
        {"{\"", "a", "\":1}", 1, wire_native_read, 400},
        {"{\"id\":\"", "a", "\"}", 1, wire_oip_read, 400},
        {"{\"inputs\":[{\"name\":\"queries\",\"datatype\":\"FP32\",\"shape\":[1,4],"
         "\"data\":[",
         "1.5,", "1]}]}", 3, wire_oip_read, 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size;
        char *body = make_text(cases[i].before, cases[i].element, cases[i].after, &size);
        size_t count =
            count_while_reading(*state, cases[i].read, body, size, WIRE_NO_SIZE);
        const struct fixture *fixture = *state;
        assert_int_equal(fixture->problem.status, cases[i].status);
        print_message("%s%s...: %zu checkpoints\n", cases[i].before, cases[i].element,
                      count);
        assert_true(count >= cases[i].passes * BODY_BYTES / MIB);
        free(body);
    }
}

/* A null for each query: a third of the body. */
static void test_nulls_are_read_in_pieces(void **state) {
    enum { ROWS = (int)MIB };
    const struct fixture *fixture = *state;
    char *body = malloc((size_t)ROWS * (10 + 5) + 128), *out = body;
    out = stpcpy(out, "{\"need\":[\"target\"],\"queries\":[");
    for (size_t i = 0; i < ROWS; i++)
        out = stpcpy(out, "[0,0,0,0],");
    out = stpcpy(out - 1, "],\"targets\":[");
    const char *targets = out;
    for (size_t i = 0; i < ROWS; i++)
        out = stpcpy(out, "null,");
    out = stpcpy(out - 1, "]}");
    size_t size = (size_t)(out - body), bytes = (size_t)(out - targets);
    size_t count =
        count_while_reading(*state, wire_native_read, body, size, WIRE_NO_SIZE);
    assert_int_equal(fixture->problem.status, 200);
    free(body);
    print_message("%zu bytes of nulls of %zu: %zu checkpoints\n", bytes, size, count);
    /* All bytes are scanned and read, those of numbers and nulls alike. */
    assert_true(count >= 3 * size / 2 / PACE_STEPS);
}

static void test_tensors_of_safetensors_are_converted_in_pieces(void **state) {
    static const struct {
        const char *dtype;
        size_t size; /* of an element */
    } dtypes[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        size_t data_size = NUM_NUMBERS * dtypes[i].size, size;
        char json[128], *zeros = calloc(1, data_size);
        int length = snprintf(json, sizeof json,
                              "{\"queries\":{\"dtype\":\"%s\",\"shape\":[1,262144,4],"
                              "\"data_offsets\":[0,%zu]}}",
                              dtypes[i].dtype, data_size);
        unsigned char *body =
            file_make_raw(json, (size_t)length, zeros, data_size, &size);
        size_t count =
            count_while_reading(*state, wire_safetensors_read, body, size, WIRE_NO_SIZE);
        const struct fixture *fixture = *state;
        assert_int_equal(fixture->problem.status, 200);
        assert_true(count >= NUM_NUMBERS / PACE_STEPS);
        free(body);
        free(zeros);
    }
}

static void test_binary_inputs_are_converted_in_pieces(void **state) {
    static const char json[] = "{\"inputs\":[{\"name\":\"queries\",\"datatype\":\"FP64\","
                               "\"shape\":[1,262144,4],"
                               "\"parameters\":{\"binary_data_size\":8388608}}]}";
    size_t json_size = sizeof json - 1, size = json_size + NUM_NUMBERS * sizeof(double);
    char *body = calloc(1, size);
    const struct fixture *fixture = *state;
    memcpy(body, json, json_size);
    size_t count = count_while_reading(*state, wire_oip_read, body, size, json_size);
    assert_int_equal(fixture->problem.status, 200);
    assert_true(count >= NUM_NUMBERS / PACE_STEPS);
    free(body);
}

static void test_results_are_checked_in_pieces(void **state) {
    static const struct wire_writer *const writers[] = {
        &wire_native_writer, &wire_safetensors_writer, &wire_oip_writer};
    static const struct wire_oip_reply one_output = {.num_outputs = 1};
    struct fixture *fixture = *state;
    const size_t lens[] = {NUM_NUMBERS / 4};
    const struct wire_request request = {
        .model = fixture->models[MODEL_D2L],
        .batch = {.num_sequences = 1, .query_lens = lens, .key_lens = lens},
        .oip = &one_output};
    float *outputs = calloc(NUM_NUMBERS, sizeof *outputs);
    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++) {
        const attn_result result = {.outputs = outputs};
        struct wire_reply_head head;
        size_t count = 0;
        struct pace pace = {.checkpoint = count_checkpoint, .context = &count};
        arena_reset(&fixture->arena);
        pace_enter(&pace);
        assert_non_null(writers[i]->begin(&fixture->arena, &request, &result, &head,
                                          &fixture->problem));
        pace_enter(NULL);
        assert_true(pace.longest <= PACE_STEPS_MAX);
        assert_true(count >= NUM_NUMBERS / PACE_STEPS);
    }
    free(outputs);
}

/* As long as all pairs were compared, 48 KB took 0.4 s. */
static void test_hidden_numbers_are_found_without_comparing_all_pairs(void **state) {
    enum { ROWS = 16384, ROW_BYTES = 4 * sizeof(float) + sizeof(int64_t) };
    const struct fixture *fixture = *state;
    char json[512];
    unsigned char *data = calloc(ROWS, ROW_BYTES);
    float *numbers = (float *)(void *)data, nan = strtof("nan", NULL);
    size_t size;

    memcpy(numbers + 4 * (ROWS - 1), &nan, sizeof nan);
    for (size_t i = 0; i < ROWS; i++) { /* in an order that is none */
        int64_t position = (int64_t)(i * 4999 % ROWS);
        memcpy(data + ROWS * 4 * sizeof(float) + i * sizeof position, &position,
               sizeof position);
    }
    int length = snprintf(json, sizeof json,
                          "{\"__metadata__\":{\"model\":\"d2l\",\"window\":\"1\"},"
                          "\"queries\":{\"dtype\":\"F32\",\"shape\":[%d,4],"
                          "\"data_offsets\":[0,%d]},"
                          "\"positions\":{\"dtype\":\"I64\",\"shape\":[%d],"
                          "\"data_offsets\":[%d,%d]}}",
                          ROWS, ROWS * 16, ROWS, ROWS * 16, ROWS * ROW_BYTES);
    unsigned char *body =
        file_make_raw(json, (size_t)length, data, (size_t)ROWS * ROW_BYTES, &size);
    size_t count =
        count_while_reading(*state, wire_safetensors_read, body, size, WIRE_NO_SIZE);

    assert_int_equal(fixture->problem.error, WIRE_E_OUT_OF_RANGE);
    assert_true(count <= 16 * size / PACE_STEPS);
    free(body);
    free(data);
}

/* Where binary data begins is known only when all numbers before it were printed. */
static void test_json_before_binary_data_is_measured_in_pieces(void **state) {
    static const struct wire_oip_reply both = {
        .num_outputs = 2, .outputs = {{.which = RESULT_OUTPUTS}, {RESULT_LSE, true}}};
    struct fixture *fixture = *state;
    const size_t lens[] = {NUM_NUMBERS / 4};
    const struct wire_request request = {.model = fixture->models[MODEL_D2L],
                                         .batch = {.num_sequences = 1,
                                                   .query_lens = lens,
                                                   .key_lens = lens,
                                                   .need_lse = true},
                                         .oip = &both};
    float *numbers = malloc(NUM_NUMBERS * sizeof *numbers);
    const attn_result result = {.outputs = numbers, .lse = numbers};
    struct wire_reply_head head;
    size_t count = 0;
    struct pace pace = {.checkpoint = count_checkpoint, .context = &count};

    for (size_t i = 0; i < NUM_NUMBERS; i++)
        numbers[i] = 0.12345F;
    arena_reset(&fixture->arena);
    pace_enter(&pace);
    assert_non_null(wire_oip_writer.begin(&fixture->arena, &request, &result, &head,
                                          &fixture->problem));
    pace_enter(NULL);
    assert_true(head.json_size > NUM_NUMBERS * strlen("0.12345,"));
    assert_true(pace.longest <= PACE_STEPS_MAX);
    assert_true(pace.total > head.json_size / 2);
    free(numbers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_scanned_and_read_in_pieces),
        cmocka_unit_test(test_nulls_are_read_in_pieces),
        cmocka_unit_test(test_tensors_of_safetensors_are_converted_in_pieces),
        cmocka_unit_test(test_binary_inputs_are_converted_in_pieces),
        cmocka_unit_test(test_results_are_checked_in_pieces),
        cmocka_unit_test(test_hidden_numbers_are_found_without_comparing_all_pairs),
        cmocka_unit_test(test_json_before_binary_data_is_measured_in_pieces),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
