/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_oip.c: requests of the Open Inference Protocol in JSON and binary data, and
 * the replies. tests/http/test_oip_errors.py has the requests that are refused. */
#include "fail_alloc.h"
#include "wire/oip/describe.h"
#include "wire/oip/oip.h"
#include "wire_fixture.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A body: JSON, then binary data. */
struct body {
    char *data;
    size_t size, json_size;
};

static struct body make_body(const char *json, const void *bytes, size_t size) {
    struct body body = {.json_size = strlen(json)};
    body.size = body.json_size + size;
    body.data = malloc(body.size);
    memcpy(body.data, json, body.json_size);
    memcpy(body.data + body.json_size, bytes, size);
    return body;
}

/* wire_input.reserve: notes how much is asked for. */
static bool note_bytes(void *context, size_t bytes, struct wire_problem *problem) {
    (void)problem;
    *(size_t *)context = bytes;
    return true;
}

/* wire_input.reserve: there is no memory. */
static bool refuse_bytes(void *context, size_t bytes, struct wire_problem *problem) {
    (void)context;
    (void)bytes;
    wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL, "no memory");
    return false;
}

/* Reads a body, in the memory that was reserved. */
static bool read_into(struct fixture *fixture, const struct body *body,
                      struct arena *arena, struct wire_request *ret_request) {
    size_t reserved = 0, used = arena->used;

    const struct wire_input input = {
        .body = body->data,
        .size = body->size,
        .json_size = body->json_size,
        .models = (const attn_model *const *)&fixture->models[MODEL_D2L],
        .num_models = 1,
        .arena = arena,
        .reserve = note_bytes,
        .context = &reserved};
    bool read = wire_oip_read(&input, ret_request, &fixture->problem);
    assert_true(arena->used - used <= reserved);
    return read;
}

/* Reads a body that is accepted. */
static void read_body(struct fixture *fixture, const struct body *body) {
    arena_reset(&fixture->arena);
    if (!read_into(fixture, body, &fixture->arena, &fixture->request))
        fail_msg("%s: %s", fixture->problem.title, fixture->problem.detail);
}

static void assert_floats(const float *got, const float *expected, size_t count) {
    for (size_t i = 0; i < count; i++)
        assert_true(got[i] == expected[i]);
}

static const float rows[] = {1, 2, 3, 4, 5, 6, 7, 8};

#define QUERIES_SHAPE "{\"name\":\"queries\",\"shape\":[1,2,4],"
#define BINARY(size)  "\"parameters\":{\"binary_data_size\":" size "}}"

/* --- reading --- */

static void test_json_is_read_flat_and_nested(void **state) {
    struct fixture *fixture = *state;
    const char *spellings[] = {"[1,2,3,4,5,6,7,8]", "[[[1,2,3,4],[5,6,7,8]]]"};
    for (size_t i = 0; i < 2; i++) {
        char json[512];
        sprintf(json,
                "{\"inputs\":[" QUERIES_SHAPE "\"datatype\":\"FP64\",\"data\":%s}]}",
                spellings[i]);
        struct body body = make_body(json, "", 0);
        body.json_size = WIRE_NO_SIZE;
        read_body(fixture, &body);

        const attn_request *batch = &fixture->request.batch;
        assert_true(fixture->request.batched && !fixture->request.in_body);
        assert_int_equal(batch->num_sequences, 1);
        assert_int_equal(batch->query_lens[0], 2);
        assert_floats(batch->queries, rows, 8);
        assert_ptr_equal(batch->keys, batch->queries);
        assert_ptr_equal(batch->values, batch->queries);
        assert_int_equal(batch->need_weights, ATTN_WEIGHTS_NONE);
        assert_null(batch->valid_lens);
        assert_false(fixture->request.oip->outputs[0].binary);
        free(body.data);
    }
}

static void test_aligned_float32_is_not_copied(void **state) {
    struct fixture *fixture = *state;
    for (size_t spaces = 0; spaces < 8; spaces++) {
        char json[512];
        size_t size = (size_t)sprintf(json,
                                      "{%*s\"inputs\":[" QUERIES_SHAPE
                                      "\"datatype\":\"FP32\"," BINARY("32") "]}",
                                      (int)spaces, "");
        struct body body = make_body(json, rows, sizeof rows);
        read_body(fixture, &body);

        const float *queries = fixture->request.batch.queries;
        bool inside = (const char *)queries == body.data + size;
        assert_int_equal(inside, size % sizeof(float) == 0);
        assert_int_equal(fixture->request.in_body, inside);
        assert_floats(queries, rows, 8);
        free(body.data);
    }
}

static void test_every_binary_type_is_converted(void **state) {
    struct fixture *fixture = *state;
    const double doubles[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const uint16_t halves[] = {0x3c00, 0x4000, 0x4200, 0x4400,
                               0x4500, 0x4600, 0x4700, 0x4800};
    uint16_t upper[8];
    for (size_t i = 0; i < 8; i++) {
        uint32_t bits;
        memcpy(&bits, &rows[i], sizeof bits);
        upper[i] = (uint16_t)(bits >> 16);
    }

    const struct {
        const char *datatype;
        const void *bytes;
        size_t size;
    } types[] = {{"FP32", rows, sizeof rows},
                 {"FP64", doubles, sizeof doubles},
                 {"FP16", halves, sizeof halves},
                 {"BF16", upper, sizeof upper}};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char json[512];
        sprintf(json,
                "{\"inputs\":[" QUERIES_SHAPE
                "\"datatype\":\"%s\",\"parameters\":{\"binary_data_size\":%zu}}]}",
                types[i].datatype, types[i].size);
        struct body body = make_body(json, types[i].bytes, types[i].size);
        read_body(fixture, &body);
        assert_floats(fixture->request.batch.queries, rows, 8);
        free(body.data);
    }
}

static void test_lengths_are_read_from_both_types_as_json_and_binary(void **state) {
    struct fixture *fixture = *state;
    const int64_t wide[] = {2, 0};
    const int32_t narrow[] = {2, 0};
    const struct {
        const char *members;
        const void *bytes;
        size_t size;
    } cases[] = {
        {"\"datatype\":\"INT32\",\"data\":[2,0]}", "", 0},
        {"\"datatype\":\"INT64\",\"data\":[[2,0]]}", "", 0},
        {"\"datatype\":\"INT32\"," BINARY("8"), narrow, sizeof narrow},
        {"\"datatype\":\"INT64\"," BINARY("16"), wide, sizeof wide},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[512];
        sprintf(json,
                "{\"inputs\":[{\"name\":\"valid_lens\",\"shape\":[1,2],%s," QUERIES_SHAPE
                "\"datatype\":\"FP32\",\"data\":[1,2,3,4,5,6,7,8]}]}",
                cases[i].members);
        struct body body = make_body(json, cases[i].bytes, cases[i].size);
        read_body(fixture, &body);
        const attn_request *batch = &fixture->request.batch;
        assert_true(batch->valid_lens_per_query);
        assert_int_equal(batch->valid_lens[0], 2);
        assert_int_equal(batch->valid_lens[1], 0);
        free(body.data);
    }
}

static void test_nothing_is_read_when_memory_is_refused(void **state) {
    struct fixture *fixture = *state;
    struct body body = make_body("{\"inputs\":[" QUERIES_SHAPE
                                 "\"datatype\":\"FP32\"," BINARY("32") "]}",
                                 rows, sizeof rows);
    const struct wire_input input = {
        .body = body.data,
        .size = body.size,
        .json_size = body.json_size,
        .models = (const attn_model *const *)&fixture->models[MODEL_D2L],
        .num_models = 1,
        .arena = &fixture->arena,
        .reserve = refuse_bytes};
    arena_reset(&fixture->arena);
    assert_false(wire_oip_read(&input, &fixture->request, &fixture->problem));
    assert_int_equal(fixture->problem.status, 413);
    assert_int_equal(fixture->arena.used, 0);
    free(body.data);
}

/* --- writing --- */

#define SEQUENCES     2
#define LENGTH        40
#define OUTPUTS_BYTES (SEQUENCES * LENGTH * 4 * sizeof(float))
#define WEIGHTS_BYTES (SEQUENCES * 2 * LENGTH * LENGTH * sizeof(float))

/* A request for all outputs, and its results. */
struct reply {
    struct wire_oip_reply oip;
    struct wire_request request;
    size_t lens[SEQUENCES];
    attn_result result;
};

/* Makes a reply. Bit 0 of `binary_bits` is set when outputs are binary, bit 1 when
 * weights are. */
static void make_reply(struct fixture *fixture, struct reply *reply, int binary_bits) {
    static float outputs[OUTPUTS_BYTES / sizeof(float)],
        weights[WEIGHTS_BYTES / sizeof(float)];
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        weights[i] = i % 5 == 0 ? 0.0f : 1.0f / (float)i - 0.01f;

    memcpy(outputs, weights, sizeof outputs);
    *reply = (struct reply){
        .oip = {.id = "\"x\"",
                .id_size = 3,
                .num_outputs = 2,
                .outputs = {{RESULT_OUTPUTS, (binary_bits & 1) != 0},
                            {RESULT_WEIGHTS, (binary_bits & 2) != 0}}},
        .lens = {LENGTH, LENGTH},
        .result = {.outputs = outputs, .weights = weights},
    };
    reply->request = (struct wire_request){.model = fixture->models[MODEL_D2L],
                                           .batched = true,
                                           .oip = &reply->oip,
                                           .batch = {.num_sequences = SEQUENCES,
                                                     .query_lens = reply->lens,
                                                     .key_lens = reply->lens,
                                                     .need_weights = ATTN_WEIGHTS_ALL}};
}

/* Writes the reply in pieces of `piece` bytes, or at once when that is 0. */
static char *encode(struct fixture *fixture, const struct reply *reply, size_t piece,
                    size_t *ret_size, struct wire_reply_head *ret_head) {
    size_t bound = wire_oip_writer.bound(&reply->request), size = 0, written;
    if (piece == 0)
        piece = bound + WIRE_PIECE_MIN;

    char *text = malloc(bound + WIRE_PIECE_MIN + piece);
    arena_reset(&fixture->arena);
    void *encoder = wire_oip_writer.begin(&fixture->arena, &reply->request,
                                          &reply->result, ret_head, &fixture->problem);
    assert_non_null(encoder);
    while ((written = wire_oip_writer.fill(encoder, text + size, piece)) > 0) {
        assert_true(written <= piece);
        size += written;
        assert_true(size <= bound);
        if (piece > bound)
            break; /* at once */
    }

    assert_int_equal(wire_oip_writer.fill(encoder, text + size, piece), 0);
    *ret_size = size;
    return text;
}

static void test_announced_sizes_are_right(void **state) {
    for (int binary_bits = 0; binary_bits < 4; binary_bits++) {
        struct reply reply;
        struct wire_reply_head head;
        size_t size;
        make_reply(*state, &reply, binary_bits);
        char *text = encode(*state, &reply, 0, &size, &head);
        bool binary = binary_bits != 0;
        assert_string_equal(head.content_type,
                            binary ? "application/octet-stream" : "application/json");
        assert_true(head.size == (binary ? size : WIRE_NO_SIZE));
        assert_true(binary == (head.json_size != WIRE_NO_SIZE));
        json_t *root = json_loadb(text, binary ? head.json_size : size, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(root, "id")), "x");
        json_decref(root);

        const char *bytes = text + (binary ? head.json_size : size);
        if ((binary_bits & 1) != 0) {
            assert_memory_equal(bytes, reply.result.outputs, OUTPUTS_BYTES);
            bytes += OUTPUTS_BYTES;
        }
        if ((binary_bits & 2) != 0)
            assert_memory_equal(bytes, reply.result.weights, WEIGHTS_BYTES);
        free(text);
    }
}

static void test_pieces_of_any_size_make_the_same_reply(void **state) {
    for (int binary_bits = 0; binary_bits < 4; binary_bits++) {
        struct reply reply;
        struct wire_reply_head head;
        size_t size, whole_size;
        make_reply(*state, &reply, binary_bits);
        char *whole = encode(*state, &reply, 0, &whole_size, &head);
        for (size_t piece = WIRE_PIECE_MIN; piece < 2200; piece += 3) {
            char *text = encode(*state, &reply, piece, &size, &head);
            assert_int_equal(size, whole_size);
            assert_memory_equal(text, whole, size);
            free(text);
        }
        free(whole);
    }
}

static void test_number_that_is_not_finite_is_named(void **state) {
    struct fixture *fixture = *state;
    struct reply reply;
    struct wire_reply_head head;
    for (int binary_bits = 0; binary_bits < 4; binary_bits++) {
        make_reply(fixture, &reply, binary_bits);
        size_t index = ((1 * 2 + 1) * LENGTH + 2) * LENGTH + 0; /* of 2 heads */
        reply.result.weights[index] = binary_bits % 2 == 0 ? NAN : -INFINITY;
        assert_null(wire_oip_writer.begin(&fixture->arena, &reply.request, &reply.result,
                                          &head, &fixture->problem));
        assert_int_equal(fixture->problem.status, 422);
        assert_non_null(strstr(fixture->problem.detail, "attention_weights[1][1][2][0]"));
    }
}

static void test_bound_saturates(void **state) {
    struct reply reply;
    make_reply(*state, &reply, 2);
    reply.lens[0] = SIZE_MAX / 32; /* of rows of 4 numbers */
    assert_true(wire_oip_writer.bound(&reply.request) == SIZE_MAX);
    reply.oip.outputs[0].binary = true;
    reply.oip.num_outputs = 1;
    assert_true(wire_oip_writer.bound(&reply.request) < SIZE_MAX);
}

/* --- no memory --- */

static void assert_no_memory(const struct fixture *fixture) {
    assert_int_equal(fixture->problem.status, 503);
    assert_string_equal(fixture->problem.title, "Out of memory");
}

/* Reads a body again and again, while each allocation fails in turn. Returns how many
 * failed. */
static size_t fail_each_read(struct fixture *fixture, const struct body *body,
                             size_t allocations) {
    for (size_t nth = 1;; nth++) {
        struct arena arena;
        fixture_fill_arena(&arena, allocations);
        fail_alloc_at(nth);
        bool read = read_into(fixture, body, &arena, &fixture->request);
        bool failed = fail_alloc_stop();
        arena_deinit(&arena);
        assert_int_equal(read, !failed);
        if (!failed)
            return nth - 1;
        assert_no_memory(fixture);
    }
}

static void test_every_failed_allocation_of_reading_is_reported(void **state) {
    const char *json =
        "{\"id\":\"seven\",\"inp\\u0075ts\":[" QUERIES_SHAPE "\"datatype\":\"FP32\","
        "\"data\":[[[0.12345678901234567e-05,2,3,4],[1,2,3,4]]]},"
        "{\"name\":\"keys\",\"shape\":[1,2,4],\"datatype\":\"FP16\","
        "\"data\":[1,2,3,4,5,6,7,8]},"
        "{\"name\":\"values\",\"shape\":[1,2,4],\"datatype\":\"FP64\","
        "\"parameters\":{\"binary_data_size\":64}},"
        "{\"name\":\"valid_lens\",\"shape\":[1],\"datatype\":\"INT32\",\"data\":[1]},"
        "{\"name\":\"weights_queries\",\"shape\":[2],\"datatype\":\"FP32\","
        "\"data\":[1,0.0]},"
        "{\"name\":\"head_mask\",\"shape\":[2],\"datatype\":\"BF16\","
        "\"parameters\":{\"binary_data_size\":4}}],"
        "\"parameters\":{\"need_weights\":true,\"weights_heads\":\"1,0\"},"
        "\"outputs\":[{\"name\":\"attention_weights\"}]}";
    const unsigned char bytes[68] = {0};
    struct body body = make_body(json, bytes, sizeof bytes);

    read_body(*state, &body);
    for (size_t allocations = 0; allocations < 16; allocations++)
        assert_true(fail_each_read(*state, &body, allocations) >= 6);
    free(body.data);
}

static void test_every_failed_allocation_of_writing_is_reported(void **state) {
    struct fixture *fixture = *state;
    struct reply reply;
    struct wire_reply_head head;
    make_reply(fixture, &reply, 2);
    for (size_t allocations = 0; allocations < 8; allocations++) {
        struct arena arena;
        fixture_fill_arena(&arena, allocations);
        fail_alloc_at(1);
        void *encoder = wire_oip_writer.begin(&arena, &reply.request, &reply.result,
                                              &head, &fixture->problem);
        assert_true(fail_alloc_stop());
        assert_null(encoder);
        assert_no_memory(fixture);
        arena_deinit(&arena);
    }
}

/* Prints one of the descriptions. Returns false when there is no such one. */
static bool print_text(const struct fixture *fixture, int which, struct buf *body) {
    const attn_model *const *models = (const attn_model *const *)fixture->models;
    const attn_model_info *info = attn_model_get_info(models[MODEL_NARROW]);
    const struct wire_oip_statistics statistics = {.num_successes = 7};
    const struct wire_oip_listing listings[2] = {{"a", info, ""}, {"b", NULL, "bad"}};
    const struct wire_problem problem = {.status = 400, .title = "T", .detail = "d"};
    switch (which) {
    case 0:
        wire_oip_print_server(body);
        return true;
    case 1:
        wire_oip_print_model(info, body);
        return true;
    case 2:
        wire_oip_print_ready(info, true, body);
        return true;
    case 3:
        wire_oip_print_config(info, body);
        return true;
    case 4:
        wire_oip_print_statistics(info, &statistics, body);
        return true;
    case 5:
        wire_oip_print_index(listings, 2, false, false, body);
        return true;
    case 6:
        wire_oip_error_format.print(&problem, body);
        return true;
    default:
        return false;
    }
}

static void test_every_failed_allocation_of_describing_is_reported(void **state) {
    int which = 0;
    for (bool exists = true; exists; which += exists) {
        bool failed = true;
        for (size_t nth = 1; exists && failed; nth++) {
            struct buf body;
            buf_init(&body, SIZE_MAX);
            fail_alloc_at(nth);
            exists = print_text(*state, which, &body);
            failed = fail_alloc_stop();

            assert_int_equal(body.status, failed ? ATTN_E_NOMEM : ATTN_OK);
            if (exists && !failed) {
                json_t *root =
                    json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
                assert_non_null(root);
                assert_true(nth > 1);
                json_decref(root);
            }
            buf_deinit(&body);
        }
    }
    assert_int_equal(which, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_is_read_flat_and_nested),
        cmocka_unit_test(test_aligned_float32_is_not_copied),
        cmocka_unit_test(test_every_binary_type_is_converted),
        cmocka_unit_test(test_lengths_are_read_from_both_types_as_json_and_binary),
        cmocka_unit_test(test_nothing_is_read_when_memory_is_refused),
        cmocka_unit_test(test_announced_sizes_are_right),
        cmocka_unit_test(test_pieces_of_any_size_make_the_same_reply),
        cmocka_unit_test(test_number_that_is_not_finite_is_named),
        cmocka_unit_test(test_bound_saturates),
        cmocka_unit_test(test_every_failed_allocation_of_reading_is_reported),
        cmocka_unit_test(test_every_failed_allocation_of_writing_is_reported),
        cmocka_unit_test(test_every_failed_allocation_of_describing_is_reported),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
