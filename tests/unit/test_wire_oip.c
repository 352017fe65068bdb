/* SPDX-License-Identifier: Apache-2.0 */
/* The Open Inference Protocol: what is read from JSON and binary data, and what is
 * answered. What is refused stands in tests/http/test_oip_errors.py. */
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

#define FIRST_CHUNK ((size_t)256 * 1024) /* bytes; as base/arena.c has it */

/* A body: JSON, then bytes. */
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

static bool note(void *context, size_t bytes, struct wire_problem *problem) {
    (void)problem;
    *(size_t *)context = bytes;
    return true;
}

static bool refuse(void *context, size_t bytes, struct wire_problem *problem) {
    (void)context;
    (void)bytes;
    wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL, "no");
    return false;
}

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
        .reserve = note,
        .context = &reserved};
    bool read = wire_oip_read(&input, ret_request, &fixture->problem);
    assert_true(arena->used - used <= reserved);
    return read;
}

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
    const char *forms[] = {"[1,2,3,4,5,6,7,8]", "[[[1,2,3,4],[5,6,7,8]]]"};
    for (size_t i = 0; i < 2; i++) {
        char json[512];
        sprintf(json,
                "{\"inputs\":[" QUERIES_SHAPE "\"datatype\":\"FP64\",\"data\":%s}]}",
                forms[i]);
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

static void test_aligned_float32_is_used_where_it_lies(void **state) {
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
        assert_true(fixture->request.in_body);
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

static void test_lengths_of_both_types_and_forms(void **state) {
    struct fixture *fixture = *state;
    const int64_t wide[] = {2, 0};
    const int32_t narrow[] = {2, 0};
    const struct {
        const char *form;
        const void *bytes;
        size_t size;
    } forms[] = {
        {"\"datatype\":\"INT32\",\"data\":[2,0]}", "", 0},
        {"\"datatype\":\"INT64\",\"data\":[[2,0]]}", "", 0},
        {"\"datatype\":\"INT32\"," BINARY("8"), narrow, sizeof narrow},
        {"\"datatype\":\"INT64\"," BINARY("16"), wide, sizeof wide},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char json[512];
        sprintf(json,
                "{\"inputs\":[{\"name\":\"valid_lens\",\"shape\":[1,2],%s," QUERIES_SHAPE
                "\"datatype\":\"FP32\",\"data\":[1,2,3,4,5,6,7,8]}]}",
                forms[i].form);
        struct body body = make_body(json, forms[i].bytes, forms[i].size);
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
        .reserve = refuse};
    arena_reset(&fixture->arena);
    assert_false(wire_oip_read(&input, &fixture->request, &fixture->problem));
    assert_int_equal(fixture->problem.status, 413);
    assert_int_equal(fixture->arena.used, 0);
    free(body.data);
}

/* --- writing --- */

#define SEQUENCES 2
#define LENGTH    40

/* A call for all outputs, and results for it. */
struct reply {
    struct wire_oip_reply oip;
    struct wire_request request;
    size_t lens[SEQUENCES];
    attn_sizes sizes;
    attn_result result;
};

static void make_reply(struct fixture *fixture, struct reply *reply, int forms) {
    static float outputs[SEQUENCES * LENGTH * 4],
        weights[SEQUENCES * 2 * LENGTH * LENGTH];
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        weights[i] = i % 5 == 0 ? 0.0f : 1.0f / (float)i - 0.01f;
    memcpy(outputs, weights, sizeof outputs);
    *reply = (struct reply){
        .oip = {.id = "\"x\"",
                .id_size = 3,
                .num_outputs = 2,
                .outputs = {{false, (forms & 1) != 0}, {true, (forms & 2) != 0}}},
        .lens = {LENGTH, LENGTH},
        .sizes = {.num_queries = SEQUENCES * LENGTH,
                  .outputs = sizeof outputs / sizeof outputs[0],
                  .weights = sizeof weights / sizeof weights[0]},
        .result = {outputs, weights},
    };
    reply->request = (struct wire_request){.model = fixture->models[MODEL_D2L],
                                           .batched = true,
                                           .oip = &reply->oip,
                                           .batch = {.num_sequences = SEQUENCES,
                                                     .query_lens = reply->lens,
                                                     .key_lens = reply->lens,
                                                     .need_weights = ATTN_WEIGHTS_ALL}};
}

/* Writes the reply in pieces of `piece` bytes; 0: at once. */
static char *encode(struct fixture *fixture, const struct reply *reply, size_t piece,
                    size_t *ret_size, struct wire_reply_head *ret_head) {
    size_t bound = wire_oip_writer.bound(&reply->request, &reply->sizes), size = 0,
           written;
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

static void test_sizes_that_are_told_are_right(void **state) {
    for (int forms = 0; forms < 4; forms++) {
        struct reply reply;
        struct wire_reply_head head;
        size_t size;
        make_reply(*state, &reply, forms);
        char *text = encode(*state, &reply, 0, &size, &head);
        bool binary = forms != 0;
        assert_string_equal(head.content_type,
                            binary ? "application/octet-stream" : "application/json");
        assert_true(head.size == (binary ? size : WIRE_NO_SIZE));
        assert_true(binary == (head.json_size != WIRE_NO_SIZE));
        json_t *root = json_loadb(text, binary ? head.json_size : size, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(root, "id")), "x");
        json_decref(root);
        const char *bytes = text + (binary ? head.json_size : size);
        if ((forms & 1) != 0) {
            size_t outputs = reply.sizes.outputs * sizeof(float);
            assert_memory_equal(bytes, reply.result.outputs, outputs);
            bytes += outputs;
        }
        if ((forms & 2) != 0)
            assert_memory_equal(bytes, reply.result.weights,
                                reply.sizes.weights * sizeof(float));
        free(text);
    }
}

static void test_pieces_of_any_size_make_the_same_reply(void **state) {
    for (int forms = 0; forms < 4; forms++) {
        struct reply reply;
        struct wire_reply_head head;
        size_t size, whole_size;
        make_reply(*state, &reply, forms);
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
    for (int forms = 0; forms < 4; forms++) {
        make_reply(fixture, &reply, forms);
        size_t index = ((1 * 2 + 1) * LENGTH + 2) * LENGTH + 0; /* of 2 heads */
        reply.result.weights[index] = forms % 2 == 0 ? NAN : -INFINITY;
        assert_null(wire_oip_writer.begin(&fixture->arena, &reply.request, &reply.result,
                                          &head, &fixture->problem));
        assert_int_equal(fixture->problem.status, 422);
        assert_non_null(strstr(fixture->problem.detail, "attention_weights[1][1][2][0]"));
    }
}

static void test_bound_saturates(void **state) {
    struct reply reply;
    make_reply(*state, &reply, 2);
    reply.sizes.outputs = SIZE_MAX / 4;
    assert_true(wire_oip_writer.bound(&reply.request, &reply.sizes) == SIZE_MAX);
    reply.sizes.outputs = 1;
    reply.sizes.weights = SIZE_MAX / 2;
    assert_true(wire_oip_writer.bound(&reply.request, &reply.sizes) == SIZE_MAX);
}

/* --- no memory --- */

/* Makes an arena with room for `allocations` small ones before it needs a new chunk. */
static void fill_arena(struct arena *arena, size_t allocations) {
    size_t max = FIRST_CHUNK - 2 * ARENA_ALIGNMENT; /* its header, and the first one */
    arena_init(arena, 0);
    assert_non_null(arena_alloc(arena, 1, 1));
    assert_non_null(arena_alloc(arena, 1, max - allocations * ARENA_ALIGNMENT));
}

static void assert_no_memory(const struct fixture *fixture) {
    assert_int_equal(fixture->problem.status, 503);
    assert_string_equal(fixture->problem.title, "Out of memory");
}

/* Reads with every allocation failing in turn. Returns how many were failed. */
static size_t fail_each_read(struct fixture *fixture, const struct body *body,
                             size_t allocations) {
    for (size_t nth = 1;; nth++) {
        struct arena arena;
        fill_arena(&arena, allocations);
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

static void test_every_failed_allocation_of_reading_is_told(void **state) {
    const char *json =
        "{\"id\":\"seven\",\"inp\\u0075ts\":[" QUERIES_SHAPE
        "\"datatype\":\"FP32\",\"data\":[[[0.12345678901234567e-05,2,3,4],[1,2,3,4]]]},"
        "{\"name\":\"keys\",\"shape\":[1,2,4],\"datatype\":\"FP16\",\"data\":"
        "[1,2,3,4,5,6,7,8]},{\"name\":\"values\",\"shape\":[1,2,4],\"datatype\":"
        "\"FP64\"," BINARY(
            "64") ",{\"name\":\"valid_lens\",\"shape\":[1],\"datatype\":"
                  "\"INT32\",\"data\":[1]},{\"name\":\"head_mask\",\"shape\":[2],"
                  "\"datatype\":"
                  "\"BF16\"," BINARY(
                      "4") "],\"parameters\":{\"need_weights\":\"mean\"},"
                           "\"outputs\":[{\"name\":\"attention_weights\"}]}";
    const unsigned char bytes[68] = {0};
    struct body body = make_body(json, bytes, sizeof bytes);
    read_body(*state, &body);
    for (size_t allocations = 0; allocations < 16; allocations++)
        assert_true(fail_each_read(*state, &body, allocations) >= 6);
    free(body.data);
}

static void test_every_failed_allocation_of_writing_is_told(void **state) {
    struct fixture *fixture = *state;
    struct reply reply;
    struct wire_reply_head head;
    make_reply(fixture, &reply, 2);
    for (size_t allocations = 0; allocations < 8; allocations++) {
        struct arena arena;
        fill_arena(&arena, allocations);
        fail_alloc_at(1);
        void *encoder = wire_oip_writer.begin(&arena, &reply.request, &reply.result,
                                              &head, &fixture->problem);
        assert_true(fail_alloc_stop());
        assert_null(encoder);
        assert_no_memory(fixture);
        arena_deinit(&arena);
    }
}

/* Prints the `which`th text; ATTN_E_VALUE past the last. */
static attn_status print_text(const struct fixture *fixture, int which,
                              struct buf *body) {
    const attn_model *const *models = (const attn_model *const *)fixture->models;
    const attn_model_info *info = attn_model_get_info(models[MODEL_NARROW]);
    const struct wire_oip_statistics statistics[NUM_MODELS] = {{.inference_count = 7}};
    const struct wire_problem problem = {.status = 400, .title = "T", .detail = "d"};
    switch (which) {
    case 0:
        return wire_oip_print_server(body);
    case 1:
        return wire_oip_print_model(info, body);
    case 2:
        return wire_oip_print_ready(info, true, body);
    case 3:
        return wire_oip_print_config(info, body);
    case 4:
        return wire_oip_print_statistics(models, statistics, NUM_MODELS, body);
    case 5:
        return wire_oip_print_index(models, NUM_MODELS, false, body);
    case 6:
        return wire_oip_error_format.print(&problem, body);
    default:
        return ATTN_E_VALUE;
    }
}

static void test_every_failed_allocation_of_telling_is_told(void **state) {
    int which = 0;
    for (;; which++) {
        attn_status status = ATTN_E_NOMEM;
        for (size_t nth = 1; status == ATTN_E_NOMEM; nth++) {
            struct buf body;
            buf_init(&body, SIZE_MAX);
            fail_alloc_at(nth);
            status = print_text(*state, which, &body);
            bool failed = fail_alloc_stop();
            assert_true(failed == (status == ATTN_E_NOMEM));
            if (status == ATTN_OK) {
                json_t *root =
                    json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
                assert_non_null(root);
                assert_true(nth > 1);
                json_decref(root);
            }
            buf_deinit(&body);
        }
        if (status == ATTN_E_VALUE)
            break;
    }
    assert_int_equal(which, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_is_read_flat_and_nested),
        cmocka_unit_test(test_aligned_float32_is_used_where_it_lies),
        cmocka_unit_test(test_every_binary_type_is_converted),
        cmocka_unit_test(test_lengths_of_both_types_and_forms),
        cmocka_unit_test(test_nothing_is_read_when_memory_is_refused),
        cmocka_unit_test(test_sizes_that_are_told_are_right),
        cmocka_unit_test(test_pieces_of_any_size_make_the_same_reply),
        cmocka_unit_test(test_number_that_is_not_finite_is_named),
        cmocka_unit_test(test_bound_saturates),
        cmocka_unit_test(test_every_failed_allocation_of_reading_is_told),
        cmocka_unit_test(test_every_failed_allocation_of_writing_is_told),
        cmocka_unit_test(test_every_failed_allocation_of_telling_is_told),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
