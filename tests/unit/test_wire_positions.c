/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_positions.c: positions, windows and needed results, as all protocols read
 * them. tests/data/invalid has the errors in JSON. */
#include "fail_alloc.h"
#include "weights_file.h"
#include "wire/oip/oip.h"
#include "wire/safetensors/safetensors.h"
#include "wire_fixture.h"

#define ROWS "[[1,2,3,4],[5,6,7,8]]"

/* wire_input.reserve: adds up what is asked for. */
static bool add_bytes(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)ret_problem;
    *(size_t *)context += bytes;
    return true;
}

/* Reads a body for one model, in no more memory than is reserved. */
static bool read_body(struct fixture *fixture, wire_read *read, const attn_model *model,
                      const void *body, size_t size) {
    size_t reserved = 0, used = fixture->arena.used;
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .models = &model,
                                     .num_models = 1,
                                     .arena = &fixture->arena,
                                     .reserve = add_bytes,
                                     .context = &reserved};
    bool done = read(&input, &fixture->request, &fixture->problem);
    assert_true(fixture->arena.used - used <= reserved);
    return done;
}

static const attn_request *read_native(struct fixture *fixture, const char *body) {
    arena_reset(&fixture->arena);
    if (!read_body(fixture, wire_native_read, fixture->models[MODEL_D2L], body,
                   strlen(body)))
        fail_msg("%s: %s", body, fixture->problem.detail);
    return &fixture->request.batch;
}

static void assert_positions(const size_t *positions, size_t count, const size_t *given) {
    assert_non_null(positions);
    assert_memory_equal(positions, given, count * sizeof *given);
}

static void test_positions_of_a_ragged_batch_follow_each_other(void **state) {
    static const size_t expected[] = {7, 0, 2147483647};
    const attn_request *batch =
        read_native(*state, "{\"queries\":[[[1,2,3,4]]," ROWS
                            "],\"positions\":[[7],[0,2147483647]]}");
    assert_positions(batch->positions, 3, expected);
    assert_positions(batch->key_positions, 3, expected); /* the keys are the queries */
}

static void test_one_list_of_positions_is_for_every_sequence(void **state) {
    static const size_t expected[] = {7, 3, 7, 3, 7, 3};
    const attn_request *batch = read_native(*state, "{\"queries\":[" ROWS "," ROWS
                                                    "," ROWS "],\"positions\":[7,3]}");
    assert_positions(batch->positions, 6, expected);
}

static void test_keys_of_their_own_have_positions_of_their_own(void **state) {
    static const size_t positions[] = {4, 5}, key_positions[] = {9};
    const attn_request *batch = read_native(
        *state, "{\"queries\":" ROWS ",\"keys\":[[1,2,3,4]],\"positions\":[4,5]}");
    assert_positions(batch->positions, 2, positions);
    assert_null(batch->key_positions);
    batch = read_native(*state, "{\"queries\":" ROWS
                                ",\"keys\":[[1,2,3,4]],\"key_positions\":[9.0]}");
    assert_null(batch->positions);
    assert_positions(batch->key_positions, 1, key_positions);
    batch = read_native(*state, "{\"queries\":" ROWS
                                ",\"positions\":[0,1],\"key_positions\":[4,5]}");
    assert_positions(batch->key_positions, 2, positions);
}

static void test_left_out_positions_stay_defaults(void **state) {
    const attn_request *batch =
        read_native(*state, "{\"queries\":" ROWS ",\"positions\":null}");
    assert_null(batch->positions);
    assert_null(batch->key_positions);
}

static void test_need_names_the_results(void **state) {
    static const struct {
        const char *need;
        bool outputs, heads, lse;
        attn_need_weights weights;
    } cases[] = {{"\"need\":null", true, false, false, ATTN_WEIGHTS_NONE},
                 {"\"need\":null,\"need_weights\":\"mean\"", true, false, false,
                  ATTN_WEIGHTS_MEAN},
                 {"\"need\":[\"outputs\"]", true, false, false, ATTN_WEIGHTS_NONE},
                 {"\"need\":[\"weights\"],\"need_weights\":null", false, false, false,
                  ATTN_WEIGHTS_ALL},
                 {"\"need\":[\"lse\",\"outputs\"]", true, false, true, ATTN_WEIGHTS_NONE},
                 {"\"need\":[\"l\\u0073e\", \"weights\" , \"heads\"]", false, true, true,
                  ATTN_WEIGHTS_ALL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"queries\":" ROWS ",%s}", cases[i].need);
        const attn_request *batch = read_native(*state, body);
        assert_int_equal(!batch->omit_outputs, cases[i].outputs);
        assert_int_equal(batch->need_heads, cases[i].heads);
        assert_int_equal(batch->need_lse, cases[i].lse);
        assert_int_equal(batch->need_weights, cases[i].weights);
    }
}

/* Makes a model like d2l that has a window, and is of that kind. */
static attn_model *make_model(const char *kind) {
    attn_model_info info = fixture_info(MODEL_D2L);
    attn_model *model;
    info.mask.window = 5;
    info.kind = kind;
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    return model;
}

/* Makes a safetensors body of two sequences of two rows, with some text of __metadata__
 * and positions of that shape. The caller frees it. */
static unsigned char *make_tensors(const char *metadata, const char *shape, size_t count,
                                   size_t *ret_size) {
    static const int32_t positions[] = {7, 3, 2, 1};
    static const float rows[16] = {0};
    struct weights_file made = {0};
    char text[256], header[sizeof made.header + 32];
    snprintf(text, sizeof text, "\"__metadata__\":{%s}", metadata);
    file_add_text(&made, text);
    file_add(&made, "queries", "F32", "[2,2,4]", rows, sizeof rows);
    file_add(&made, "positions", "I32", shape, positions, count * sizeof positions[0]);
    int size = snprintf(header, sizeof header, "{%s}", made.header);
    return file_make_raw(header, (size_t)size, made.data, made.data_size, ret_size);
}

static const char *const oip_body =
    "{\"parameters\":%s,\"inputs\":[{\"name\":\"queries\",\"shape\":[2,2,4],"
    "\"datatype\":\"FP32\",\"data\":[1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8]},{\"name\":"
    "\"positions\",\"shape\":[2],\"datatype\":\"INT32\",\"data\":[7,3]}],"
    "\"outputs\":[{\"name\":\"lse\"},{\"name\":\"heads\"}]}";

static void test_window_replaces_the_default_of_the_model(void **state) {
    static const struct {
        const char *native, *oip, *tensors;
        size_t window;
    } cases[] = {{"null", "null", "\"format\":\"pt\"", 5},
                 {"0", "{\"window\":0}", "\"window\":\"0\"", 0},
                 {"2147483647", "{\"window\":2147483647}", "\"window\":\"2147483647\"",
                  2147483647}};
    struct fixture *fixture = *state;
    attn_model *model = make_model("self");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        size_t size;
        unsigned char *tensors = make_tensors(cases[i].tensors, "[2]", 2, &size);
        arena_reset(&fixture->arena);
        snprintf(body, sizeof body, "{\"queries\":" ROWS ",\"window\":%s}",
                 cases[i].native);
        assert_true(read_body(fixture, wire_native_read, model, body, strlen(body)));
        assert_int_equal(fixture->request.batch.window, cases[i].window);
        snprintf(body, sizeof body, oip_body, cases[i].oip);
        assert_true(read_body(fixture, wire_oip_read, model, body, strlen(body)));
        assert_int_equal(fixture->request.batch.window, cases[i].window);
        assert_true(read_body(fixture, wire_safetensors_read, model, tensors, size));
        assert_int_equal(fixture->request.batch.window, cases[i].window);
        free(tensors);
    }
    attn_model_destroy(model);
}

static void test_other_protocols_carry_positions_and_needs(void **state) {
    static const size_t once[] = {7, 3, 7, 3}, each[] = {7, 3, 2, 1};
    struct fixture *fixture = *state;
    const attn_model *model = fixture->models[MODEL_D2L];
    const attn_request *batch = &fixture->request.batch;
    char body[512];
    size_t size;

    snprintf(body, sizeof body, oip_body, "null");
    arena_reset(&fixture->arena);
    assert_true(read_body(fixture, wire_oip_read, model, body, strlen(body)));
    assert_positions(batch->positions, 4, once);
    assert_positions(batch->key_positions, 4, once);
    assert_true(batch->omit_outputs && batch->need_heads && batch->need_lse);

    unsigned char *tensors =
        make_tensors("\"need\":\"lse, outputs,weights\"", "[2]", 2, &size);
    assert_true(read_body(fixture, wire_safetensors_read, model, tensors, size));
    assert_positions(batch->positions, 4, once);
    assert_true(!batch->omit_outputs && !batch->need_heads && batch->need_lse);
    assert_int_equal(batch->need_weights, ATTN_WEIGHTS_ALL);
    free(tensors);
    tensors = make_tensors("\"need\":\"heads\"", "[2,2]", 4, &size);
    assert_true(read_body(fixture, wire_safetensors_read, model, tensors, size));
    assert_positions(batch->positions, 4, each);
    assert_true(batch->omit_outputs && batch->need_heads);
    free(tensors);
}

static void assert_tensors_refused(struct fixture *fixture, const char *metadata,
                                   const char *shape, size_t count, const char *title,
                                   const char *detail) {
    size_t size;
    unsigned char *tensors = make_tensors(metadata, shape, count, &size);
    arena_reset(&fixture->arena);
    assert_false(read_body(fixture, wire_safetensors_read, fixture->models[MODEL_D2L],
                           tensors, size));
    assert_string_equal(fixture->problem.title, title);
    if (strstr(fixture->problem.detail, detail) == NULL)
        fail_msg("%s", fixture->problem.detail);
    free(tensors);
}

static void test_tensors_of_positions_must_have_one_for_each_row(void **state) {
    assert_tensors_refused(*state, "", "[4]", 4, "Shape mismatch",
                           "positions has shape [4]; send it with shape [2] for all "
                           "sequences, or [2,2]");
    assert_tensors_refused(*state, "", "[1,2]", 2, "Shape mismatch", "has shape [1,2]");
    assert_tensors_refused(*state, "", "[1,2,1]", 2, "Wrong rank",
                           "[2] for all sequences, or [2,2]; a number for each of three "
                           "axes (time, row, column) is only for layers whose "
                           "rotation has sections");
}

static void test_strings_of_need_name_the_results(void **state) {
    assert_tensors_refused(*state, "\"need\":\"\"", "[2]", 2, "Unknown output",
                           "need has ''; use outputs, contributions, projections, "
                           "weights, heads, lse, scores, spans, top, target, "
                           "received, entropy and blocks");
    assert_tensors_refused(*state, "\"need\":\"lse,\"", "[2]", 2, "Unknown output",
                           "need has ''");
    assert_tensors_refused(*state, "\"need\":\"lse lse\"", "[2]", 2, "Unknown output",
                           "need has 'lse lse'");
    assert_tensors_refused(*state, "\"need\":\"lse,lse\"", "[2]", 2, "Duplicate output",
                           "need has 'lse' twice");
    assert_tensors_refused(*state, "\"need\":\"lse\",\"need_weights\":\"true\"", "[2]", 2,
                           "Outputs disagree", "send need alone");
}

static void test_cross_attention_has_keys_and_no_positions(void **state) {
    static const struct {
        const char *body, *title, *field;
    } cases[] = {{"{\"queries\":" ROWS "}", "Missing key", "keys"},
                 {"{\"queries\":" ROWS ",\"keys\":" ROWS ",\"positions\":[0,1]}",
                  "Unknown key", "positions"},
                 {"{\"queries\":" ROWS ",\"keys\":" ROWS ",\"key_positions\":[0,1]}",
                  "Unknown key", "key_positions"}};
    struct fixture *fixture = *state;
    attn_model *model = make_model("cross");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        arena_reset(&fixture->arena);
        assert_false(read_body(fixture, wire_native_read, model, cases[i].body,
                               strlen(cases[i].body)));
        assert_string_equal(fixture->problem.title, cases[i].title);
        assert_string_equal(fixture->problem.field, cases[i].field);
        assert_non_null(strstr(fixture->problem.detail, "cross-attention layer"));
    }
    attn_model_destroy(model);
}

/* Makes a model like d2l whose rotation has sections. */
static attn_model *make_sections(void) {
    attn_model_info info = fixture_info(MODEL_D2L);
    attn_model *model;
    info.rotation.size = 2;
    info.rotation.type = "default";
    info.rotation.base = 100;
    info.rotation.axes = ATTN_AXES;
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    return model;
}

static void test_positions_of_three_axes_follow_each_other(void **state) {
    static const size_t one[] = {0, 1, 2, 3, 4, 5},
                        ragged[] = {7, 8, 9, 0, 1, 2, 3, 4, 5};
    static const struct {
        const char *body;
        const size_t *axes;
        size_t count;
    } cases[] = {{"{\"queries\":" ROWS ",\"positions\":[[0,1],[2,3],[4,5]]}", one, 6},
                 {"{\"queries\":[" ROWS "],\"positions\":[[[0,1],[2,3],[4,5]]]}", one, 6},
                 {"{\"queries\":[[[1,2,3,4]]," ROWS
                  "],\"positions\":[[[7],[8],[9]],[[0,1],[2,3],[4,5]]]}",
                  ragged, 9}};
    struct fixture *fixture = *state;
    const attn_request *batch = &fixture->request.batch;
    attn_model *model = make_sections();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        arena_reset(&fixture->arena);
        assert_true(read_body(fixture, wire_native_read, model, cases[i].body,
                              strlen(cases[i].body)));
        assert_positions(batch->axis_positions, cases[i].count, cases[i].axes);
        assert_positions(batch->axis_key_positions, cases[i].count, cases[i].axes);
        assert_null(batch->positions);
        assert_null(batch->key_positions);
    }
    attn_model_destroy(model);
}

static void test_sections_take_positions_of_one_axis(void **state) {
    static const char *const body =
        "{\"queries\":[" ROWS "," ROWS "],\"positions\":[[7,3],[2,1]],"
        "\"key_positions\":[[[0,1],[2,3],[4,5]],"
        "[[0,1],[2,3],[4,5]]]}";
    static const size_t positions[] = {7, 3, 2, 1};
    static const size_t axes[] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};
    struct fixture *fixture = *state;
    const attn_request *batch = &fixture->request.batch;
    attn_model *model = make_sections();
    arena_reset(&fixture->arena);
    assert_true(read_body(fixture, wire_native_read, model, body, strlen(body)));
    assert_positions(batch->positions, 4, positions);
    assert_null(batch->axis_positions);
    assert_null(batch->key_positions);
    assert_positions(batch->axis_key_positions, 12, axes);
    attn_model_destroy(model);
}

/* Reads a safetensors body of three rows; queries and positions have such shapes. */
static bool read_axes(struct fixture *fixture, const attn_model *model,
                      const char *queries, bool ragged, const char *shape) {
    static const int32_t lens[] = {1, 2}, positions[] = {7, 0, 1, 8, 2, 3, 9, 4, 5};
    static const float rows[12] = {0};
    struct weights_file made = {0};
    char header[sizeof made.header + 32];
    size_t size;
    file_add(&made, "queries", "F32", queries, rows, sizeof rows);
    file_add(&made, "positions", "I32", shape, positions, sizeof positions);
    if (ragged)
        file_add(&made, "query_lens", "I32", "[2]", lens, sizeof lens);
    int length = snprintf(header, sizeof header, "{%s}", made.header);
    unsigned char *body =
        file_make_raw(header, (size_t)length, made.data, made.data_size, &size);
    arena_reset(&fixture->arena);
    bool done = read_body(fixture, wire_safetensors_read, model, body, size);
    free(body);
    return done;
}

static void test_tensors_of_three_axes_are_of_each_sequence(void **state) {
    static const size_t sent[] = {7, 0, 1, 8, 2, 3, 9, 4, 5};
    static const size_t ragged[] = {7, 8, 9, 0, 1, 2, 3, 4, 5};
    struct fixture *fixture = *state;
    const attn_request *batch = &fixture->request.batch;
    struct wire_problem *problem = &fixture->problem;
    attn_model *model = make_sections();
    assert_true(read_axes(fixture, model, "[1,3,4]", false, "[1,3,3]"));
    assert_positions(batch->axis_positions, 9, sent);
    assert_true(read_axes(fixture, model, "[3,1,4]", false, "[3,3,1]"));
    assert_positions(batch->axis_positions, 9, sent);
    assert_true(read_axes(fixture, model, "[3,4]", false, "[3,3]"));
    assert_positions(batch->axis_positions, 9, sent);
    assert_true(read_axes(fixture, model, "[3,4]", true, "[3,3]"));
    assert_positions(batch->axis_positions, 9, ragged);
    assert_positions(batch->axis_key_positions, 9, ragged);

    assert_false(read_axes(fixture, model, "[3,4]", true, "[1,9]"));
    assert_string_equal(problem->title, "Shape mismatch");
    assert_string_equal(problem->expected, "[3,3]");
    assert_non_null(strstr(problem->detail, "shape [3], or [3,3]"));
    assert_false(read_axes(fixture, model, "[3,4]", false, "[1,3,3]"));
    assert_non_null(strstr(problem->detail, "shape [3], or [3,3]"));
    assert_false(read_axes(fixture, model, "[1,3,4]", false, "[1,1,9]"));
    assert_string_equal(problem->expected, "[1,3,3]");
    attn_model_destroy(model);
}

static void test_inputs_of_three_axes_have_their_shape(void **state) {
    static const struct {
        const char *queries, *shape, *wanted; /* NULL: it is read */
        bool sections;
    } cases[] = {
        {"[3,4]", "[3,3]", NULL, true},
        {"[1,3,4]", "[1,3,3]", NULL, true},
        {"[3,1,4]", "[3,3,1]", NULL, true},
        {"[3,4]", "[1,9]", "send it with shape [3], or [3,3]", true},
        {"[1,3,4]", "[1,9,1]", "[3] for all sequences, or [1,3], or [1,3,3]", true},
        {"[3,4]", "[3,3]", "send it with shape [3]; a number for each of three", false},
    };
    static const size_t sent[] = {7, 0, 1, 8, 2, 3, 9, 4, 5};
    struct fixture *fixture = *state;
    attn_model *model = make_sections();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        snprintf(
            body, sizeof body,
            "{\"inputs\":[{\"name\":\"queries\",\"shape\":%s,\"datatype\":\"FP32\","
            "\"data\":[1,2,3,4,5,6,7,8,1,2,3,4]},{\"name\":\"positions\",\"shape\":%s,"
            "\"datatype\":\"INT32\",\"data\":[7,0,1,8,2,3,9,4,5]}]}",
            cases[i].queries, cases[i].shape);
        arena_reset(&fixture->arena);
        bool done = read_body(fixture, wire_oip_read,
                              cases[i].sections ? model : fixture->models[MODEL_D2L],
                              body, strlen(body));
        assert_int_equal(done, cases[i].wanted == NULL);
        if (done)
            assert_positions(fixture->request.batch.axis_positions, 9, sent);
        else if (strstr(fixture->problem.detail, cases[i].wanted) == NULL)
            fail_msg("%s", fixture->problem.detail);
    }

    /* Data may be nested like its shape. */
    const char *nested =
        "{\"inputs\":[{\"name\":\"queries\",\"shape\":[1,3,4],\"datatype\":\"FP32\","
        "\"data\":[1,2,3,4,5,6,7,8,1,2,3,4]},{\"name\":\"positions\",\"shape\":[1,3,3],"
        "\"datatype\":\"INT32\",\"data\":[[[7,0,1],[8,2,3],[9,4,5]]]}]}";
    arena_reset(&fixture->arena);
    assert_true(read_body(fixture, wire_oip_read, model, nested, strlen(nested)));
    assert_positions(fixture->request.batch.axis_positions, 9, sent);
    attn_model_destroy(model);
}

static void test_lists_of_three_axes_are_three(void **state) {
    static const struct {
        const char *positions, *title, *detail;
    } cases[] = {
        {"[[0,1],[2,3]]", "Uneven rows", "positions has 2 elements"},
        {"[[0,1],[2,3],[4,5],[6,7]]", "Uneven rows", "send a list for each axis"},
        {"[[0,1],[2],[4,5]]", "Uneven rows", "positions[1] has 1 element"},
        {"[[0,1],[2,3],[4,2147483648]]", "Out of range", "positions[2][1]"},
        {"[[[0,1],[2,3],[4,5]]]", "Wrong rank", "positions has 3 levels"}};
    struct fixture *fixture = *state;
    attn_model *model = make_sections();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"queries\":" ROWS ",\"positions\":%s}",
                 cases[i].positions);
        arena_reset(&fixture->arena);
        assert_false(read_body(fixture, wire_native_read, model, body, strlen(body)));
        assert_string_equal(fixture->problem.title, cases[i].title);
        if (strstr(fixture->problem.detail, cases[i].detail) == NULL)
            fail_msg("%s", fixture->problem.detail);
    }
    attn_model_destroy(model);
}

static void test_every_failed_allocation_of_positions_is_reported(void **state) {
    static const char *const body =
        "{\"queries\":[" ROWS "," ROWS "],\"positions\":[7,3],"
        "\"key_positions\":[[1,2],[3,4]]}";
    struct fixture *fixture = *state;
    size_t failures = 0;
    for (size_t room = 0; room < 64; room++) {
        struct fixture small = *fixture;
        fixture_fill_arena(&small.arena, room);
        fail_alloc_at(1);
        bool read = read_body(&small, wire_native_read, fixture->models[MODEL_D2L], body,
                              strlen(body));
        bool failed = fail_alloc_stop();
        assert_int_equal(read, !failed);
        if (failed)
            assert_string_equal(small.problem.title, "Out of memory");
        failures += failed;
        arena_deinit(&small.arena);
    }
    assert_true(failures >= 3 && failures < 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions_of_a_ragged_batch_follow_each_other),
        cmocka_unit_test(test_one_list_of_positions_is_for_every_sequence),
        cmocka_unit_test(test_keys_of_their_own_have_positions_of_their_own),
        cmocka_unit_test(test_left_out_positions_stay_defaults),
        cmocka_unit_test(test_need_names_the_results),
        cmocka_unit_test(test_window_replaces_the_default_of_the_model),
        cmocka_unit_test(test_other_protocols_carry_positions_and_needs),
        cmocka_unit_test(test_tensors_of_positions_must_have_one_for_each_row),
        cmocka_unit_test(test_strings_of_need_name_the_results),
        cmocka_unit_test(test_cross_attention_has_keys_and_no_positions),
        cmocka_unit_test(test_positions_of_three_axes_follow_each_other),
        cmocka_unit_test(test_sections_take_positions_of_one_axis),
        cmocka_unit_test(test_tensors_of_three_axes_are_of_each_sequence),
        cmocka_unit_test(test_inputs_of_three_axes_have_their_shape),
        cmocka_unit_test(test_lists_of_three_axes_are_three),
        cmocka_unit_test(test_every_failed_allocation_of_positions_is_reported),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
