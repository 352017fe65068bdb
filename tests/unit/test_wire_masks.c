/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_masks.c: bias, attn_mask and prefix_lens of requests in every format: what is
 * read, and that each failed allocation is reported. tests/http/test_attn_mask.py and
 * test_prefix_lens.py have the errors and the replies. */
#include "fail_alloc.h"
#include "weights_file.h"
#include "wire/oip/oip.h"
#include "wire/safetensors/safetensors.h"
#include "wire_fixture.h"

#include <math.h>

#define MASK_ROOMS 24 /* arenas with room for fewer allocations than a body needs */

/* A body of any format. */
struct mask_body {
    const char *what;
    wire_read *read;
    const void *bytes;
    size_t size, json_size;
    bool given; /* it is without a model */
    /* In order of its numbers; the bias has the shape [1][Tk]. */
    float bias[2];
    size_t prefix;
};

#define MASK_ROWS         "[[1,2,3,4],[5,6,7,8]]"
#define MASK_JSON(fields) "{\"queries\":" MASK_ROWS ",\"causal\":true," fields "}"
#define GIVEN_JSON(fields)                                                               \
    "{\"queries\":" MASK_ROWS ",\"keys\":" MASK_ROWS ",\"num_heads\":2,\"causal\":true," \
    "\"need\":[\"weights\"]," fields "}"
#define OIP_JSON(inputs)                                                                 \
    "{\"parameters\":{\"causal\":true},\"inputs\":[{\"name\":\"queries\",\"shape\":[1,"  \
    "2,4],\"datatype\":\"FP32\",\"data\":[1,2,3,4,5,6,7,8]}," inputs                     \
    ",{\"name\":\"prefix_lens\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[2]}]}"
#define OIP_MASK(name, datatype, data)                                                   \
    "{\"name\":\"" name "\",\"shape\":[1,2],\"datatype\":\"" datatype "\"," data "}"
#define OIP_BINARY(size) "\"parameters\":{\"binary_data_size\":" size "}"

/* A body of JSON alone. */
#define TEXT(text) .bytes = (text), .size = sizeof(text) - 1, .json_size = WIRE_NO_SIZE
/* The binary data of a body behind its JSON. */
#define DATA(text, data)                                                                 \
    .bytes = text data, .size = sizeof(text data) - 1, .json_size = sizeof(text) - 1

static const struct mask_body mask_bodies[] = {
    {"bias", wire_native_read,
     TEXT(MASK_JSON("\"bias\":[[-0.5,null]],\"prefix_lens\":1")),
     .bias = {-0.5F, -INFINITY}, .prefix = 1},
    {"numbers", wire_native_read,
     TEXT(MASK_JSON("\"attn_mask\":[0.12345678901234567,-2]")),
     .bias = {0.12345679F, -2}},
    {"booleans", wire_native_read,
     TEXT(MASK_JSON("\"attn_mask\":[true,false],\"prefix_lens\":2")),
     .bias = {0, -INFINITY}, .prefix = 2},
    {"given bias", wire_native_read, .given = true,
     TEXT(GIVEN_JSON("\"bias\":[3,null],\"prefix_lens\":2")), .bias = {3, -INFINITY},
     .prefix = 2},
    {"given booleans", wire_native_read, .given = true,
     TEXT(GIVEN_JSON("\"attn_mask\":[[false,true]]")), .bias = {-INFINITY, 0}},
    {"OIP, numbers", wire_oip_read,
     TEXT(OIP_JSON(OIP_MASK("bias", "FP32", "\"data\":[[1,-2]]"))), .bias = {1, -2},
     .prefix = 2},
    {"OIP, booleans", wire_oip_read,
     TEXT(OIP_JSON(OIP_MASK("attn_mask", "BOOL", "\"data\":[true,false]"))),
     .bias = {0, -INFINITY}, .prefix = 2},
    {"OIP, binary booleans", wire_oip_read,
     DATA(OIP_JSON(OIP_MASK("attn_mask", "BOOL", OIP_BINARY("2"))), "\0\1"),
     .bias = {-INFINITY, 0}, .prefix = 2},
    {"OIP, binary halves", wire_oip_read,
     DATA(OIP_JSON(OIP_MASK("attn_mask", "FP16", OIP_BINARY("4"))), "\0\x38\0\xc0"),
     .bias = {0.5F, -2}, .prefix = 2},
};

/* Reads a body in no more memory than is reserved. */
static bool read_mask_body(struct fixture *fixture, const struct mask_body *body) {
    size_t reserved = 0, used = fixture->arena.used;
    const struct wire_input input = {
        .body = body->bytes,
        .size = body->size,
        .json_size = body->json_size,
        .models = body->given ? NULL : (const attn_model *const *)fixture->models,
        .num_models = !body->given,
        .arena = &fixture->arena,
        .reserve = fixture_reserve,
        .context = &reserved};
    bool done = body->read(&input, &fixture->request, &fixture->problem);
    assert_true(fixture->arena.used - used <= reserved);
    return done;
}

/* Reads the body, checks what became of it, and then reads it in arenas with less and
 * less room, whose next chunk cannot be had. */
static void check_mask_body(struct fixture *fixture, const struct mask_body *body) {
    const attn_request *batch = &fixture->request.batch;
    size_t failures = 0;

    arena_reset(&fixture->arena);
    if (!read_mask_body(fixture, body))
        fail_msg("%s: %s", body->what, fixture->problem.detail);
    assert_true(batch->bias[0] == body->bias[0] && batch->bias[1] == body->bias[1]);
    assert_true(batch->bias_row_ld == 0 && batch->bias_head_ld == 0 &&
                batch->bias_sequence_ld == 0);
    assert_true(body->prefix == 0 ? batch->prefix_lens == NULL
                                  : batch->prefix_lens[0] == body->prefix);

    for (size_t room = 0; room < MASK_ROOMS; room++) {
        bool failed = true;
        for (size_t nth = 1; failed; nth++) {
            struct fixture small = *fixture;
            fixture_fill_arena(&small.arena, room);
            fail_alloc_at(nth);
            bool done = read_mask_body(&small, body);
            failed = fail_alloc_stop();
            arena_deinit(&small.arena);
            assert_int_equal(done, !failed);
            if (failed)
                assert_string_equal(small.problem.title, "Out of memory");
            failures += failed;
        }
    }
    print_message("%s: %zu allocations failed\n", body->what, failures);
    assert_true(failures >= 3);
}

static void test_masks_are_read_or_memory_is_missing(void **state) {
    for (size_t i = 0; i < sizeof mask_bodies / sizeof *mask_bodies; i++)
        check_mask_body(*state, &mask_bodies[i]);
}

/* A file of safetensors, whose mask is copied where it is not aligned floats. */
static void check_mask_file(struct fixture *fixture, const char *name, const char *type,
                            const void *mask, size_t size, const float expected[2]) {
    static const int64_t prefix = 1;
    struct weights_file made = {0};
    size_t file_size;

    file_add_text(&made, "\"__metadata__\":{\"model\":\"d2l\",\"causal\":\"true\"}");
    file_add(&made, name, type, "[1,2]", mask, size);
    file_add(&made, "prefix_lens", "I64", "[1]", &prefix, sizeof prefix);
    file_add_f32(&made, "queries", 2, 4, 1);
    unsigned char *file = file_make(&made, &file_size);
    check_mask_body(fixture, &(struct mask_body){.what = type,
                                                 .read = wire_safetensors_read,
                                                 .bytes = file,
                                                 .size = file_size,
                                                 .json_size = WIRE_NO_SIZE,
                                                 .bias = {expected[0], expected[1]},
                                                 .prefix = 1});
    free(file);
}

static void test_masks_of_safetensors_are_read_or_memory_is_missing(void **state) {
    static const float numbers[] = {0.5F, -INFINITY}, seen[] = {0, -INFINITY};
    static const uint16_t halves[] = {0x3800, 0xfc00};
    static const unsigned char booleans[] = {1, 0};

    check_mask_file(*state, "bias", "F32", numbers, sizeof numbers, numbers);
    check_mask_file(*state, "attn_mask", "F16", halves, sizeof halves, numbers);
    check_mask_file(*state, "attn_mask", "BOOL", booleans, sizeof booleans, seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_are_read_or_memory_is_missing),
        cmocka_unit_test(test_masks_of_safetensors_are_read_or_memory_is_missing),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
