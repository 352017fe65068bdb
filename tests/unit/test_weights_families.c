/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_families.c: the folders of tests/data/hf. Each has what transformers
 * computes with it. EXPECTED says what each layer must be found to be. */
#include "fail_alloc.h"
#include "families_expected.h"
#include "made_folder.h"
#include "weights_file.h"

#include "every_engine.h"
#include "run_layer.h"

static void test_layers_are_found_to_be_what_they_are(void **state) {
    (void)state;
    for (size_t i = 0; i < num_expected;) {
        const char *name = expected[i].folder;
        struct folder *folder = must_open(name, NULL);
        size_t count;
        const struct layer *layers = folder_get_layers(folder, &count);

        for (size_t j = 0; j < count; j++, i++) {
            char features[FEATURES_TEXT_SIZE];
            assert_true(i < num_expected);
            assert_string_equal(expected[i].folder, name);
            assert_string_equal(expected[i].part, layers[j].part);
            layer_describe_features(&layers[j], features);
            assert_string_equal(features, expected[i].features);
        }
        assert_true(i == num_expected || strcmp(expected[i].folder, name) != 0);
        folder_close(folder);
    }
}

/* Runs the model of a layer on its case, from `queries`; returns the worst error. In
 * bfloat16, the oracle with its roundings decides what is right. */
static double run_case(const attn_model *model, const struct layer_case *want,
                       const float *queries) {
    size_t lens[2];
    attn_request request = make_case_request(model, want, queries, lens);
    attn_sizes sizes;

    request.need_heads = true;
    if (is_bf16(model))
        assert_as_reference(model, &request, 0);
    attn_result result = run(model, &request, &sizes);
    assert_int_equal(sizes.outputs, want->outputs.count);
    assert_int_equal(sizes.weights, want->weights.count);
    assert_int_equal(sizes.heads, want->heads.count);
    double worst = fmax(compare(result.outputs, &want->outputs),
                        fmax(compare(result.weights, &want->weights),
                             compare(result.heads, &want->heads)));
    free_result(&result);
    return worst;
}

/* Serves all layers of a folder; returns the worst error of those that have `queries` or,
 * with the norm before them, as by default, `hidden`. */
static double run_folder(const char *name, bool pre_norm) {
    const struct folder_options options = {.pre_norm = pre_norm ? NULL : "false"};
    attn_engine_options serving = engine;
    struct folder *folder = must_open(name, &options);
    size_t count;
    const struct layer *layers = folder_get_layers(folder, &count);
    double worst = 0;

    serving.serve_only =
        strcmp(engine.precision, "f32") == 0; /* or the oracle has none */
    for (size_t i = 0; i < count; i++) {
        struct layer_case want = read_layer_case(name, layers[i].part);
        const float *input = pre_norm ? want.hidden.values : want.queries.values;
        attn_model *model;
        attn_error error;
        if (folder_create_model(folder, i, "m", &serving, &model, &error) != ATTN_OK)
            fail_msg("%s", error.text);
        if (input != NULL)
            worst = fmax(worst, run_case(model, &want, input));
        if (input != NULL && read_axes_case(name, layers[i].part, &want))
            worst = fmax(worst, run_case(model, &want, input));
        attn_model_destroy(model);
        free_layer_case(&want);
    }
    folder_close(folder);
    return worst;
}

/* Returns whether any layer of a folder has a norm before it. */
static bool has_pre_norm(const char *name) {
    struct folder *folder = must_open(name, NULL);
    bool found = false;
    size_t count;
    const struct layer *layers = folder_get_layers(folder, &count);
    for (size_t i = 0; i < count; i++)
        found = found || layers[i].info.pre_norm.kind != ATTN_NORM_NONE;
    folder_close(folder);
    return found;
}

static void test_layers_compute_what_transformers_does(void **state) {
    const bool bf16 = strcmp(engine.precision, "bf16") == 0;
    size_t num_wrong = 0;
    (void)state;

    for (size_t i = 0; i < num_expected; i++) {
        const char *name = expected[i].folder;
        if (i > 0 && strcmp(name, expected[i - 1].folder) == 0)
            continue;
        double worst = run_folder(name, false);
        double worst_normed = has_pre_norm(name) ? run_folder(name, true) : 0;
        print_message("%s: worst error %.2g, with its norm before %.2g\n", name, worst,
                      worst_normed);
        num_wrong +=
            !bf16 && !(worst <= FAMILY_TOLERANCE && worst_normed <= FAMILY_TOLERANCE);
    }
    assert_int_equal(num_wrong, 0);
}

static void test_selection_takes_the_layers_that_it_names(void **state) {
    static const struct {
        const char *folder, *layers, *parts;
    } selections[] = {
        {"gemma2", "0-1", "0 1 "},
        {"gemma2", "1", "1 "},
        {"gemma2", "0,1", "0 1 "},
        {"t5", "1", "encoder.1 decoder.1 decoder.1.cross "},
        {"clip", "0-0", "text.0 vision.0 "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof selections / sizeof selections[0]; i++) {
        const struct folder_options options = {.layers = selections[i].layers};
        struct folder *folder = must_open(selections[i].folder, &options);
        char parts[200] = "";
        size_t count;
        const struct layer *layers = folder_get_layers(folder, &count);
        for (size_t j = 0; j < count; j++)
            snprintf(parts + strlen(parts), sizeof parts - strlen(parts), "%s ",
                     layers[j].part);
        assert_string_equal(parts, selections[i].parts);
        folder_close(folder);
    }
}

static void test_options_that_do_not_fit_are_refused(void **state) {
    static const struct {
        const char *folder;
        struct folder_options options;
        const char *words;
    } refusals[] = {
        {"gemma2", {.layers = "2"}, "has layer 2, but the folder has 2"},
        {"gpt2", {.layers = "2-1"}, "is not a list such as 0-3,7"},
        {"gpt2", {.layers = ""}, "is not a list"},
        {"gpt2", {.layers = "0,"}, "is not a list"},
        {"gpt2", {.layers = "0-"}, "is not a list"},
        {"gpt2", {.layers = "123456789"}, "is not a list"},
        {"gpt2", {.layers = "-1"}, "is not a list"},
        {"bert", {.pre_norm = "true"}, "have no norm before them"},
        {"olmo2", {.pre_norm = "true"}, "have no norm before them"},
        {"wav2vec2", {.pre_norm = "true"}, "have no norm before them"},
        {"gpt2", {.prefix = "transformer."}, "no tensor has a name that ends in"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char path[512];
        struct folder *folder = NULL;
        attn_error error = {.text = ""};
        snprintf(path, sizeof path, FOLDERS "%s", refusals[i].folder);
        assert_int_not_equal(folder_open(path, &refusals[i].options, &folder, &error),
                             ATTN_OK);
        assert_null(folder);
        assert_text_has(error.text, refusals[i].words);
        assert_text_has(error.text, refusals[i].folder);
    }
}

static void test_models_must_fit_into_memory_together(void **state) {
    struct folder *folder = must_open("gemma2", NULL);
    attn_model_info info;
    attn_error error;
    size_t bytes = 0, count;
    (void)state;

    assert_int_equal(
        model_describe(&folder_get_layers(folder, &count)[0].info, NULL, &info, NULL),
        ATTN_OK);
    size_t sum = 2 * info.footprint.memory;
    assert_int_equal(folder_check_models(folder, NULL, sum - 1, &bytes, &error),
                     ATTN_E_OVERFLOW);
    assert_text_has(error.text, "choose some with layers=");
    assert_int_equal(bytes, 0);
    assert_int_equal(folder_check_models(folder, NULL, sum, &bytes, &error), ATTN_OK);
    assert_int_equal(bytes, sum);
    assert_int_equal(folder_check_models(folder, NULL, 2 * sum - 1, &bytes, &error),
                     ATTN_E_NOMEM);
    assert_text_has(error.text, "beside other folders");
    folder_close(folder);
}

/* Opens a folder and makes the model of its last layer. */
static attn_status try_folder(const char *path, attn_error *ret_error) {
    struct folder *folder = NULL;
    attn_model *model = NULL;
    size_t count = 0;
    attn_status status = folder_open(path, NULL, &folder, ret_error);

    if (status == ATTN_OK)
        folder_get_layers(folder, &count);
    if (status == ATTN_OK)
        status = folder_create_model(folder, count - 1, "m", NULL, &model, ret_error);
    folder_close(folder);
    attn_model_destroy(model);
    return status;
}

/* Those of jansson do not take part, see test_weights_robust.c. */
static void test_each_allocation_may_fail(void **state) {
    static const char *const folders[] = {FOLDERS "bert", FOLDERS "gpt2",
                                          FOLDERS "deberta-v2_apart"};
    (void)state;

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        for (size_t nth = 1;; nth++) {
            attn_error error = {.text = ""};
            fail_alloc_at(nth);
            attn_status status = try_folder(folders[i], &error);
            if (!fail_alloc_stop()) {
                assert_int_equal(status, ATTN_OK);
                assert_true(nth > 20);
                break;
            }
            if (status != ATTN_E_NOMEM)
                fail_msg("allocation %zu: status %d, %s", nth, (int)status, error.text);
            assert_text_has(error.text, "memory");
        }
    }
}

/* Sizes in config.json that no tensor has, and sums of them that overflow. */
static void test_absurd_sizes_are_refused_before_memory_is_taken(void **state) {
    static const char *const configs[] = {
        "{\"model_type\": \"llama\", \"num_attention_heads\": 16777216, "
        "\"head_dim\": 16777216, \"hidden_size\": 4, \"num_hidden_layers\": 1}",
        "{\"model_type\": \"llama\", \"num_attention_heads\": 1, "
        "\"hidden_size\": 16777216, \"num_hidden_layers\": 16777216}",
        "{\"model_type\": \"llama\", \"num_attention_heads\": 2147483648}",
        "{\"model_type\": \"llama\", \"num_attention_heads\": 1e300}",
        "{\"model_type\": \"llama\", \"hidden_size\": 99999999999999999999}",
        "{\"model_type\": \"llama\", \"num_attention_heads\": -1}",
    };
    struct weights_file made = {.header_size = 0};
    size_t size;
    (void)state;

    file_add_f32(&made, "layers.0.self_attn.q_proj.weight", 4, 4, 1);
    unsigned char *bytes = file_make(&made, &size);
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct folder *folder = NULL;
        attn_error error = {.text = ""};
        count_alloc_from(65536);
        attn_status status = open_made_folder(configs[i], strlen(configs[i]), bytes, size,
                                              NULL, &folder, &error);
        assert_int_equal(count_alloc_stop(), 0);
        assert_int_not_equal(status, ATTN_OK);
        assert_null(folder);
        assert_true(error.text[0] != '\0' && strchr(error.text, '\n') == NULL);
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_are_found_to_be_what_they_are),
        cmocka_unit_test(test_selection_takes_the_layers_that_it_names),
        cmocka_unit_test(test_options_that_do_not_fit_are_refused),
        cmocka_unit_test(test_models_must_fit_into_memory_together),
        cmocka_unit_test(test_each_allocation_may_fail),
        cmocka_unit_test(test_absurd_sizes_are_refused_before_memory_is_taken),
    };
    const struct CMUnitTest computed[] = {
        cmocka_unit_test(test_layers_compute_what_transformers_does),
    };
    if (init_library(NULL) != 0)
        return 1;
    return cmocka_run_group_tests(tests, read_expected, NULL) +
           run_with_every_engine(computed, 1);
}
