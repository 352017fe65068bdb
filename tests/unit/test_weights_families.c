/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_families.c: the folders of tests/data/hf. Each has what transformers
 * computes with it. One table says what each layer must be found to be. */
#include "fail_alloc.h"
#include "family_cases.h"
#include "weights_file.h"

#include "weights/families/lacks.h"

#include <attnd/attention.h>
#include <attnd/library.h>

static void test_layers_are_found_to_be_what_they_are(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_EXPECTED;) {
        const char *name = expected[i].folder;
        struct folder *folder = must_open(name, NULL);
        size_t count;
        const struct layer *layers = folder_get_layers(folder, &count);

        for (size_t j = 0; j < count; j++, i++) {
            char features[LACKS_TEXT_SIZE], lacks[LACKS_TEXT_SIZE];
            assert_true(i < NUM_EXPECTED);
            assert_string_equal(expected[i].folder, name);
            assert_string_equal(expected[i].part, layers[j].part);
            layer_describe_features(&layers[j], features);
            assert_string_equal(features, expected[i].features);
            layer_describe_lacks(&layers[j], false, lacks);
            assert_string_equal(lacks, expected[i].lacks);
        }
        assert_true(i == NUM_EXPECTED || strcmp(expected[i].folder, name) != 0);
        folder_close(folder);
    }
}

/* Runs the model of a layer on its case; returns the worst error. */
static double run_case(const attn_model *model, const struct layer_case *want) {
    size_t query_lens[2], key_lens[2];
    const float *keys =
        want->keys.values != NULL ? want->keys.values : want->queries.values;
    attn_request request = {.num_sequences = want->num_sequences,
                            .query_lens = query_lens,
                            .key_lens = key_lens,
                            .queries = want->queries.values,
                            .keys = keys,
                            .values = keys,
                            .causal = attn_model_get_info(model)->causal,
                            .need_weights = ATTN_WEIGHTS_ALL};
    attn_sizes sizes;

    assert_int_equal(want->num_sequences, 2);
    for (size_t i = 0; i < 2; i++) {
        query_lens[i] = want->num_queries;
        key_lens[i] = want->num_keys;
    }
    assert_int_equal(attn_plan(model, &request, &sizes, NULL), ATTN_OK);
    assert_int_equal(sizes.outputs, want->outputs.count);
    assert_int_equal(sizes.weights, want->weights.count);
    attn_result result = {.outputs = malloc(sizes.outputs * sizeof(float)),
                          .weights = malloc(sizes.weights * sizeof(float))};
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    assert_true(result.outputs != NULL && result.weights != NULL && scratch != NULL);
    assert_int_equal(attn_run(model, &request, scratch, &result), ATTN_OK);
    double worst = fmax(compare(result.outputs, &want->outputs),
                        compare(result.weights, &want->weights));
    free(result.outputs);
    free(result.weights);
    free(scratch);
    return worst;
}

static void test_layers_compute_what_transformers_does(void **state) {
    const attn_engine_options engine = {.serve_only = true};
    const char *family = "";
    double worst = 0;
    (void)state;

    for (size_t i = 0; i < NUM_EXPECTED; i++) {
        struct folder *folder = must_open(expected[i].folder, NULL);
        size_t layer = must_find(folder, expected[i].part);
        attn_model *model = NULL;
        attn_error error;
        attn_status status =
            folder_create_model(folder, layer, "m", &engine, &model, &error);
        folder_close(folder);

        if (expected[i].lacks[0] != '\0') {
            assert_int_equal(status, ATTN_E_UNSUPPORTED);
            assert_text_has(error.text, expected[i].lacks);
            assert_text_has(error.text, expected[i].folder);
            printf("%s %s: refused, needs %s\n", expected[i].folder, expected[i].part,
                   expected[i].lacks);
            continue;
        }
        if (status != ATTN_OK)
            fail_msg("%s", error.text);
        struct layer_case want = read_layer_case(expected[i].folder, expected[i].part);
        worst = strcmp(family, expected[i].folder) == 0 ? worst : 0;
        family = expected[i].folder;
        worst = fmax(worst, run_case(model, &want));
        printf("%s %s: worst error so far %.2g\n", family, expected[i].part, worst);
        assert_true(worst <= tolerance);
        free_layer_case(&want);
        attn_model_destroy(model);
    }
}

static void test_selection_takes_the_layers_that_it_names(void **state) {
    static const struct {
        const char *folder, *layers, *parts;
    } selections[] = {
        {"gpt2", "0-1", "0 1 "},
        {"gpt2", "2", "2 "},
        {"gpt2", "0,2", "0 2 "},
        {"whisper", "1", "encoder.1 decoder.1 decoder.1.cross "},
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
        {"gpt2", {.layers = "3"}, "has layer 3, but the folder has 3"},
        {"gpt2", {.layers = "2-1"}, "is not a list such as 0-3,7"},
        {"gpt2", {.layers = ""}, "is not a list"},
        {"gpt2", {.layers = "0,"}, "is not a list"},
        {"gpt2", {.layers = "0-"}, "is not a list"},
        {"gpt2", {.layers = "123456789"}, "is not a list"},
        {"gpt2", {.layers = "-1"}, "is not a list"},
        {"bert", {.pre_norm = true}, "have no norm before them"},
        {"olmo2", {.pre_norm = true}, "have no norm before them"},
        {"wav2vec2", {.pre_norm = true}, "have no norm before them"},
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

static void test_norm_before_is_not_computed_yet_and_said_so(void **state) {
    const struct folder_options options = {.pre_norm = true};
    struct folder *folder = must_open("gpt2", &options);
    attn_model *model = NULL;
    attn_error error;
    (void)state;

    assert_int_equal(folder_create_model(folder, 0, "m", NULL, &model, &error),
                     ATTN_E_UNSUPPORTED);
    assert_text_has(error.text, "the norm before the layer");
    folder_close(folder);
}

static void test_models_must_fit_into_memory_together(void **state) {
    struct folder *folder = must_open("gpt2", NULL);
    attn_model_info info;
    attn_error error;
    size_t bytes = 0;
    (void)state;

    assert_int_equal(folder_describe_model(folder, 0, NULL, &info, NULL), ATTN_OK);
    size_t sum = 3 * info.memory;
    assert_int_equal(folder_check_models(folder, NULL, sum - 1, &bytes, &error),
                     ATTN_E_NOMEM);
    assert_text_has(error.text, "choose some with layers=");
    assert_int_equal(bytes, 0);
    assert_int_equal(folder_check_models(folder, NULL, sum, &bytes, &error), ATTN_OK);
    assert_int_equal(bytes, sum);
    assert_int_equal(folder_check_models(folder, NULL, 2 * sum - 1, &bytes, &error),
                     ATTN_E_NOMEM);
    assert_text_has(error.text, "beside other folders");
    folder_close(folder);
}

/* Opens a folder and makes the model of its second layer. */
static attn_status try_folder(const char *path, attn_error *ret_error) {
    struct folder *folder = NULL;
    attn_model *model = NULL;
    attn_status status = folder_open(path, NULL, &folder, ret_error);

    if (status == ATTN_OK)
        status = folder_create_model(folder, 1, "m", NULL, &model, ret_error);
    folder_close(folder);
    attn_model_destroy(model);
    return status;
}

/* Those of jansson do not take part, see test_weights_robust.c. */
static void test_each_allocation_may_fail(void **state) {
    static const char *const folders[] = {FOLDERS "bert", FOLDERS "gpt2"};
    (void)state;

    for (size_t i = 0; i < 2; i++) {
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
        attn_status status = folder_open_memory(configs[i], strlen(configs[i]), bytes,
                                                size, NULL, &folder, &error);
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
        cmocka_unit_test(test_layers_compute_what_transformers_does),
        cmocka_unit_test(test_selection_takes_the_layers_that_it_names),
        cmocka_unit_test(test_options_that_do_not_fit_are_refused),
        cmocka_unit_test(test_norm_before_is_not_computed_yet_and_said_so),
        cmocka_unit_test(test_models_must_fit_into_memory_together),
        cmocka_unit_test(test_each_allocation_may_fail),
        cmocka_unit_test(test_absurd_sizes_are_refused_before_memory_is_taken),
    };
    if (attn_init(NULL) != ATTN_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
