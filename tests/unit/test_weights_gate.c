/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_gate.c: where the rows of gates are in a folder, and what of gates and of
 * norms of the heads' outputs is refused. */
#include "family_models.h"
#include "made_file.h"

#define HEADS 2
#define SIZE  8
#define WIDTH 3

#define CONFIG(type, more)                                                               \
    "{\"model_type\": \"" type "\", \"hidden_size\": 3, \"num_attention_heads\": 2, "    \
    "\"num_key_value_heads\": 1, \"head_dim\": 8, \"num_hidden_layers\": 1" more "}"
#define ALL_ATTEND ", \"full_attention_interval\": 1"

/* Adds the tensors of a layer, but for those between heads and the output projection.
 * `query_rows` may be of queries and gates. */
static void add_layer(struct weights_file *file, size_t query_rows) {
    const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    char name[64];

    for (size_t i = 0; i < 3; i++) {
        size_t rows = i == 0 ? query_rows : SIZE;
        snprintf(name, sizeof name, "layers.0.self_attn.%s.weight", names[i]);
        file_add_f32(file, name, rows, WIDTH, (double)i * 100);
    }
    file_add_f32(file, "layers.0.self_attn.o_proj.weight", WIDTH, HEADS * SIZE, 300);
    file_add_f32(file, "layers.0.self_attn.q_norm.weight", SIZE, 0, 1);
    file_add_f32(file, "layers.0.self_attn.k_norm.weight", SIZE, 0, 1);
}

/* Checks number `first` of an array that counts in steps of 1/8. */
static void assert_counts(const float *numbers, size_t count, double first) {
    for (size_t i = 0; i < count; i++)
        assert_true((double)numbers[i] == first + (double)i / 8);
}

static void test_heads_of_one_tensor_are_queries_and_then_gates(void **state) {
    struct weights_file file = {.header_size = 0};
    struct folder *folder = NULL;
    attn_error error = {.text = ""};
    size_t count;
    (void)state;

    add_layer(&file, (size_t)2 * HEADS * SIZE);
    file_add_f32(&file, "layers.0.self_attn.q_proj.bias", (size_t)2 * HEADS * SIZE, 0, 7);
    file_add_f32(&file, "layers.0.self_attn.k_proj.bias", SIZE, 0, 1);
    file_add_f32(&file, "layers.0.self_attn.v_proj.bias", SIZE, 0, 1);
    file_add_f32(&file, "layers.0.self_attn.o_proj.bias", WIDTH, 0, 1);
    if (open_made_file(CONFIG("qwen3_next", ALL_ATTEND ", \"attention_bias\": true"),
                       &file, &folder, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    attn_model *model = make_model(&folder_get_layers(folder, &count)[0], false);
    assert_true(model->info.linears[ATTN_GATE].weight &&
                model->info.linears[ATTN_GATE].bias);
    for (size_t h = 0; h < HEADS; h++) {
        size_t to = h * SIZE, from = 2 * h * SIZE;
        assert_counts(model_weight(model, ATTN_QUERY) + to * WIDTH, SIZE * WIDTH,
                      (double)(from * WIDTH) / 8);
        assert_counts(model_weight(model, ATTN_GATE) + to * WIDTH, SIZE * WIDTH,
                      (double)((from + SIZE) * WIDTH) / 8);
        assert_counts(model_bias(model, ATTN_QUERY) + to, SIZE, 7 + (double)from / 8);
        assert_counts(model_bias(model, ATTN_GATE) + to, SIZE,
                      7 + (double)(from + SIZE) / 8);
    }

    /* packed, it has the memory that was foretold */
    const attn_engine_options native = {.engine = "native"};
    attn_model_info described;
    assert_int_equal(model_describe(&model->info, &native, &described, NULL), ATTN_OK);
    assert_int_equal(model_use_blas(model, "portable", NULL), ATTN_OK);
    assert_int_equal(model_pack(model, &native, NULL), ATTN_OK);
    assert_true(model_weight(model, ATTN_GATE) == NULL &&
                model_bias(model, ATTN_GATE) == NULL);
    assert_int_equal(model->info.footprint.memory, described.footprint.memory);
    assert_int_equal(model->info.footprint.parameters, described.footprint.parameters);
    attn_model_destroy(model);
    folder_close(folder);
}

static void test_what_lies_between_heads_and_outputs_must_fit(void **state) {
    static const struct {
        const char *config, *name;
        size_t query_rows, rows, columns;
        const char *words;
    } cases[] = {
        {CONFIG("qwen3_next", ALL_ATTEND), NULL, 16, 0, 0, "[16,3], expected [32,3]"},
        {CONFIG("qwen3_next", ALL_ATTEND), "gate_proj.weight", 32, 16, 3,
         "not known of family"},
        {CONFIG("qwen3", ""), "gate_proj.weight", 16, 16, 3, "no gate of this family"},
        {CONFIG("afmoe", ""), NULL, 16, 0, 0, "gate_proj.weight' is missing"},
        {CONFIG("afmoe", ""), "gate_proj.weight", 16, 8, 3, "[8,3], expected [16,3]"},
        {CONFIG("bitnet", ""), NULL, 16, 0, 0, "attn_sub_norm.weight' is missing"},
        {CONFIG("bitnet", ""), "attn_sub_norm.weight", 16, 8, 0, "[8], expected [16]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct weights_file file = {.header_size = 0};
        struct folder *folder = NULL;
        attn_error error = {.text = ""};
        char name[64];

        add_layer(&file, cases[i].query_rows);
        snprintf(name, sizeof name, "layers.0.self_attn.%s", cases[i].name);
        if (cases[i].name != NULL)
            file_add_f32(&file, name, cases[i].rows, cases[i].columns, 1);
        assert_true(open_made_file(cases[i].config, &file, &folder, &error) != ATTN_OK);
        assert_text_has(error.text, cases[i].words);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_of_one_tensor_are_queries_and_then_gates),
        cmocka_unit_test(test_what_lies_between_heads_and_outputs_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
