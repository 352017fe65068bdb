/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_model.c: models from the golden files and the built-in ones: that each is
 * recognised and that its weights are those stored. */
#include "weights_create.h"

#include "math/fold.h"

#include <math.h>

#define GOLDEN TEST_DATA "/golden/"

/* Writes the path of a golden file. */
static void golden_path(const char *name, char ret_path[512]) {
    snprintf(ret_path, 512, GOLDEN "%s.safetensors", name);
}

static attn_model *load_golden(const char *name, const attn_model_options *options) {
    char path[512];
    golden_path(name, path);
    attn_model *model = NULL;
    attn_error error;
    if (attn_model_load(name, path, options, NULL, &model, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    return model;
}

/* Reads a tensor of a golden file as it is stored. */
static void read_golden(const char *name, const char *tensor, float *ret_values) {
    char path[512];
    struct safetensors *file = NULL;

    golden_path(name, path);
    assert_int_equal(safetensors_open_file(path, &file, NULL), ATTN_OK);
    const struct safetensors_tensor *found =
        safetensors_header_find(safetensors_get_header(file), tensor);
    assert_non_null(found);
    assert_int_equal(safetensors_read_all(found, ret_values, NULL), ATTN_OK);
    safetensors_close(file);
}

/* Checks that `got` is the tensor of a golden file. */
static void assert_stored(const char *name, const char *tensor, const float *got,
                          size_t count) {
    float *want = calloc(count, sizeof *want);
    assert_non_null(want);
    read_golden(name, tensor, want);
    assert_memory_equal(got, want, count * sizeof *want);
    free(want);
}

/* What each golden file must be recognised as. */
static const struct golden {
    const char *name;
    attn_model_options options;
    attn_model_info want; /* parameters and bytes: see below */
} goldens[] = {
    {"d2l_example",
     {.num_heads = 5},
     {.layout = "d2l",
      .width = {.query = 100, .key = 100, .value = 100, .out = 100, .head = 20},
      .num_heads = 5,
      .linears[ATTN_OUTPUT].weight = true,
      .footprint = {.parameters = 40000, .bytes = 160000}}},
    {"d2l_bias_random",
     {.num_heads = 5},
     {.layout = "d2l",
      .width = {.query = 100, .key = 100, .value = 100, .out = 100, .head = 20},
      .num_heads = 5,
      .linears = {[ATTN_OUTPUT].weight = true,
                  [ATTN_QUERY].bias = true,
                  [ATTN_KEY].bias = true,
                  [ATTN_VALUE].bias = true,
                  [ATTN_OUTPUT].bias = true},
      .footprint = {.parameters = 40400, .bytes = 161600}}},
    {"d2l_sizes",
     {.num_heads = 6},
     {.layout = "d2l",
      .width = {.query = 20, .key = 24, .value = 28, .out = 36, .head = 6},
      .num_heads = 6,
      .linears = {[ATTN_OUTPUT].weight = true,
                  [ATTN_QUERY].bias = true,
                  [ATTN_KEY].bias = true,
                  [ATTN_VALUE].bias = true,
                  [ATTN_OUTPUT].bias = true},
      .footprint = {.parameters = 4032, .bytes = 16128}}},
    {"torch_packed",
     {.num_heads = 6},
     {.layout = "torch",
      .width = {.query = 48, .key = 48, .value = 48, .out = 48, .head = 8},
      .num_heads = 6,
      .linears = {[ATTN_OUTPUT].weight = true,
                  [ATTN_QUERY].bias = true,
                  [ATTN_KEY].bias = true,
                  [ATTN_VALUE].bias = true,
                  [ATTN_OUTPUT].bias = true},
      .footprint = {.parameters = 9408, .bytes = 37632}}},
    {"torch_kdim_vdim",
     {.num_heads = 6},
     {.layout = "torch",
      .width = {.query = 48, .key = 20, .value = 12, .out = 48, .head = 8},
      .num_heads = 6,
      .linears = {[ATTN_OUTPUT].weight = true,
                  [ATTN_QUERY].bias = true,
                  [ATTN_KEY].bias = true,
                  [ATTN_VALUE].bias = true,
                  [ATTN_OUTPUT].bias = true},
      .footprint = {.parameters = 6336, .bytes = 25344}}},
    {"llms_from_scratch_split",
     {.num_heads = 2, .context_length = 6},
     {.layout = "llms_from_scratch",
      .width = {.query = 3, .key = 3, .value = 3, .out = 2, .head = 1},
      .num_heads = 2,
      .linears = {[ATTN_OUTPUT].weight = true, [ATTN_OUTPUT].bias = true},
      .mask.causal = true,
      .context_length = 6,
      .footprint = {.parameters = 24, .bytes = 96}}},
    {"llms_from_scratch_wrapper",
     {0},
     {.layout = "llms_from_scratch_wrapper",
      .width = {.query = 3, .key = 3, .value = 3, .out = 4, .head = 2},
      .num_heads = 2,
      .mask.causal = true,
      .footprint = {.parameters = 36, .bytes = 144}}},
    {"two_stage_heads",
     {0},
     {.layout = "two_stage",
      .width = {.query = 24, .key = 24, .value = 24, .out = 24, .head = 8},
      .num_heads = 3,
      .linears[ATTN_OUTPUT].weight = true,
      .footprint = {.parameters = 2304, .bytes = 9216}}},
    {"additive_scoring",
     {.num_heads = 4, .causal = "true"},
     {.layout = "d2l",
      .score.kind = ATTN_ADDITIVE,
      .width = {.query = 32, .key = 32, .value = 32, .out = 32, .head = 8, .additive = 8},
      .num_heads = 4,
      .linears[ATTN_OUTPUT].weight = true,
      .mask.causal = true,
      .footprint = {.parameters = 4232, .bytes = 16928}}},
};

static void test_every_golden_layout_is_recognised(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        attn_model *model = load_golden(goldens[i].name, &goldens[i].options);
        const attn_model_info *got = attn_model_get_info(model);
        const attn_model_info *want = &goldens[i].want;
        print_message("%s\n", goldens[i].name);
        assert_string_equal(got->name, goldens[i].name);
        assert_string_equal(got->layout, want->layout);
        assert_int_equal(got->score.kind, want->score.kind);
        assert_int_equal(got->width.query, want->width.query);
        assert_int_equal(got->width.key, want->width.key);
        assert_int_equal(got->width.value, want->width.value);
        assert_int_equal(got->width.out, want->width.out);
        assert_int_equal(got->num_heads, want->num_heads);
        assert_int_equal(got->width.head, want->width.head);
        assert_int_equal(got->width.additive, want->width.additive);
        assert_int_equal(got->linears[ATTN_QUERY].bias, want->linears[ATTN_QUERY].bias);
        assert_int_equal(got->linears[ATTN_KEY].bias, want->linears[ATTN_KEY].bias);
        assert_int_equal(got->linears[ATTN_VALUE].bias, want->linears[ATTN_VALUE].bias);
        assert_int_equal(got->linears[ATTN_OUTPUT].bias, want->linears[ATTN_OUTPUT].bias);
        assert_int_equal(got->linears[ATTN_OUTPUT].weight,
                         want->linears[ATTN_OUTPUT].weight);
        assert_int_equal(got->mask.causal, want->mask.causal);
        assert_int_equal(got->context_length, want->context_length);
        assert_int_equal(got->footprint.parameters, want->footprint.parameters);
        assert_int_equal(got->footprint.bytes, want->footprint.bytes);
        attn_model_destroy(model);
    }
}

static void test_d2l_weights_are_those_stored(void **state) {
    (void)state;
    attn_model *sizes = load_golden("d2l_sizes", &(attn_model_options){.num_heads = 6});
    attn_model *additive =
        load_golden("additive_scoring", &(attn_model_options){.num_heads = 4});
    const struct {
        const char *name, *tensor;
        const float *got;
        size_t count;
    } cases[] = {
        {"d2l_sizes", "W_q.weight", model_weight(sizes, ATTN_QUERY), 36 * 20},
        {"d2l_sizes", "W_q.bias", model_bias(sizes, ATTN_QUERY), 36},
        {"d2l_sizes", "W_k.weight", model_weight(sizes, ATTN_KEY), 36 * 24},
        {"d2l_sizes", "W_k.bias", model_bias(sizes, ATTN_KEY), 36},
        {"d2l_sizes", "W_v.weight", model_weight(sizes, ATTN_VALUE), 36 * 28},
        {"d2l_sizes", "W_v.bias", model_bias(sizes, ATTN_VALUE), 36},
        {"d2l_sizes", "W_o.weight", model_weight(sizes, ATTN_OUTPUT), 36 * 36},
        {"d2l_sizes", "W_o.bias", model_bias(sizes, ATTN_OUTPUT), 36},
        {"additive_scoring", "attention.W_q.weight",
         additive->arrays[MODEL_ADDITIVE_QUERY].numbers, 64},
        {"additive_scoring", "attention.W_k.weight",
         additive->arrays[MODEL_ADDITIVE_KEY].numbers, 64},
        {"additive_scoring", "attention.w_v.weight",
         additive->arrays[MODEL_ADDITIVE_SCORE].numbers, 8},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_stored(cases[i].name, cases[i].tensor, cases[i].got, cases[i].count);
    attn_model_destroy(sizes);
    attn_model_destroy(additive);
}

static void test_packed_rows_are_query_key_value(void **state) {
    (void)state;
    static float packed[144 * 48], bias[144];
    read_golden("torch_packed", "in_proj_weight", packed);
    read_golden("torch_packed", "in_proj_bias", bias);

    attn_model *model =
        load_golden("torch_packed", &(attn_model_options){.num_heads = 6});
    assert_memory_equal(model_weight(model, ATTN_QUERY), packed, 48 * 48 * sizeof(float));
    assert_memory_equal(model_weight(model, ATTN_KEY), packed + 48 * 48,
                        48 * 48 * sizeof(float));
    assert_memory_equal(model_weight(model, ATTN_VALUE), packed + 96 * 48,
                        48 * 48 * sizeof(float));
    assert_memory_equal(model_bias(model, ATTN_QUERY), bias, 48 * sizeof(float));
    assert_memory_equal(model_bias(model, ATTN_KEY), bias + 48, 48 * sizeof(float));
    assert_memory_equal(model_bias(model, ATTN_VALUE), bias + 96, 48 * sizeof(float));
    assert_stored("torch_packed", "out_proj.weight", model_weight(model, ATTN_OUTPUT),
                  48 * 48);
    attn_model_destroy(model);

    read_golden("torch_kdim_vdim", "in_proj_bias", bias);
    model = load_golden("torch_kdim_vdim", &(attn_model_options){.num_heads = 6});
    assert_stored("torch_kdim_vdim", "k_proj_weight", model_weight(model, ATTN_KEY),
                  48 * 20);
    assert_memory_equal(model_bias(model, ATTN_VALUE), bias + 96, 48 * sizeof(float));
    attn_model_destroy(model);
}

static void test_wrapper_heads_are_contiguous(void **state) {
    (void)state;
    attn_model *model = load_golden("llms_from_scratch_wrapper", NULL);
    const char *name = "llms_from_scratch_wrapper";
    assert_stored(name, "heads.0.W_query.weight", model_weight(model, ATTN_QUERY), 6);
    assert_stored(name, "heads.1.W_query.weight", model_weight(model, ATTN_QUERY) + 6, 6);
    assert_stored(name, "heads.0.W_key.weight", model_weight(model, ATTN_KEY), 6);
    assert_stored(name, "heads.1.W_value.weight", model_weight(model, ATTN_VALUE) + 6, 6);
    assert_null(model_weight(model, ATTN_OUTPUT));
    attn_model_destroy(model);
}

static void test_two_stages_fold_into_one(void **state) {
    (void)state;
    static float stage[24 * 24], head[8 * 24];
    attn_model *model = load_golden("two_stage_heads", NULL);
    read_golden("two_stage_heads", "W_K.weight", stage);
    for (size_t h = 0; h < 3; h++) {
        char name[32];
        snprintf(name, sizeof name, "heads.%zu.W_K.weight", h);
        read_golden("two_stage_heads", name, head);
        for (size_t row = 0; row < 8; row++) {
            for (size_t in = 0; in < 24; in++) {
                long double sum = 0, magnitude = 0;
                for (size_t m = 0; m < 24; m++) {
                    long double term =
                        (long double)head[row * 24 + m] * (long double)stage[m * 24 + in];
                    sum += term;
                    magnitude += fabsl(term);
                }
                /* half a unit in float32's last place, and the rounding of doubles */
                float got = model_weight(model, ATTN_KEY)[(h * 8 + row) * 24 + in];
                long double limit = fabsl(sum) * 0x1p-24L + magnitude * 0x1p-48L;
                assert_true(fabsl((long double)got - sum) <= limit);
            }
        }
    }
    attn_model_destroy(model);
}

static void test_loading_refuses_an_unknown_engine(void **state) {
    (void)state;
    const attn_engine_options engine = {.engine = "fast"};
    attn_model *model = NULL;
    attn_error error;
    assert_int_equal(attn_model_demo("journey", &engine, &model, &error), ATTN_E_VALUE);
    assert_text_has(error.text, "auto, native or openblas");
    assert_null(model);
}

static void test_folding_rounds_once(void **state) {
    (void)state;
    /* 1 + 2^-30 - 1: float32 sums would lose the small term */
    const float a[] = {1, 0x1p-30F, -1}, b[] = {1, 1, 1}, addend[] = {0x1p-60F};
    float got;
    fold_product(a, b, NULL, 1, 3, 1, &got);
    assert_true(got == 0x1p-30F);
    fold_product(a + 1, b, addend, 1, 1, 1, &got);
    assert_true(got == (float)(0x1p-30 + 0x1p-60));
}

static void test_folding_works_for_any_width(void **state) {
    (void)state;
    enum { ROWS = 2, INNER = 3, COLUMNS = 700 };
    static float a[ROWS * INNER], b[INNER * COLUMNS], got[ROWS * COLUMNS];
    for (size_t i = 0; i < ROWS * INNER; i++)
        a[i] = (float)i + 1;
    for (size_t i = 0; i < INNER * COLUMNS; i++)
        b[i] = (float)i;
    fold_product(a, b, NULL, ROWS, INNER, COLUMNS, got);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t c = 0; c < COLUMNS; c++) {
            size_t sum = 0; /* small enough to be exact in float32 */
            for (size_t i = 0; i < INNER; i++)
                sum += (r * INNER + i + 1) * (i * COLUMNS + c);
            assert_true(got[r * COLUMNS + c] == (float)sum);
        }
    }
}

static void test_two_stage_biases_fold_too(void **state) {
    (void)state;
    struct weights_file made = {0};
    add_two_stage(&made);
    file_add_f32(&made, "W_Q.bias", 3, 0, 1);         /* 1, 1.125, 1.25 */
    file_add_f32(&made, "heads.0.W_K.bias", 2, 0, 7); /* 7, 7.125 */
    file_add_f32(&made, "heads.1.W_K.bias", 2, 0, 9);
    attn_model *model = must_create(&made, &(attn_model_options){0});
    const attn_model_info *info = attn_model_get_info(model);
    assert_true(info->linears[ATTN_QUERY].bias && info->linears[ATTN_KEY].bias &&
                !info->linears[ATTN_VALUE].bias);
    assert_int_equal(info->width.query, 2);
    assert_int_equal(info->width.out, 5);

    /* Head 0 of the query is [0 .125 .25; .375 .5 .625]; its bias is that times
     * W_Q.bias. */
    assert_true(model_bias(model, ATTN_QUERY)[0] == 0.125F * 1.125F + 0.25F * 1.25F);
    assert_true(model_bias(model, ATTN_QUERY)[1] ==
                0.375F + 0.5F * 1.125F + 0.625F * 1.25F);
    assert_true(model_bias(model, ATTN_KEY)[0] == 7 &&
                model_bias(model, ATTN_KEY)[1] == 7.125F);
    assert_true(model_bias(model, ATTN_KEY)[2] == 9 &&
                model_bias(model, ATTN_KEY)[3] == 9.125F);
    /* W_Q is [1 1.125; 1.25 1.375; 1.5 1.625] */
    assert_true(model_weight(model, ATTN_QUERY)[0] == 0.125F * 1.25F + 0.25F * 1.5F);
    assert_true(model_weight(model, ATTN_QUERY)[1] == 0.125F * 1.375F + 0.25F * 1.625F);
    attn_model_destroy(model);
}

static void test_a_fold_that_overflows_is_refused(void **state) {
    (void)state;
    const float big[] = {3e38F, 3e38F, 3e38F, 3e38F, 3e38F, 3e38F};
    struct weights_file made = {0};
    add_two_stage(&made);
    /* W_Q.weight is first in the data */
    memcpy(made.data, big, sizeof big);
    must_refuse(&made, &(attn_model_options){0}, ATTN_E_VALUE,
                "tensor 'heads.0.W_Q.weight' times 'W_Q.weight'",
                "too large for float32");

    struct weights_file bias = {0};
    add_two_stage(&bias);
    file_add(&bias, "W_Q.bias", "F32", "[3]", big, 3 * sizeof big[0]);
    must_refuse(&bias, &(attn_model_options){0}, ATTN_E_VALUE,
                "tensor 'heads.0.W_Q.weight' times 'W_Q.weight'",
                "too large for float32");
}

static void test_names_and_files_are_checked(void **state) {
    (void)state;
    static const char *const names[] = {
        "", "a b", "a/b", "caf\xc3\xa9",
        "12345678901234567890123456789012345678901234567890123456789012345"};
    const attn_model_options options = {.num_heads = 5};
    attn_model *model = NULL;
    attn_error error;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(attn_model_load(names[i], GOLDEN "d2l_example.safetensors",
                                         &options, NULL, &model, &error),
                         ATTN_E_VALUE);
        assert_text_has(error.text, "model name '");
    }

    char path[300];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    path[150] = '/';
    memcpy(path + sizeof path - 13, "/missing.bin", 13);
    assert_int_equal(attn_model_load("m", path, &options, NULL, &model, &error),
                     ATTN_E_IO);
    assert_text_has(error.text, "/missing.bin: cannot be opened: ");
    assert_int_equal(attn_model_load("m", "/nowhere", &options, NULL, &model, NULL),
                     ATTN_E_IO);
    assert_null(model);
}

static void test_demo_models_are_complete(void **state) {
    (void)state;
    attn_model *model = NULL;
    attn_error error;
    assert_int_equal(attn_model_demo("journey", NULL, &model, &error), ATTN_OK);
    const attn_model_info *info = attn_model_get_info(model);
    assert_string_equal(info->name, "journey");
    assert_string_equal(info->layout, "llms_from_scratch");
    assert_true(info->width.query == 3 && info->num_heads == 2 && info->width.head == 1);
    assert_true(info->mask.causal && info->context_length == 6);
    assert_stored("llms_from_scratch_split", "W_value.weight",
                  model_weight(model, ATTN_VALUE), 6);
    assert_stored("llms_from_scratch_split", "out_proj.bias",
                  model_bias(model, ATTN_OUTPUT), 2);
    attn_model_destroy(model);

    assert_int_equal(attn_model_demo("d2l", NULL, &model, &error), ATTN_OK);
    info = attn_model_get_info(model);
    assert_true(info->width.query == 100 && info->num_heads == 5 && !info->mask.causal);
    assert_stored("d2l_example", "W_o.weight", model_weight(model, ATTN_OUTPUT), 10000);
    attn_model_destroy(model);

    assert_int_equal(attn_model_demo("patterns", NULL, &model, &error), ATTN_OK);
    info = attn_model_get_info(model);
    assert_string_equal(info->layout, "d2l");
    assert_true(info->width.query == 32 && info->num_heads == 8 && info->width.out == 16);
    assert_true(!info->mask.causal && info->context_length == 16);
    attn_model_destroy(model);

    assert_int_equal(attn_model_demo("gpt", NULL, &model, &error), ATTN_E_VALUE);
    assert_text_has(error.text,
                    "'gpt' is unknown; use journey, d2l, patterns or stacked");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_golden_layout_is_recognised),
        cmocka_unit_test(test_d2l_weights_are_those_stored),
        cmocka_unit_test(test_packed_rows_are_query_key_value),
        cmocka_unit_test(test_wrapper_heads_are_contiguous),
        cmocka_unit_test(test_two_stages_fold_into_one),
        cmocka_unit_test(test_loading_refuses_an_unknown_engine),
        cmocka_unit_test(test_folding_rounds_once),
        cmocka_unit_test(test_folding_works_for_any_width),
        cmocka_unit_test(test_two_stage_biases_fold_too),
        cmocka_unit_test(test_a_fold_that_overflows_is_refused),
        cmocka_unit_test(test_names_and_files_are_checked),
        cmocka_unit_test(test_demo_models_are_complete),
    };
    return cmocka_run_group_tests_name("weights_model", tests, NULL, NULL);
}
