/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_layout.c: how layouts are recognised, options combined and shapes checked,
 * and what each refusal says. */
#include "weights_create.h"

/* d2l, 2 heads of size 2; the width of queries is 3, of outputs 5. */
static void add_d2l(struct weights_file *made, const char *prefix) {
    static const struct {
        const char *name;
        size_t rows, columns;
    } tensors[] = {{"W_q.weight", 4, 3},
                   {"W_k.weight", 4, 3},
                   {"W_v.weight", 4, 3},
                   {"W_o.weight", 5, 4}};
    for (size_t i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, tensors[i].name);
        file_add_f32(made, name, tensors[i].rows, tensors[i].columns, 1);
    }
}

static void test_missing_num_heads_is_refused_with_the_option_to_write(void **state) {
    (void)state;
    struct weights_file made = {0};
    add_d2l(&made, "");
    must_refuse(&made, &(attn_model_options){0}, ATTN_E_VALUE,
                "as in --model NAME=FILE,num_heads=5",
                "or \"num_heads\": \"5\" in its __metadata__");
}

static void test_num_heads_must_divide_the_rows_and_agree_with_the_file(void **state) {
    (void)state;
    struct weights_file made = {0}, counted = {0};
    add_d2l(&made, "");
    must_refuse(&made, &(attn_model_options){.num_heads = 3}, ATTN_E_VALUE, "num_heads=3",
                "does not divide the 4 rows");
    add_two_stage(&counted);
    must_refuse(&counted, &(attn_model_options){.num_heads = 3}, ATTN_E_VALUE,
                "num_heads=3 was given", "tensors of 2 heads");
    attn_model_destroy(must_create(&counted, &(attn_model_options){.num_heads = 2}));
}

static void test_option_beats_metadata_beats_default(void **state) {
    (void)state;
    struct weights_file made = {0};
    file_add_text(&made,
                  "\"__metadata__\":{\"num_heads\":\"2\",\"causal\":\"true\","
                  "\"context_length\":\"8\",\"layout\":\"d2l\",\"prefix\":\"a.\"}");
    add_d2l(&made, "a.");
    add_d2l(&made, "b.");
    file_add_f32(&made, "a.unknown", 1, 0, 1); /* ignored, since the layout is named */
    attn_model *model = must_create(&made, &(attn_model_options){0});
    const attn_model_info *info = attn_model_get_info(model);
    assert_true(info->num_heads == 2 && info->mask.causal && info->context_length == 8);
    attn_model_destroy(model);
    model = must_create(&made, &(attn_model_options){.num_heads = 4,
                                                     .causal = "false",
                                                     .context_length = 9,
                                                     .prefix = "b."});
    info = attn_model_get_info(model);
    assert_true(info->num_heads == 4 && !info->mask.causal && info->context_length == 9);
    attn_model_destroy(model);
    must_refuse(&made, &(attn_model_options){.layout = "torch"}, ATTN_E_FORMAT,
                "do not fit layout torch", "lacks tensor 'a.");
}

static void test_malformed_options_are_refused(void **state) {
    (void)state;
    static const char *const metadata[][2] = {{"num_heads", "0"},
                                              {"num_heads", "two"},
                                              {"num_heads", "-2"},
                                              {"num_heads", "2.0"},
                                              {"num_heads", ""},
                                              {"num_heads", "2 "},
                                              {"num_heads", "9999999999999999999999"},
                                              {"context_length", "0"},
                                              {"causal", "True"},
                                              {"causal", ""}};
    for (size_t i = 0; i < sizeof metadata / sizeof metadata[0]; i++) {
        struct weights_file made = {0};
        char text[128], part[64];
        snprintf(text, sizeof text, "\"__metadata__\":{\"%s\":\"%s\"}", metadata[i][0],
                 metadata[i][1]);
        snprintf(part, sizeof part, "%s is '%s' in __metadata__", metadata[i][0],
                 metadata[i][1]);
        file_add_text(&made, text);
        add_d2l(&made, "");
        bool heads = strcmp(metadata[i][0], "num_heads") == 0;
        must_refuse(&made, &(attn_model_options){.num_heads = heads ? 0 : 2},
                    ATTN_E_VALUE, part, "must be");
    }
    struct weights_file made = {0};
    add_d2l(&made, "");
    must_refuse(&made, &(attn_model_options){.num_heads = 2, .causal = "yes"},
                ATTN_E_VALUE, "causal=yes", "true or false");
    must_refuse(&made, &(attn_model_options){.layout = "gpt2"}, ATTN_E_VALUE,
                "layout 'gpt2' is unknown",
                "d2l, torch, llms_from_scratch, llms_from_scratch_wrapper, two_stage");
}

static void test_a_prefix_that_would_fit_is_suggested(void **state) {
    (void)state;
    struct weights_file made = {0};
    file_add_f32(&made, "tok_emb.weight", 2, 2, 1);
    add_d2l(&made, "trf_blocks.0.att.");
    add_d2l(&made, "trf_blocks.1.att.");
    must_refuse(&made, &(attn_model_options){.num_heads = 2}, ATTN_E_FORMAT,
                "prefix ''; choose one that layout d2l fits with (2 in all)",
                ": prefix=trf_blocks.0.att., prefix=trf_blocks.1.att.");
    must_refuse(&made, &(attn_model_options){.num_heads = 2, .prefix = "nowhere."},
                ATTN_E_FORMAT, "prefix 'nowhere.'",
                ": prefix=trf_blocks.0.att., prefix=trf_blocks.1.att.");
    const attn_model_options right = {.num_heads = 2, .prefix = "trf_blocks.1.att."};
    attn_model_destroy(must_create(&made, &right));
    struct weights_file other = {0};
    file_add_f32(&other, "tok_emb.weight", 2, 2, 1);
    must_refuse(&other, &(attn_model_options){.prefix = "nowhere."}, ATTN_E_FORMAT,
                "no tensor has a name that begins with prefix 'nowhere.'", "");
    must_refuse(&other, &(attn_model_options){0}, ATTN_E_FORMAT,
                "the file has 'tok_emb.weight', but no name",
                "that one of d2l, torch, llms");
    for (int i = 0; i < 5; i++) {
        char name[] = "0.weight";
        name[0] = (char)('0' + i);
        file_add_f32(&other, name, 2, 2, 1);
    }
    must_refuse(&other, &(attn_model_options){0}, ATTN_E_FORMAT,
                "has '0.weight', '1.weight', '2.weight' and 3 more, but no name", "");
}

static void test_prefix_that_lacks_its_end_is_completed(void **state) {
    (void)state;
    static const char *const given[] = {"blks.block1.attention", "blks.block1.",
                                        "blks.block1"};
    struct weights_file made = {0}, one = {0};
    add_d2l(&made, "blks.block0.attention.");
    add_d2l(&made, "blks.block1.attention.");
    add_d2l(&made, "blks.block10.attention.");
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        must_refuse(&made, &(attn_model_options){.num_heads = 2, .prefix = given[i]},
                    ATTN_E_FORMAT, "but layout d2l fits with another; ",
                    "write prefix=blks.block1.attention.");

    /* Another block is shown, but nobody is told to write it. */
    add_d2l(&one, "blks.block0.attention.");
    must_refuse(&one, &(attn_model_options){.prefix = "blks.block7.attention."},
                ATTN_E_FORMAT, "choose one that layout d2l fits with (1 in all)",
                ": prefix=blks.block0.attention.");
}

static void test_list_of_prefixes_is_cut(void **state) {
    (void)state;
    struct weights_file made = {0};
    for (int i = 0; i < 8; i++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "a.rather.long.beginning.h%d.", i);
        add_d2l(&made, prefix);
    }
    must_refuse(&made, &(attn_model_options){0}, ATTN_E_FORMAT, "(8 in all)",
                "prefix=a.rather.long.beginning.h3., ...");
}

static void test_nearest_layout_names_what_it_lacks(void **state) {
    (void)state;
    struct weights_file made = {0};
    file_add_f32(&made, "x.W_query.weight", 4, 3, 1);
    file_add_f32(&made, "x.W_key.weight", 4, 3, 1);
    file_add_f32(&made, "x.out_proj.weight", 4, 4, 1);
    must_refuse(
        &made, &(attn_model_options){.prefix = "x."}, ATTN_E_FORMAT,
        "nearest is layout llms_from_scratch, which lacks tensor 'x.W_value.weight'",
        "3 of its 4 weights are present)");
    file_add_f32(&made, "x.W_v.weight", 4, 3, 1);
    must_refuse(&made, &(attn_model_options){.prefix = "x."}, ATTN_E_FORMAT,
                "which lacks tensor 'x.W_value.weight'",
                "; what it does not know is 'x.W_v.weight'");
}

static void test_dtype_is_refused_before_options_are_asked_for(void **state) {
    static const char *const names[] = {"W_query.weight", "W_key.weight",
                                        "W_value.weight", "out_proj.weight", "mask"};
    struct weights_file made = {0}, masked = {0};
    const unsigned char bytes[4] = {1};
    (void)state;

    for (size_t i = 0; i < 5; i++) {
        file_add(&made, names[i], "I8", "[2,2]", bytes, sizeof bytes);
        if (i < 4)
            file_add_f32(&masked, names[i], 2, 2, 1);
    }
    must_refuse(&made, &(attn_model_options){0}, ATTN_E_UNSUPPORTED, "has dtype I8",
                "store it as F32, F16, BF16 or F64");
    file_add(&masked, "mask", "BOOL", "[2,2]", bytes, sizeof bytes); /* not read */
    attn_model_destroy(must_create(&masked, &(attn_model_options){.num_heads = 1}));
}

static void test_transposed_shape_is_called_so(void **state) {
    struct weights_file packed = {0}, other = {0};
    const attn_model_options options = {.num_heads = 2};
    (void)state;

    file_add_f32(&packed, "in_proj_weight", 4, 12, 1);
    file_add_f32(&packed, "out_proj.weight", 4, 4, 1);
    must_refuse(&packed, &options, ATTN_E_SHAPE, "has shape [4,12], expected [12,4]",
                "; is it transposed?");
    file_add_f32(&other, "in_proj_weight", 5, 12, 1);
    file_add_f32(&other, "out_proj.weight", 4, 4, 1);
    must_refuse(&other, &options, ATTN_E_SHAPE, "has shape [5,12], expected [36,12]",
                "query, key and value weights");
}

static void test_ambiguous_layouts_are_named(void **state) {
    (void)state;
    struct weights_file made = {0};
    add_d2l(&made, "");
    add_two_stage(&made);
    must_refuse(&made, &(attn_model_options){.num_heads = 2}, ATTN_E_FORMAT,
                "layouts d2l ('W_q.weight') and two_stage ('W_Q.weight') both fit",
                "write layout=d2l or layout=two_stage");
    const attn_model_options d2l = {.num_heads = 2, .layout = "d2l"};
    attn_model *model = must_create(&made, &d2l);
    assert_string_equal(attn_model_get_info(model)->layout, "d2l");
    attn_model_destroy(model);
    struct weights_file torch = {0};
    file_add_f32(&torch, "in_proj_weight", 6, 2, 1);
    file_add_f32(&torch, "q_proj_weight", 2, 2, 1);
    file_add_f32(&torch, "k_proj_weight", 2, 2, 1);
    file_add_f32(&torch, "v_proj_weight", 2, 2, 1);
    file_add_f32(&torch, "out_proj.weight", 2, 2, 1);
    must_refuse(&torch, &(attn_model_options){.num_heads = 2, .layout = "torch"},
                ATTN_E_FORMAT, "either 'in_proj_weight' or 'q_proj_weight'",
                "remove the one that is not used");
}

static void test_unknown_tensors_are_refused_unless_the_layout_is_named(void **state) {
    (void)state;
    struct weights_file made = {0};
    add_d2l(&made, "");
    file_add_f32(&made, "W_extra.weight", 2, 2, 1);
    must_refuse(&made, &(attn_model_options){.num_heads = 2}, ATTN_E_FORMAT,
                "tensor 'W_extra.weight' is not part of layout d2l",
                "write layout=d2l to ignore it");
    const attn_model_options named = {.num_heads = 2, .layout = "d2l"};
    attn_model_destroy(must_create(&made, &named));
}

static void test_torch_bias_rows_are_refused_even_when_the_layout_is_named(void **state) {
    (void)state;
    struct weights_file made = {0};
    file_add_f32(&made, "in_proj_weight", 6, 2, 1);
    file_add_f32(&made, "out_proj.weight", 2, 2, 1);
    attn_model_destroy(must_create(&made, &(attn_model_options){.num_heads = 2}));
    file_add(&made, "bias_k", "F32", "[1,1,2]", "12345678", 8);
    file_add(&made, "bias_v", "F32", "[1,1,2]", "12345678", 8);
    for (int named = 0; named < 2; named++)
        must_refuse(
            &made,
            &(attn_model_options){.num_heads = 2, .layout = named ? "torch" : NULL},
            ATTN_E_UNSUPPORTED, "tensor 'bias_k'", "attnd does not compute");
}

static void add_wrapper_head(struct weights_file *made, size_t head, size_t rows) {
    static const char *const names[] = {"W_query", "W_key", "W_value"};
    for (size_t i = 0; i < 3; i++) {
        char name[48];
        snprintf(name, sizeof name, "heads.%zu.%s.weight", head, names[i]);
        file_add_f32(made, name, rows, 3, 1);
    }
}

static void test_heads_are_counted_without_gaps(void **state) {
    (void)state;
    struct weights_file made = {0};
    add_wrapper_head(&made, 0, 2);
    add_wrapper_head(&made, 2, 2);
    must_refuse(&made, &(attn_model_options){0}, ATTN_E_FORMAT,
                "tensor 'heads.1.W_query.weight' is missing", "tensors of head 2");
    struct weights_file partial = {0};
    add_wrapper_head(&partial, 0, 2);
    file_add_f32(&partial, "heads.1.W_query.weight", 2, 3, 1);
    must_refuse(&partial, &(attn_model_options){0}, ATTN_E_FORMAT,
                "tensor 'heads.1.W_key.weight' is missing", "head 1");
    struct weights_file far = {0};
    add_wrapper_head(&far, 0, 2);
    add_wrapper_head(&far, 999999999, 2);
    must_refuse(&far, &(attn_model_options){0}, ATTN_E_FORMAT, "heads.1.W_query.weight",
                "tensors of head 999999999");
    struct weights_file padded = {0};
    add_wrapper_head(&padded, 0, 2);
    file_add_f32(&padded, "heads.01.W_query.weight", 2, 3, 1);
    must_refuse(&padded, &(attn_model_options){0}, ATTN_E_FORMAT,
                "tensor 'heads.01.W_query.weight' is not part of", "");
}

static void test_heads_of_different_sizes_are_refused(void **state) {
    (void)state;
    struct weights_file made = {0};
    add_wrapper_head(&made, 0, 2);
    add_wrapper_head(&made, 1, 4);
    must_refuse(&made, &(attn_model_options){0}, ATTN_E_SHAPE,
                "tensor 'heads.1.W_query.weight' has shape [4,3], expected [2,3]",
                "all heads must have the same size");
    struct weights_file bias = {0};
    add_wrapper_head(&bias, 0, 2);
    add_wrapper_head(&bias, 1, 2);
    file_add_f32(&bias, "heads.1.W_key.bias", 2, 0, 1);
    must_refuse(&bias, &(attn_model_options){0}, ATTN_E_FORMAT,
                "tensor 'heads.1.W_key.weight' has a bias", "unlike that of head 0");
    struct weights_file all = {0};
    add_wrapper_head(&all, 0, 2);
    file_add_f32(&all, "heads.0.W_key.bias", 2, 0, 4);
    attn_model *model = must_create(&all, &(attn_model_options){0});
    assert_true(model_bias(model, ATTN_KEY)[1] == 4.125F);
    assert_null(model_bias(model, ATTN_QUERY));
    attn_model_destroy(model);
}

/* d2l with one tensor of another shape. */
static void refuse_shape(const char *name, const char *shape, size_t elements,
                         const char *got, const char *expected) {
    static const float zeros[256];
    static const struct {
        const char *name, *shape;
        size_t elements;
    } good[] = {{"W_q.weight", "[4,3]", 12},
                {"W_k.weight", "[4,3]", 12},
                {"W_v.weight", "[4,3]", 12},
                {"W_o.weight", "[5,4]", 20},
                {"W_q.bias", "[4]", 4},
                {"W_o.bias", "[5]", 5},
                {"attention.W_q.weight", "[7,2]", 14},
                {"attention.W_k.weight", "[7,2]", 14},
                {"attention.w_v.weight", "[1,7]", 7}};
    struct weights_file made = {0};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        bool other = strcmp(good[i].name, name) == 0;
        file_add(&made, good[i].name, "F32", other ? shape : good[i].shape, zeros,
                 (other ? elements : good[i].elements) * sizeof zeros[0]);
    }
    char part[128];
    snprintf(part, sizeof part, "tensor '%s' has shape %s", name, got);
    must_refuse(&made, &(attn_model_options){.num_heads = 2}, ATTN_E_SHAPE, part,
                expected);
}

static void test_every_shape_is_checked(void **state) {
    (void)state;
    refuse_shape("W_q.weight", "[12]", 12, "[12]", "expected [any,any]");
    refuse_shape("W_q.weight", "[0,3]", 0, "[0,3]", "must not be empty");
    refuse_shape("W_q.weight", "[4,0]", 0, "[4,0]", "must not be empty");
    refuse_shape("W_k.weight", "[3,4]", 12, "[3,4]",
                 "expected [4,any]: the weights of query, key and");
    refuse_shape("W_v.weight", "[6,2]", 12, "[6,2]", "expected [4,any]");
    refuse_shape("W_o.weight", "[4,5]", 20, "[4,5]", "expected [any,4]");
    refuse_shape("W_o.weight", "[]", 1, "[]", "expected [any,4]");
    refuse_shape("W_q.bias", "[3]", 3, "[3]", "expected [4]: one number for each row");
    refuse_shape("W_q.bias", "[4,1]", 4, "[4,1]", "expected [4]");
    refuse_shape("W_o.bias", "[4]", 4, "[4]", "expected [5]");
    refuse_shape("attention.W_q.weight", "[7,4]", 28, "[7,4]", "expected [any,2]");
    refuse_shape("attention.W_k.weight", "[6,2]", 12, "[6,2]", "expected [7,2]");
    refuse_shape("attention.w_v.weight", "[7,1]", 7, "[7,1]", "expected [1,7]");
    refuse_shape("attention.w_v.weight", "[6]", 6, "[6]", "expected [7]");
}

static void test_packed_shapes_are_checked(void **state) {
    (void)state;
    struct weights_file made = {0}, bias = {0};
    file_add_f32(&made, "in_proj_weight", 8, 2, 1);
    file_add_f32(&made, "out_proj.weight", 2, 2, 1);
    must_refuse(&made, &(attn_model_options){.num_heads = 2}, ATTN_E_SHAPE,
                "tensor 'in_proj_weight' has shape [8,2], expected [6,2]",
                "packs square query, key and value weights");
    file_add_f32(&bias, "in_proj_weight", 6, 2, 1);
    file_add_f32(&bias, "in_proj_bias", 2, 0, 1);
    file_add_f32(&bias, "out_proj.weight", 2, 2, 1);
    must_refuse(&bias, &(attn_model_options){.num_heads = 2}, ATTN_E_SHAPE,
                "tensor 'in_proj_bias' has shape [2], expected [6]",
                "query, key and value");
}

static void test_second_stage_must_fit_the_first(void **state) {
    (void)state;
    struct weights_file made = {0};
    file_add_f32(&made, "W_Q.weight", 4, 2, 1);
    file_add_f32(&made, "W_K.weight", 3, 2, 1);
    file_add_f32(&made, "W_V.weight", 3, 2, 1);
    file_add_f32(&made, "W_O.weight", 2, 2, 1);
    file_add_f32(&made, "heads.0.W_Q.weight", 2, 3, 1);
    file_add_f32(&made, "heads.0.W_K.weight", 2, 3, 1);
    file_add_f32(&made, "heads.0.W_V.weight", 2, 3, 1);
    must_refuse(&made, &(attn_model_options){0}, ATTN_E_SHAPE,
                "tensor 'heads.0.W_Q.weight' has shape [2,3], expected [any,4]", "");
}

static void test_additive_scoring_needs_all_three_tensors(void **state) {
    (void)state;
    struct weights_file made = {0};
    add_d2l(&made, "p.");
    file_add_f32(&made, "p.attention.W_q.weight", 7, 2, 1);
    file_add_f32(&made, "p.attention.w_v.weight", 7, 0, 1);
    const attn_model_options options = {.num_heads = 2, .prefix = "p."};
    must_refuse(&made, &options, ATTN_E_FORMAT,
                "tensor 'p.attention.W_k.weight' is missing", "additive scoring");
    file_add_f32(&made, "p.attention.W_k.weight", 7, 2, 1);
    attn_model *model = must_create(&made, &options);
    assert_int_equal(attn_model_get_info(model)->width.additive, 7);
    assert_true(model->arrays[MODEL_ADDITIVE_SCORE].numbers[6] == 1.75F);
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_num_heads_is_refused_with_the_option_to_write),
        cmocka_unit_test(test_num_heads_must_divide_the_rows_and_agree_with_the_file),
        cmocka_unit_test(test_option_beats_metadata_beats_default),
        cmocka_unit_test(test_malformed_options_are_refused),
        cmocka_unit_test(test_a_prefix_that_would_fit_is_suggested),
        cmocka_unit_test(test_prefix_that_lacks_its_end_is_completed),
        cmocka_unit_test(test_list_of_prefixes_is_cut),
        cmocka_unit_test(test_nearest_layout_names_what_it_lacks),
        cmocka_unit_test(test_dtype_is_refused_before_options_are_asked_for),
        cmocka_unit_test(test_transposed_shape_is_called_so),
        cmocka_unit_test(test_ambiguous_layouts_are_named),
        cmocka_unit_test(test_unknown_tensors_are_refused_unless_the_layout_is_named),
        cmocka_unit_test(test_torch_bias_rows_are_refused_even_when_the_layout_is_named),
        cmocka_unit_test(test_heads_are_counted_without_gaps),
        cmocka_unit_test(test_heads_of_different_sizes_are_refused),
        cmocka_unit_test(test_every_shape_is_checked),
        cmocka_unit_test(test_packed_shapes_are_checked),
        cmocka_unit_test(test_second_stage_must_fit_the_first),
        cmocka_unit_test(test_additive_scoring_needs_all_three_tensors),
    };
    return cmocka_run_group_tests_name("weights_layout", tests, NULL, NULL);
}
