/* SPDX-License-Identifier: Apache-2.0 */
/* test_entry_layers.c: files and folders as a program opens them: golden cases, the text
 * that describes layers, options, files that are replaced, and lack of memory. */
#include "fail_alloc.h"
#include "new_file.h"

#include <attnd/program.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#define GOLDEN TEST_DATA "/golden/"
#define QWEN   TEST_DATA "/hf/qwen3"

static attn_layers *open_path(const char *name, const char *options) {
    attn_layers *layers = NULL;
    attn_error error = {.text = ""};
    if (attn_layers_open(name, options, &layers, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    return layers;
}

static void refuse_path(attn_status expected, const char *text, const char *name,
                        const char *options) {
    attn_layers *layers = NULL;
    attn_error error = {.text = ""};
    assert_int_equal(attn_layers_open(name, options, &layers, &error), expected);
    if (strstr(error.text, text) == NULL)
        fail_msg("'%s' does not have '%s'", error.text, text);
    assert_null(layers);
}

static json_t *parse_text(const attn_layers *layers) {
    json_error_t error;
    json_t *text = json_loads(attn_layers_text(layers), 0, &error);
    if (text == NULL)
        fail_msg("%s: %s", error.text, attn_layers_text(layers));
    return text;
}

/* --- golden cases --- */

/* Compares nested lists with numbers, and returns where these end. */
static const float *compare_lists(const json_t *expected, const float *numbers) {
    if (!json_is_array(expected)) {
        double number = json_number_value(expected);
        assert_true(fabs(number - (double)*numbers) <= 1e-5 * (1 + fabs(number)));
        return numbers + 1;
    }
    for (size_t i = 0; i < json_array_size(expected); i++)
        numbers = compare_lists(json_array_get(expected, i), numbers);
    return numbers;
}

static void check_golden(const char *name, attn_pool *pool) {
    char file[160];
    json_error_t text;
    attn_error error = {.text = ""};
    const attn_model *model;
    attn_reply *reply = NULL;

    snprintf(file, sizeof file, GOLDEN "%s.json", name);
    json_t *golden = json_load_file(file, 0, &text);
    assert_non_null(golden);
    snprintf(file, sizeof file, GOLDEN "%s",
             json_string_value(json_object_get(golden, "weights")));
    char *options = json_dumps(json_object_get(golden, "options"), 0);
    char *request = json_dumps(json_object_get(golden, "request"), 0);
    attn_layers *layers = open_path(file, options);
    assert_int_equal(attn_layers_get(layers, 0, &model, &error), ATTN_OK);
    if (attn_call(pool, model, request, NULL, 0, NULL, &reply, &error) != ATTN_OK)
        fail_msg("%s: %s", name, error.text);

    const json_t *expected = json_object_get(golden, "expected");
    assert_string_equal(attn_reply_array(reply, 0)->name, "outputs");
    compare_lists(json_object_get(expected, "outputs"), attn_reply_array(reply, 0)->data);
    attn_reply_destroy(reply);
    attn_layers_destroy(layers);
    free(request);
    free(options);
    json_decref(golden);
}

static void test_golden_cases(void **state) {
    static const char *const names[] = {"additive_scoring",
                                        "d2l_bias_random",
                                        "d2l_cross_causal",
                                        "d2l_example",
                                        "d2l_head_mask",
                                        "d2l_no_lens",
                                        "d2l_sizes",
                                        "d2l_valid_lens_2d",
                                        "llms_from_scratch_split",
                                        "llms_from_scratch_wrapper",
                                        "torch_kdim_vdim",
                                        "torch_packed",
                                        "two_stage_heads"};
    attn_pool *pool;

    (void)state;
    assert_int_equal(attn_pool_create(2, &pool, NULL), ATTN_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check_golden(names[i], pool);
    attn_pool_destroy(pool);
}

/* --- the text --- */

static const json_t *tensor_of(const json_t *layer, const char *array, int head) {
    const json_t *tensors = json_object_get(layer, "tensors"), *tensor;
    for (size_t i = 0; (tensor = json_array_get(tensors, i)) != NULL; i++) {
        const json_t *its_head = json_object_get(tensor, "head");
        bool same_head =
            head < 0 ? its_head == NULL : json_integer_value(its_head) == head;
        if (same_head &&
            strcmp(json_string_value(json_object_get(tensor, "array")), array) == 0)
            return tensor;
    }
    fail_msg("no %s of head %d", array, head);
    return NULL;
}

static void assert_number(const json_t *object, const char *key, json_int_t expected) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    assert_int_equal(json_integer_value(value), expected);
}

static void assert_word(const json_t *object, const char *key, const char *expected) {
    assert_string_equal(json_string_value(json_object_get(object, key)), expected);
}

static void test_a_folder_is_described(void **state) {
    attn_layers *layers = open_path(QWEN, NULL);
    json_t *text = parse_text(layers);
    const json_t *layer = json_array_get(json_object_get(text, "layers"), 1);
    const json_t *key = tensor_of(layer, "key.weight", -1);
    json_int_t heads = json_integer_value(json_object_get(layer, "num_heads"));
    json_int_t kv = json_integer_value(json_object_get(layer, "num_kv_heads"));
    json_int_t size = json_integer_value(json_object_get(layer, "head_size"));

    (void)state;
    assert_word(text, "path", QWEN);
    assert_word(text, "family", "qwen3");
    assert_word(layer, "name", "1");
    assert_true(json_is_true(json_object_get(layer, "norm_before")));
    assert_true(json_is_false(json_object_get(layer, "cross")));
    assert_true(json_is_null(json_object_get(layer, "borrows")));
    assert_word(key, "name", "layers.1.self_attn.k_proj.weight");
    assert_word(key, "file", QWEN "/model.safetensors");
    assert_number(key, "heads", kv);
    assert_number(key, "rows", size);
    assert_number(key, "first", 0);
    const json_t *output = tensor_of(layer, "output.weight", -1);
    assert_number(output, "heads", heads);
    assert_number(output, "rows", size);
    assert_true(json_is_false(json_object_get(output, "transposed")));
    json_decref(text);
    attn_layers_destroy(layers);
}

static void test_tensors_of_single_heads(void **state) {
    attn_layers *layers = open_path(GOLDEN "two_stage_heads.safetensors", NULL);
    json_t *text = parse_text(layers);
    const json_t *layer = json_array_get(json_object_get(text, "layers"), 0);
    const json_t *tensor = tensor_of(layer, "query.weight", 1);

    (void)state;
    assert_true(json_is_null(json_object_get(text, "family")));
    assert_word(layer, "name", "model");
    assert_number(tensor, "heads", 1);
    assert_non_null(strstr(json_string_value(json_object_get(tensor, "name")), ".1."));
    json_decref(text);
    attn_layers_destroy(layers);
}

static void test_options_and_errors(void **state) {
    attn_layers *layers =
        open_path(QWEN, "{\"layer\":1,\"pre_norm\":true,\"causal\":null}");
    json_t *text = parse_text(layers);
    const json_t *items = json_object_get(text, "layers");
    const attn_model *model = NULL;
    attn_error error;

    (void)state;
    assert_int_equal(json_array_size(items), 1);
    assert_word(json_array_get(items, 0), "name", "1");
    assert_true(json_is_true(json_object_get(
        json_object_get(json_array_get(items, 0), "pre_norm"), "applied")));
    assert_int_equal(attn_layers_get(layers, 1, &model, &error), ATTN_E_VALUE);
    assert_string_equal(error.text, "there is no layer 1, but 1, counted from 0");
    json_decref(text);
    attn_layers_destroy(layers);

    refuse_path(ATTN_E_FORMAT, "options: ", QWEN, "[");
    refuse_path(ATTN_E_FORMAT, "it is not an object", QWEN, "[1]");
    refuse_path(ATTN_E_VALUE, "options: layers is a list", QWEN, "{\"layers\":[0,1]}");
    refuse_path(ATTN_E_VALUE, "options: unknown key 'heads'", QWEN, "{\"heads\":2}");
    refuse_path(ATTN_E_VALUE, "num_heads of a folder comes from", QWEN,
                "{\"num_heads\":2}");
    refuse_path(ATTN_E_IO, "hf download", "gpt2-not-here", NULL);
}

/* --- models --- */

static void copy_file(const char *from, const char *to) {
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    char bytes[4096];
    size_t size;

    assert_true(in != NULL && out != NULL);
    while ((size = fread(bytes, 1, sizeof bytes, in)) > 0)
        assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(in) | fclose(out), 0);
}

static void test_a_replaced_file_is_refused(void **state) {
    const attn_model *model = NULL;
    attn_error error;

    (void)state;
    copy_file(GOLDEN "d2l_example.safetensors", path);
    attn_layers *layers = open_path(path, "{\"num_heads\":5}");
    copy_file(GOLDEN "d2l_sizes.safetensors", part);
    assert_int_equal(rename(part, path), 0);
    assert_false(exists(part));
    assert_int_equal(attn_layers_get(layers, 0, &model, &error), ATTN_E_IO);
    assert_non_null(strstr(error.text, "was replaced since it was opened"));
    assert_null(model);
    attn_layers_destroy(layers);
    assert_int_equal(unlink(path), 0);
}

static void *get_both(void *layers) {
    const attn_model *models[2] = {NULL, NULL};
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(attn_layers_get(layers, i, &models[i], NULL), ATTN_OK);
    return (void *)(uintptr_t)models[1];
}

static void test_threads_get_the_same_models(void **state) {
    attn_layers *layers = open_path(QWEN, NULL);
    pthread_t threads[4];
    void *got[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_both, layers), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], &got[i]);
    for (int i = 1; i < 4; i++)
        assert_ptr_equal(got[i], got[0]);
    attn_layers_destroy(layers);
}

static void test_failing_allocations(void **state) {
    const attn_model *model;
    attn_error error;
    (void)state;
    for (size_t nth = 1;; nth++) {
        attn_layers *layers = NULL;
        fail_alloc_at(nth);
        attn_status status =
            attn_layers_open(QWEN, "{\"precision\":\"f32\"}", &layers, &error);
        if (status == ATTN_OK)
            status = attn_layers_get(layers, 0, &model, &error);
        bool failed = fail_alloc_stop();
        attn_layers_destroy(layers);
        if (!failed) {
            assert_int_equal(status, ATTN_OK);
            return;
        }
        /* Packed weights that cannot be shrunk stay as they are. */
        if (status != ATTN_E_NOMEM && status != ATTN_OK)
            fail_msg("allocation %zu: %d, %s", nth, status, error.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_cases),
        cmocka_unit_test(test_a_folder_is_described),
        cmocka_unit_test(test_tensors_of_single_heads),
        cmocka_unit_test(test_options_and_errors),
        cmocka_unit_test(test_a_replaced_file_is_refused),
        cmocka_unit_test(test_threads_get_the_same_models),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
