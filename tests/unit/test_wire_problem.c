/* SPDX-License-Identifier: Apache-2.0 */
/* The text of problems and of descriptions of models. */
#include "fail_alloc.h"
#include "math/model.h"
#include "wire/models.h"
#include "wire/native/describe.h"
#include "wire/problem.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns the text of `body` with a terminator, and empties `body`. */
static char *take_text(struct buf *body) {
    size_t size;
    buf_append(body, "", 1);
    assert_int_equal(body->status, ATTN_OK);
    return buf_take(body, &size);
}

static char *print_problem(const struct wire_problem *problem) {
    struct buf body;
    buf_init(&body, 1 << 16);
    wire_problem_print(problem, &body);
    return take_text(&body);
}

static void test_problem_prints_only_what_it_has(void **state) {
    (void)state;
    struct wire_problem problem;
    wire_problem_set(&problem, WIRE_E_UNKNOWN_ROUTE, NULL, "no %s", "such thing");
    char *text = print_problem(&problem);
    assert_string_equal(
        text,
        "{\"status\":404,\"title\":\"Unknown route\",\"detail\":\"no such thing\"}");
    free(text);
}

static void test_problem_embeds_expected_and_got_as_json(void **state) {
    (void)state;
    struct wire_problem problem;
    wire_problem_set(&problem, WIRE_E_SHAPE_MISMATCH, "keys", "99 wide");
    strcpy(problem.expected, "[2,null,100]");
    strcpy(problem.got, "[2,null,99]");
    char *text = print_problem(&problem);
    assert_string_equal(text,
                        "{\"status\":400,\"title\":\"Shape mismatch\",\"field\":\"keys\","
                        "\"expected\":[2,null,100],\"got\":[2,null,99],"
                        "\"detail\":\"99 wide\"}");
    free(text);
}

static void test_problem_escapes_what_json_must_escape(void **state) {
    (void)state;
    struct wire_problem problem;
    wire_problem_set(&problem, WIRE_E_UNKNOWN_KEY, "\"\\\n", "\x01\x7f tab\t \xC3\xA9 %s",
                     "\xF0\x9F\x98\x80");
    char *text = print_problem(&problem);
    assert_non_null(strstr(text, "\"field\":\"\\\"\\\\\\u000a\""));
    assert_non_null(
        strstr(text, "\"\\u0001\\u007f tab\\u0009 \xC3\xA9 \xF0\x9F\x98\x80\""));
    free(text);
}

static void test_bytes_that_are_not_utf8_become_question_marks(void **state) {
    (void)state;
    static const struct {
        const char *detail, *printed;
    } cases[] = {
        {"a\xFFz", "\"a?z\""},
        {"a\x80z", "\"a?z\""},                /* continuation without lead */
        {"a\xC0\xAFz", "\"a??z\""},           /* overlong */
        {"a\xE0\x80\x80z", "\"a???z\""},      /* overlong */
        {"a\xF0\x80\x80\x80z", "\"a????z\""}, /* overlong */
        {"a\xED\xA0\x80z", "\"a???z\""},      /* surrogate */
        {"a\xF4\x90\x80\x80z", "\"a????z\""}, /* over U+10FFFF */
        {"a\xC3", "\"a?\""},                  /* cut */
        {"a\xE2\x82", "\"a??\""},             /* cut */
        {"\xED\x9F\xBF\xEE\x80\x80",
         "\"\xED\x9F\xBF\xEE\x80\x80\""},             /* about surrogates */
        {"\xF4\x8F\xBF\xBF", "\"\xF4\x8F\xBF\xBF\""}, /* U+10FFFF */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_problem problem;
        wire_problem_set(&problem, WIRE_E_BAD_REQUEST, NULL, "%s", cases[i].detail);
        char *text = print_problem(&problem);
        assert_non_null(strstr(text, cases[i].printed));
        json_t *root = json_loads(text, 0, NULL);
        assert_non_null(root);
        json_decref(root);
        free(text);
    }
}

static void test_long_texts_are_cut_and_stay_json(void **state) {
    (void)state;
    struct wire_problem problem;
    char wide[2001];
    for (size_t i = 0; i < 2000; i += 2)
        memcpy(wide + i, "\xC3\xA9", 2);
    wide[2000] = '\0';
    wire_problem_set(&problem, WIRE_E_BAD_REQUEST, wide, "x%s", wide);
    char *text = print_problem(&problem);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_int_equal(json_string_length(json_object_get(root, "detail")),
                     sizeof problem.detail - 1);
    json_decref(root);
    free(text);
}

static void test_problem_reports_a_full_buffer_at_every_size(void **state) {
    (void)state;
    struct wire_problem problem;
    wire_problem_set(&problem, WIRE_E_SHAPE_MISMATCH, "keys", "99 wide");
    strcpy(problem.expected, "1");
    strcpy(problem.got, "2");
    char *text = print_problem(&problem);
    for (size_t max = 0; max < strlen(text); max++) {
        struct buf body;
        buf_init(&body, max);
        wire_problem_print(&problem, &body);
        assert_int_equal(body.status, ATTN_E_NOMEM);
        buf_deinit(&body);
    }
    free(text);
}

static attn_model *create_model(const char *name) {
    attn_model *model;
    attn_model_info info = {
        .layout = "d2l",
        .width = {.query = 3, .key = 2, .value = 1, .out = 5, .head = 4},
        .num_heads = 2,
        .linears[ATTN_VALUE].bias = true};
    strcpy(info.name, name);
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    return model;
}

static void test_model_is_described_with_every_size(void **state) {
    (void)state;
    struct buf body;
    buf_init(&body, 1 << 16);
    attn_model *model = create_model("a \"b\"");
    wire_native_print_model(attn_model_get_info(model), &body);
    char *text = take_text(&body);
    char expected[2048];
    snprintf(
        expected, sizeof expected,
        "{\"name\":\"a \\\"b\\\"\",\"layout\":\"d2l\",\"family\":null,\"layer\":null,"
        "\"kind\":null,\"scoring\":\"scaled_dot_product\","
        "\"query_size\":3,\"key_size\":2,\"value_size\":1,\"out_size\":5,"
        "\"num_heads\":2,\"head_size\":4,\"key_head_size\":4,\"num_kv_heads\":2,"
        "\"causal\":false,\"window\":null,\"chunk\":null,\"context_length\":null,"
        "\"scale\":0.5,\"softcap\":null,"
        "\"clip\":null,\"clip_last\":false,\"sinks\":false,\"distance_bias\":null,"
        "\"latent\":null,\"rope\":null,\"query_factor\":null,\"norms\":null,"
        "\"value_norm\":null,\"gate\":false,\"out_norm\":null,"
        "\"queries\":\"hidden states as they are\",\"pre_norm\":null,"
        "\"output_projection\":false,\"bias\":true,\"engine\":\"none\",\"cpu\":\"none\","
        "\"precision\":\"none\",\"parameters\":56,\"bytes\":%zu,\"memory\":%zu}",
        attn_model_get_info(model)->footprint.bytes,
        attn_model_get_info(model)->footprint.memory);
    assert_string_equal(text, expected);
    free(text);
    attn_model_destroy(model);
}

static void
test_model_is_described_as_additive_and_causal_with_its_context_length(void **state) {
    (void)state;
    struct buf body;
    buf_init(&body, 1 << 16);
    attn_model_info info = {.name = "x",
                            .layout = "torch",
                            .score.kind = ATTN_ADDITIVE,
                            .mask.causal = true,
                            .context_length = 6,
                            .linears[ATTN_OUTPUT].weight = true};
    wire_native_print_model(&info, &body);
    char *text = take_text(&body);
    assert_non_null(strstr(text, "\"scoring\":\"additive\""));
    assert_non_null(strstr(text, "\"causal\":true,\"window\":null,\"chunk\":null,"
                                 "\"context_length\":6,\"scale\":null"));
    assert_non_null(strstr(text, "\"output_projection\":true,\"bias\":false"));
    free(text);
}

static void test_layer_of_a_folder_is_described_with_its_features(void **state) {
    (void)state;
    struct buf body;
    buf_init(&body, 1 << 16);
    attn_model_info info = {
        .name = "m.decoder.3.cross",
        .layout = "made_up",
        .kind = "cross",
        .layer = 0,
        .num_heads = 8,
        .width.head = 16,
        .num_kv_heads = 2,
        .mask = {.window = 4096, .chunk = 8192},
        .score = {.scale = 0.0625,
                  .softcap = 50,
                  .sinks = true,
                  .bias = ATTN_BIAS_BUCKETS},
        .projection = {.clip = 8, .clip_last = true},
        .linears[ATTN_GATE].weight = true,
        .out_norm = {.kind = ATTN_NORM_RMS, .eps = 1e-5},
        .rotation = {.size = 8, .type = "llama3", .base = 500000, .values = true},
        .query_factor = {.beta = 0.1, .length = 8192, .offset = 1},
        .value_norm = {.kind = ATTN_NORM_RMS, .eps = 1e-6},
        .head_norm = {.kind = ATTN_NORM_RMS, .whole = true, .eps = 1e-6},
        .pre_norm = {.kind = ATTN_NORM_LAYER,
                     .name = "ln_1.weight",
                     .bias = true,
                     .applied = true,
                     .eps = 1e-5}};
    wire_native_print_model(&info, &body);
    char *text = take_text(&body);
    assert_non_null(
        strstr(text, "\"family\":\"made_up\",\"layer\":0,\"kind\":\"cross\""));
    assert_non_null(strstr(text, "\"num_kv_heads\":2,\"causal\":false,\"window\":4096,"
                                 "\"chunk\":8192,"));
    assert_non_null(strstr(text, "\"scale\":0.0625,\"softcap\":50,\"clip\":8,"
                                 "\"clip_last\":true,\"sinks\":true,"
                                 "\"distance_bias\":\"buckets\","));
    assert_non_null(strstr(
        text, "\"rope\":{\"type\":\"llama3\",\"size\":8,\"base\":500000,\"values\":true},"
              "\"query_factor\":{\"beta\":0.1,\"length\":8192,\"offset\":1},"
              "\"norms\":{\"type\":\"rms\",\"over\":\"row\",\"per_head\":false,"
              "\"last\":false,\"bias\":false,\"eps\":1e-06},"
              "\"value_norm\":{\"type\":\"rms\",\"eps\":1e-06},"
              "\"gate\":true,\"out_norm\":{\"type\":\"rms\",\"eps\":1e-05},"));
    assert_non_null(strstr(text,
                           "\"queries\":\"what enters cross attention, before its norm\","
                           "\"pre_norm\":{\"name\":\"ln_1.weight\",\"type\":\"layer\","
                           "\"bias\":true,\"eps\":1e-05,\"applied\":true}"));
    free(text);
}

static void test_models_are_listed_in_order(void **state) {
    (void)state;
    struct buf body;
    buf_init(&body, 1 << 16);
    attn_model *models[] = {create_model("first"), create_model("second")};
    wire_native_print_models((const attn_model *const *)models, 2, &body);
    char *text = take_text(&body);
    json_t *root = json_loads(text, 0, NULL);
    json_t *list = json_object_get(root, "models");
    assert_int_equal(json_array_size(list), 2);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(list, 0), "name")), "first");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(list, 1), "name")), "second");
    json_decref(root);
    free(text);
    buf_init(&body, 1 << 16);
    wire_native_print_models(NULL, 0, &body);
    text = take_text(&body);
    assert_string_equal(text, "{\"models\":[]}");
    free(text);
    attn_model_destroy(models[0]);
    attn_model_destroy(models[1]);
}

static void test_models_report_every_failed_allocation(void **state) {
    (void)state;
    attn_model *models[] = {create_model("first"), create_model("second")};
    size_t nth = 1;
    for (;; nth++) {
        struct buf body;
        buf_init(&body, 1 << 16);
        fail_alloc_at(nth);
        wire_native_print_models((const attn_model *const *)models, 2, &body);
        attn_status status = body.status;
        bool failed = fail_alloc_stop();
        buf_deinit(&body);
        if (!failed)
            break;
        assert_int_equal(status, ATTN_E_NOMEM);
    }
    assert_true(nth > 1);
    attn_model_destroy(models[0]);
    attn_model_destroy(models[1]);
}

static void test_models_report_a_full_buffer_at_every_size(void **state) {
    (void)state;
    attn_model *model = create_model("first");
    const attn_model *models[] = {model, model};
    struct buf body;
    buf_init(&body, 1 << 16);
    wire_native_print_models(models, 2, &body);
    assert_int_equal(body.status, ATTN_OK);
    size_t size = body.size;
    buf_deinit(&body);
    for (size_t max = 0; max < size; max++) {
        buf_init(&body, max);
        wire_native_print_models(models, 2, &body);
        assert_int_equal(body.status, ATTN_E_NOMEM);
        buf_deinit(&body);
    }
    attn_model_destroy(model);
}

static void test_every_error_of_the_catalogue_is_complete_and_distinct(void **state) {
    (void)state;
    for (int i = 0; i < WIRE_NUM_ERRORS; i++) {
        const struct wire_error_entry *entry = wire_error_get((enum wire_error)i);
        assert_in_range(entry->status, 400, 599);
        assert_true(strlen(entry->title) > 0);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(entry->title,
                                    wire_error_get((enum wire_error)j)->title);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_error_of_the_catalogue_is_complete_and_distinct),
        cmocka_unit_test(test_problem_prints_only_what_it_has),
        cmocka_unit_test(test_problem_embeds_expected_and_got_as_json),
        cmocka_unit_test(test_problem_escapes_what_json_must_escape),
        cmocka_unit_test(test_bytes_that_are_not_utf8_become_question_marks),
        cmocka_unit_test(test_long_texts_are_cut_and_stay_json),
        cmocka_unit_test(test_problem_reports_a_full_buffer_at_every_size),
        cmocka_unit_test(test_model_is_described_with_every_size),
        cmocka_unit_test(
            test_model_is_described_as_additive_and_causal_with_its_context_length),
        cmocka_unit_test(test_layer_of_a_folder_is_described_with_its_features),
        cmocka_unit_test(test_models_are_listed_in_order),
        cmocka_unit_test(test_models_report_every_failed_allocation),
        cmocka_unit_test(test_models_report_a_full_buffer_at_every_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
