/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_own.c: tensors that options name, where no layout does. */
#include "weights_create.h"

/* Three matrices under a prefix, called as parameters are. */
static void add_parameters(struct weights_file *made) {
    file_add_f32(made, "a.W_query", 4, 3, 1);
    file_add_f32(made, "a.W_key", 2, 3, 2);
    file_add_f32(made, "a.W_value", 2, 3, 3);
}

static const attn_model_options own_names = {
    .num_heads = 2, .prefix = "a.", .q = "W_query", .k = "W_key", .v = "W_value"};

static void test_names_of_ones_own_are_those_of_tensors_or_modules(void **state) {
    struct weights_file parameters = {0}, linears = {0};
    attn_model_options whole = own_names;
    (void)state;

    add_parameters(&parameters);
    attn_model *model = must_create(&parameters, &own_names);
    const attn_model_info *info = attn_model_get_info(model);
    assert_string_equal(info->layout, "own");
    assert_true(info->num_kv_heads == 1 && info->width.head == 2 && !info->mask.causal);
    attn_model_destroy(model);

    file_add_f32(&linears, "a.W_query.weight", 4, 3, 1);
    file_add_f32(&linears, "a.W_key.weight", 4, 3, 1);
    file_add_f32(&linears, "a.W_value.weight", 4, 3, 1);
    file_add_f32(&linears, "a.out.weight", 5, 4, 1);
    file_add_f32(&linears, "a.out.bias", 5, 0, 1);
    whole.k = "W_key.weight";
    must_refuse(&linears, &whole, ATTN_E_FORMAT,
                "tensor 'a.out.bias' has none of the given names", "save the file");
    whole.o = "out";
    model = must_create(&linears, &whole);
    assert_true(model_bias(model, ATTN_OUTPUT)[1] == 1.125F);
    attn_model_destroy(model);
}

static void test_transposed_names_read_the_other_axis(void **state) {
    struct weights_file made = {0};
    attn_model_options options = {
        .num_heads = 2, .q = "q", .k = "k", .v = "v", .transposed = "true"};
    (void)state;

    file_add_f32(&made, "q", 3, 4, 1);
    file_add_f32(&made, "k", 3, 2, 1);
    file_add_f32(&made, "v", 3, 2, 1);
    attn_model *model = must_create(&made, &options);
    const attn_model_info *info = attn_model_get_info(model);
    assert_true(info->width.query == 3 && info->width.head == 2 &&
                info->num_kv_heads == 1);
    attn_model_destroy(model);
    options.transposed = "yes";
    must_refuse(&made, &options, ATTN_E_VALUE, "transposed=yes must be true or false",
                "");
    options.transposed = NULL;
    options.num_heads = 1;
    options.o = "q";
    must_refuse(&made, &options, ATTN_E_SHAPE, "'q' has shape [3,4], expected [any,3]",
                "; write transposed=true if weights are [in, out]");
}

static void test_names_of_ones_own_are_refused_by_the_option(void **state) {
    struct weights_file made = {0}, doubled = {0};
    attn_model_options options = own_names;
    (void)state;

    add_parameters(&made);
    add_parameters(&doubled);
    file_add_f32(&doubled, "a.W_key.weight", 2, 3, 1);
    must_refuse(&doubled, &own_names, ATTN_E_FORMAT,
                "k=W_key names 'W_key' and 'W_key.weight'", "remove the one");
    options.q = "";
    must_refuse(&made, &options, ATTN_E_FORMAT, "q= names no tensor",
                "there are 'a.W_key', 'a.W_query', 'a.W_value'; 'attnd inspect FILE'");
    options.q = NULL;
    must_refuse(&made, &options, ATTN_E_VALUE, "q= is missing; write q=, k= and v=", "");
    options = (attn_model_options){.prefix = "a.", .qkv = "W_query", .v = "W_value"};
    must_refuse(&made, &options, ATTN_E_VALUE, "v= is beside qkv=", "or qkv= alone");
    options = own_names;
    options.layout = "d2l";
    must_refuse(&made, &options, ATTN_E_VALUE, "layout=d2l and names of tensors",
                "leave one out");
    options = own_names;
    options.rope_interleaved = "true";
    must_refuse(&made, &options, ATTN_E_VALUE, "rope_interleaved is for layers that",
                "write rope_theta=");
    static const char *const d2l[] = {"W_q.weight", "W_k.weight", "W_v.weight",
                                      "W_o.weight"};
    struct weights_file known = {0};
    for (size_t i = 0; i < 4; i++)
        file_add_f32(&known, d2l[i], 4, 4, 1);
    must_refuse(&known, &(attn_model_options){.num_heads = 2, .transposed = "true"},
                ATTN_E_VALUE, "transposed is for tensors that are named", "leave it out");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_ones_own_are_those_of_tensors_or_modules),
        cmocka_unit_test(test_transposed_names_read_the_other_axis),
        cmocka_unit_test(test_names_of_ones_own_are_refused_by_the_option),
    };
    return cmocka_run_group_tests_name("weights_own", tests, NULL, NULL);
}
