/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_serve.c: models that are loaded to serve only. */
#include "fail_alloc.h"
#include "math/blas.h"
#include "weights_create.h"

#include <attnd/library.h>

static int init_library(void **state) {
    attn_error error;
    (void)state;
    return attn_init(&error) == ATTN_OK ? 0 : -1;
}

static void test_loading_packs_weights_once(void **state) {
    (void)state;
    for (int serve_only = 0; serve_only < 2; serve_only++) {
        const attn_engine_options engine = {.engine = "native", .serve_only = serve_only};
        attn_model *model;
        assert_int_equal(attn_model_demo("d2l", &engine, &model, NULL), ATTN_OK);
        const attn_model_info *info = attn_model_get_info(model);
        size_t packed = model->engine.bytes;
        assert_string_equal(info->engine.name, "native");
        assert_in_range(packed, info->footprint.bytes, info->footprint.bytes * 2);
        assert_int_equal(info->footprint.memory,
                         serve_only ? packed : packed + info->footprint.bytes);
        attn_model_destroy(model);

        count_alloc_from(packed);
        attn_status status = attn_model_demo("d2l", &engine, &model, NULL);
        assert_int_equal(count_alloc_stop(), 1);
        assert_int_equal(status, ATTN_OK);
        attn_model_destroy(model);
    }
}

/* Returns the allocations of loading a built-in model to serve. */
static size_t count_loading(const char *name) {
    const attn_engine_options engine = {.engine = "native", .serve_only = true};
    attn_model *model;
    count_alloc_from(1);
    attn_status status = attn_model_demo(name, &engine, &model, NULL);
    size_t count = count_alloc_stop();
    assert_int_equal(status, ATTN_OK);
    attn_model_destroy(model);
    return count;
}

/* The comparison with plain loops allocates its arrays. Heads of two models have
 * different sizes. */
static void test_attention_is_compared_once_for_its_sizes(void **state) {
    (void)state;
    size_t first = count_loading("journey"), second = count_loading("journey");
    assert_true(second < first);
    assert_int_equal(count_loading("journey"), second);
    first = count_loading("stacked");
    assert_true(count_loading("stacked") < first);
}

/* Writes a file, loads its layer of two heads, and removes the file. */
static attn_status load_two_heads(struct weights_file *made,
                                  const attn_engine_options *engine,
                                  attn_model **ret_model) {
    const attn_model_options options = {.num_heads = 2};
    size_t size;
    unsigned char *bytes = file_make(made, &size);
    char path[64];

    file_write(bytes, size, path);
    attn_status status = attn_model_load("m", path, &options, engine, ret_model, NULL);
    unlink(path);
    free(bytes);
    return status;
}

/* Engines disagree on a large bias that cancels later, see test_math_kernels.c. */
static void test_model_whose_engines_disagree_is_left_with_the_other(void **state) {
    (void)state;
    const float large[] = {1e8F, 1e8F, 1e8F, 1e8F}, apart[] = {1, -1, 1, -1};
    struct weights_file made = {0};
    file_add_f32(&made, "W_q.weight", 4, 3, 1);
    file_add_f32(&made, "W_k.weight", 4, 3, 1);
    file_add_f32(&made, "W_v.weight", 4, 3, 1);
    file_add(&made, "W_v.bias", "F32", "[4]", large, sizeof large);
    file_add(&made, "W_o.weight", "F32", "[1,4]", apart, sizeof apart);

    const attn_engine_options engine = {.engine = "native", .serve_only = true};
    attn_model *model = NULL;
    assert_int_equal(load_two_heads(&made, &engine, &model), ATTN_OK);
    const attn_model_info *info = attn_model_get_info(model);
    assert_true(info->engine.difference > ATTN_TOLERANCE_F32);
    assert_string_equal(info->engine.name, blas_engine);
    assert_string_equal(info->engine.precision, "f32");
    assert_memory_equal(model_bias(model, ATTN_VALUE), large, sizeof large);
    assert_memory_equal(model_weight(model, ATTN_OUTPUT), apart, sizeof apart);

    attn_model_destroy(model);
}

/* Columns of values that are nearly alike cancel in the output: what is left of them is
 * less than bfloat16 rounds off. */
static void test_bf16_is_trusted_where_columns_cancel(void **state) {
    (void)state;
    const float alike[] = {0.3F, 0.3F, 0.3F, 0.30001F, 0.30001F, 0.30001F,
                           0.3F, 0.3F, 0.3F, 0.30001F, 0.30001F, 0.30001F};
    const float apart[] = {1, -1, 1, -1};
    struct weights_file made = {0};
    file_add_f32(&made, "W_q.weight", 4, 3, 1);
    file_add_f32(&made, "W_k.weight", 4, 3, 1);
    file_add(&made, "W_v.weight", "F32", "[4,3]", alike, sizeof alike);
    file_add(&made, "W_o.weight", "F32", "[1,4]", apart, sizeof apart);

    const attn_engine_options engine = {
        .engine = "native", .precision = "bf16", .serve_only = true};
    attn_model *model = NULL;
    attn_status status = load_two_heads(&made, &engine, &model);
    assert_true(status == ATTN_OK || status == ATTN_E_UNSUPPORTED); /* by this CPU */
    if (status == ATTN_OK) {
        const attn_model_info *info = attn_model_get_info(model);
        assert_string_equal(info->engine.precision, "bf16");
        assert_true(info->engine.difference < 1e-3);
    }
    attn_model_destroy(model);
}

static void test_openblas_is_refused_where_it_was_left_out(void **state) {
    (void)state;
    const attn_engine_options engine = {.engine = "openblas"};
    attn_model *model = NULL;
    attn_error error;
    attn_status status = attn_model_demo("d2l", &engine, &model, &error);
    bool left_out = strcmp(blas_engine, "openblas") != 0;

    assert_int_equal(status, left_out ? ATTN_E_UNSUPPORTED : ATTN_OK);
    if (left_out)
        assert_non_null(strstr(error.text, "no OpenBLAS; use engine auto or native"));
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading_packs_weights_once),
        cmocka_unit_test(test_attention_is_compared_once_for_its_sizes),
        cmocka_unit_test(test_model_whose_engines_disagree_is_left_with_the_other),
        cmocka_unit_test(test_bf16_is_trusted_where_columns_cancel),
        cmocka_unit_test(test_openblas_is_refused_where_it_was_left_out),
    };
    return cmocka_run_group_tests_name("weights_serve", tests, init_library, NULL);
}
