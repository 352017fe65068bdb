/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_fp8.c: which folders with weights in FP8 are read, by what their
 * config.json says of the scales; and why others are refused. */
#include "fail_alloc.h"
#include "made_file.h"

#include "weights/layer/make.h"

#define LINEARS 4
#define WIDTH   ((size_t)8)

/* config.json of a layer of two heads, 8 wide, with more keys behind a comma. */
#define CONFIG                                                                           \
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"num_attention_heads\":2,"             \
    "\"num_hidden_layers\":1"
#define FP8   CONFIG ",\"quantization_config\":{\"quant_method\":\"fp8\""
#define BLOCK FP8 ",\"fmt\":\"e4m3\",\"weight_block_size\":[3,5]}}"
#define GROUP                                                                            \
    CONFIG ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","          \
           "\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":8,"                \
           "\"type\":\"float\",\"strategy\":"
#define MODELOPT CONFIG ",\"quantization_config\":{\"quant_method\":\"modelopt\","

/* The scales of all four matrices, [8, 8], and what is said of the first. All of them are
 * 1/2, but for exponents, which are 2^0. */
struct fp8_case {
    const char *config, *ending, *type, *shape;
    size_t scales;
    const char *words; /* of `inspect`, or of the refusal, which has a tensor's name */
};

static const char *const linears[LINEARS] = {"q", "k", "v", "o"};

/* Adds the scales of a matrix; `name` is that of the matrix, with the ending. */
static void add_scales(struct weights_file *made, const char *name,
                       const struct fp8_case *tried) {
    unsigned char bytes[64 * sizeof(double)] = {0};
    size_t size = strcmp(tried->type, "F32") == 0    ? 4
                  : strcmp(tried->type, "F64") == 0  ? 8
                  : strchr(tried->type, '8') != NULL ? 1
                                                     : 2;
    const float half = 0.5F;

    for (size_t i = 0; i < tried->scales; i++) {
        if (size == 4)
            memcpy(bytes + i * size, &half, size);
        else if (size == 2)
            memcpy(bytes + i * size,
                   strcmp(tried->type, "F16") == 0 ? "\0\x38" : "\0\x3f", size);
        else if (size == 1)
            bytes[i] = 127;
    }
    file_add(made, name, tried->type, tried->shape, bytes, tried->scales * size);
}

/* Makes the four matrices, of codes that count up from that of 1, and their scales. */
static void make_layer(const struct fp8_case *tried, struct weights_file *made) {
    unsigned char codes[WIDTH * WIDTH];

    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (unsigned char)(0x38 + i % 8);
    for (size_t i = 0; i < LINEARS; i++) {
        char name[80], scale[96];
        snprintf(name, sizeof name, "layers.0.self_attn.%s_proj.weight", linears[i]);
        snprintf(scale, sizeof scale, "%s%s", name, tried->ending);
        file_add(made, name, "F8_E4M3", "[8,8]", codes, sizeof codes);
        if (tried->ending[0] != '\0')
            add_scales(made, scale, tried);
    }
}

static void test_every_form_of_scales_is_read(void **state) {
    static const struct fp8_case cases[] = {
        {BLOCK, "_scale_inv", "F32", "[3,2]", 6, "FP8, scales of 3 x 5"},
        {BLOCK, "_scale_inv", "BF16", "[3,2]", 6, "FP8, scales of 3 x 5"},
        {BLOCK, "_scale", "F16", "[3,2]", 6, "FP8, scales of 3 x 5"},
        {BLOCK, "_scale_inv", "F8_E8M0", "[3,2]", 6, "FP8, scales of 3 x 5"},
        {FP8 ",\"weight_block_size\":[128,128]}}", "_scale_inv", "F32", "[1,1]", 1,
         "FP8, scales of 128 x 128"},
        {FP8 ",\"scale_fmt\":\"ue8m0\",\"weight_block_size\":[1,4]}}", "_scale_inv", "U8",
         "[8,2]", 16, "FP8, scales of 1 x 4"},
        {FP8 ",\"fmt\":\"float8_e4m3fn\",\"weight_block_size\":null}}", "_scale_inv",
         "BF16", "[]", 1, "FP8, one scale a matrix"},
        {FP8 "}}", "_scale", "F32", "[1]", 1, "FP8, one scale a matrix"},
        {FP8 "}}", "_scale", "F32", "[8]", 8, "FP8, one scale a row"},
        {GROUP "\"channel\"}}}}}", "_scale", "BF16", "[8,1]", 8, "FP8, one scale a row"},
        {GROUP "\"tensor\"}}}}}", "_scale", "F16", "[1]", 1, "FP8, one scale a matrix"},
        {GROUP "\"block\",\"block_structure\":[4,4]}}}}}", "_scale", "F32", "[2,2]", 4,
         "FP8, scales of 4 x 4"},
        {GROUP "\"group\",\"group_size\":4},\"format\":\"mxfp8-quantized\"}}}}", "_scale",
         "U8", "[8,2]", 16, "FP8, scales of 1 x 4"},
        {MODELOPT "\"quant_algo\":\"FP8\"}}", "_scale", "F32", "[]", 1,
         "FP8, one scale a matrix"},
        {MODELOPT "\"quantization\":{\"quant_algo\":\"MXFP8\"}}}", "_scale", "U8",
         "[8,1]", 8, "FP8, scales of 1 x 32"},
        {MODELOPT "\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{"
                  "\"a\":{\"quant_algo\":\"NVFP4\"},\"b\":{\"quant_algo\":\"FP8\"}}}}",
         "_scale", "F32", "[]", 1, "FP8, one scale a matrix"},
        {CONFIG ",\"text_config\":{\"quantization_config\":{\"quant_method\":"
                "\"fbgemm_fp8\"}}}",
         "_scale", "F32", "[8,1]", 8, "FP8, one scale a row"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct fp8_case *tried = &cases[i];
        struct weights_file made = {.header_size = 0};
        struct folder *folder = NULL;
        attn_error error = {.text = ""};
        attn_model *model = NULL;
        char text[FEATURES_TEXT_SIZE];
        bool exponents = strchr(tried->type, '8') != NULL;
        size_t count;

        make_layer(tried, &made);
        if (open_made_file(tried->config, &made, &folder, &error) != ATTN_OK)
            fail_msg("case %zu: %s", i, error.text);
        const struct layer *layer = folder_get_layers(folder, &count);
        layer_describe_features(layer, text);
        assert_text_has(text, tried->words);
        assert_int_equal(folder_create_model(folder, 0, "m", NULL, &model, &error),
                         ATTN_OK);
        attn_model_destroy(model);

        float number;
        assert_int_equal(
            safetensors_read(layer->linears[ATTN_KEY].weight, 17, 1, &number, NULL),
            ATTN_OK);
        assert_true(number == (exponents ? 1.125F : 0.5625F));
        folder_close(folder);
    }
}

static void test_what_is_not_declared_is_refused_by_name(void **state) {
#define Q "'layers.0.self_attn.q_proj.weight"
    static const struct fp8_case cases[] = {
        {BLOCK, "", "F32", "", 0, Q "' is in FP8, and has no scale"},
        {BLOCK, "_scales", "F32", "[3,2]", 6, Q "' is in FP8, and has no scale"},
        {BLOCK, "_scale_inv", "F32", "[3,3]", 9,
         Q "_scale_inv' has shape [3,3], expected [3,2]: so config.json says of "},
        {BLOCK, "_scale_inv", "F32", "[2,3]", 6, "is it transposed?"},
        {BLOCK, "_scale_inv", "F32", "[6]", 6, "has shape [6], expected [3,2]"},
        {BLOCK, "_scale_inv", "F32", "[]", 1, "has shape [], expected [3,2]"},
        {BLOCK, "_scale_inv", "F32", "[3,2,1]", 6, "has shape [3,2,1], expected [3,2]"},
        {BLOCK, "_scale_inv", "F32", "[0,2]", 0, "it must not be empty"},
        {BLOCK, "_scale_inv", "F64", "[3,2]", 6,
         Q "_scale_inv' has dtype F64, but scales"},
        {BLOCK, "_scale_inv", "U8", "[3,2]", 6, "or U8 where config.json says mxfp8"},
        {BLOCK, "_scale_inv", "F8_E4M3", "[3,2]", 6, "has dtype F8_E4M3, but scales are"},
        {FP8 "}}", "_scale_inv", "F32", "[3,2]", 6, "has shape [3,2], expected [1,1]"},
        {FP8 "}}", "_scale_inv", "F32", "[8,2]", 16, "has shape [8,2], expected [1,1]"},
        {FP8 ",\"fmt\":\"e5m2\"}}", "_scale", "F32", "[]", 1,
         Q "' is in FP8, but fmt of config.json is not one that attnd reads; save it in"},
        {FP8 ",\"weight_block_size\":[128]}}", "_scale", "F32", "[]", 1,
         "but weight_block_size of config.json is not one that attnd reads"},
        {FP8 ",\"weight_block_size\":[0,128]}}", "_scale", "F32", "[]", 1,
         "but weight_block_size of config.json"},
        {FP8 ",\"weight_block_size\":[2147483648,1]}}", "_scale", "F32", "[]", 1,
         "but weight_block_size of config.json"},
        {FP8 ",\"weight_block_size\":\"128\"}}", "_scale", "F32", "[]", 1,
         "but weight_block_size of config.json"},
        {CONFIG "}", "_scale_inv", "F32", "[3,2]", 6,
         Q "' is in FP8, but quantization_config of config.json is missing; save it in"},
        {CONFIG ",\"quantization_config\":{\"quant_method\":\"quark\"}}", "_scale", "F32",
         "[]", 1, "but quant_method of config.json is not one"},
        {CONFIG ",\"quantization_config\":5}", "_scale", "F32", "[]", 1,
         "but quant_method of config.json is not one"},
        {GROUP "\"tensor_group\"}}}}}", "_scale", "F32", "[]", 1,
         "but config_groups of config.json is not one"},
        {GROUP "\"block\",\"block_structure\":null}}}}}", "_scale", "F32", "[1,1]", 1,
         "but block_structure of config.json is not one"},
        {GROUP "\"group\",\"group_size\":-4}}}}}", "_scale", "F32", "[8,2]", 16,
         "but group_size of config.json is not one"},
        {GROUP "\"group\",\"group_size\":4}},\"g\":{\"weights\":{\"num_bits\":8,\"type\":"
               "\"float\",\"strategy\":\"block\",\"block_structure\":[4,4]}}}}}",
         "_scale", "F32", "[2,2]", 4,
         "but a second size of blocks of config.json is not"},
        {MODELOPT "\"quant_algo\":\"NVFP4\"}}", "_scale", "F32", "[]", 1,
         "but quant_algo of config.json is not one"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct weights_file made = {.header_size = 0};
        struct folder *folder = NULL;
        attn_error error = {.text = ""};

        make_layer(&cases[i], &made);
        if (open_made_file(cases[i].config, &made, &folder, &error) == ATTN_OK)
            fail_msg("case %zu was not refused", i);
        assert_text_has(error.text, cases[i].words);
        assert_text_has(error.text, "layers.0.self_attn.q_proj.weight");
    }
}

static void test_two_scales_and_a_norm_in_fp8_are_refused(void **state) {
    static const struct fp8_case block = {BLOCK, "_scale_inv", "F32", "[3,2]", 6, ""};
    static const struct fp8_case one = {BLOCK, "_scale", "F32", "[]", 1, ""};
    struct weights_file made = {.header_size = 0};
    struct folder *folder = NULL;
    attn_error error = {.text = ""};
    (void)state;

    make_layer(&block, &made);
    add_scales(&made, "layers.0.self_attn.v_proj.weight_scale", &one);
    assert_int_equal(open_made_file(BLOCK, &made, &folder, &error), ATTN_E_FORMAT);
    assert_text_has(error.text, "v_proj.weight' is in FP8, and has two scales");

    made = (struct weights_file){.header_size = 0};
    make_layer(&block, &made);
    file_add(&made, "layers.0.input_layernorm.weight", "F8_E4M3", "[8]", "88888888", 8);
    add_scales(&made, "layers.0.input_layernorm.weight_scale", &one);
    assert_int_equal(open_made_file(BLOCK, &made, &folder, &error), ATTN_E_UNSUPPORTED);
    assert_text_has(error.text, "input_layernorm.weight' is in FP8, but not a matrix");
}

static void assert_opens(const char *config, struct weights_file *made) {
    struct folder *folder = NULL;
    attn_error error = {.text = ""};

    if (open_made_file(config, made, &folder, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    folder_close(folder);
}

/* Its own quant_method rounds more than weights, see test_weights_traits.c. */
static void test_bitnet_may_be_stored_in_fp8(void **state) {
    static const struct fp8_case one = {FP8 "}}", "_scale", "F32", "[]", 1, ""};
    static const char config[] =
        "{\"model_type\":\"bitnet\",\"hidden_size\":8,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":2,\"num_hidden_layers\":1,"
        "\"quantization_config\":{\"quant_method\":\"fp8\"}}";
    struct weights_file made = {.header_size = 0};
    (void)state;

    make_layer(&one, &made);
    file_add_f32(&made, "layers.0.self_attn.attn_sub_norm.weight", 8, 0, 1);
    assert_opens(config, &made);
}

/* FP8 outside the layers, as of experts, may be as it likes. */
static void test_other_tensors_do_not_matter(void **state) {
    static const struct fp8_case block = {BLOCK, "_scale_inv", "F32", "[3,2]", 6, ""};
    struct weights_file made = {.header_size = 0};
    (void)state;

    make_layer(&block, &made);
    file_add(&made, "layers.0.mlp.weight", "F8_E4M3", "[2,2]", "8888", 4);
    file_add(&made, "layers.0.mlp.empty", "F8_E4M3", "[0,2]", "", 0);
    assert_opens(BLOCK, &made);
}

/* Those of jansson do not take part, see test_weights_robust.c. */
static void test_each_allocation_may_fail(void **state) {
    static const struct fp8_case block = {BLOCK, "_scale_inv", "F32", "[3,2]", 6, ""};
    struct weights_file made = {.header_size = 0};
    size_t size;
    (void)state;

    make_layer(&block, &made);
    unsigned char *bytes = file_make(&made, &size);
    for (size_t nth = 1;; nth++) {
        struct folder *folder = NULL;
        attn_model *model = NULL;
        attn_error error = {.text = ""};
        fail_alloc_at(nth);
        attn_status status =
            open_made_folder(BLOCK, strlen(BLOCK), bytes, size, NULL, &folder, &error);
        if (status == ATTN_OK)
            status = folder_create_model(folder, 0, "m", NULL, &model, &error);
        bool failed = fail_alloc_stop();
        folder_close(folder);
        attn_model_destroy(model);
        if (!failed) {
            assert_int_equal(status, ATTN_OK);
            assert_true(nth > 10);
            break;
        }
        assert_int_equal(status, ATTN_E_NOMEM);
        assert_text_has(error.text, "memory");
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_of_scales_is_read),
        cmocka_unit_test(test_what_is_not_declared_is_refused_by_name),
        cmocka_unit_test(test_two_scales_and_a_norm_in_fp8_are_refused),
        cmocka_unit_test(test_bitnet_may_be_stored_in_fp8),
        cmocka_unit_test(test_other_tensors_do_not_matter),
        cmocka_unit_test(test_each_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("weights_fp8", tests, NULL, NULL);
}
