/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_sections.c: which pairs of a rotation turn, and have their position from
 * which axis, as config.json says it. */
#include "find_family.h"
#include "weights_file.h"

#include "weights/families/rotation.h"
#include "weights/layer/frequencies.h"

#include <math.h>

#define HEAD_SIZE 16

/* Reads the rotation of heads of 16 numbers; false with *ret_error when it is refused. */
static bool read_rotation(const char *type, const char *text,
                          struct layer_rotation *ret_rotation, attn_error *ret_error) {
    json_t *config = json_loads(text, 0, NULL);
    *ret_error = (attn_error){.status = ATTN_OK};
    const struct config_section section = {.object = config, .error = ret_error};
    assert_non_null(config);
    const struct layer_source layer = {
        .family = find_family(type), .section = &section, .num_layers = 1};
    rotation_read(&layer, HEAD_SIZE, ret_rotation);
    json_decref(config);
    return ret_error->status == ATTN_OK;
}

static const struct {
    const char *type, *config;
    const char *axes; /* of each pair, or the words of a refusal */
} cases[] = {
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": [2, 3, 3]}}",
     "00111222"},
    {"qwen2_5_vl_text",
     "{\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [4, 0, 4]}}",
     "00002222"},
    {"qwen2_5_vl_text",
     "{\"rope_scaling\": {\"type\": \"default\", \"rope_type\": \"default\", "
     "\"mrope_section\": [8, 0, 0]}}",
     "00000000"},
    {"qwen3_vl_text", "{\"rope_parameters\": {\"mrope_section\": [4, 2, 2]}}",
     "01201200"},
    {"qwen3_vl_text",
     "{\"rope_parameters\": {\"mrope_section\": [3, 3, 2], "
     "\"mrope_interleaved\": true}}",
     "01201201"},
    {"glm4v_text",
     "{\"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"default\", "
     "\"mrope_section\": [2, 1, 1]}}",
     "0012"},
    {"glm4v_moe_text", "{\"rope_parameters\": {\"mrope_section\": [1, 1, 2]}}", "0122"},
    {"qwen2_vl_text", "{}", "mrope_section is missing, and must be a list of 3"},
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": null}}",
     "mrope_section is missing"},
    {"qwen3_vl_text", "{}", "01201201"},
    {"glm4v_text", "{}", "must be a list of 3 numbers whose sum is 8"},
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": [2, 3, 4]}}",
     "mrope_section must be a list of 3 numbers whose sum is 8"},
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": [2, 3, 2]}}",
     "whose sum is 8"},
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": [4, 4]}}",
     "list of 3 numbers"},
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": [9, -4, 3]}}",
     "list of 3 numbers"},
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": [2.0, 3, 3]}}",
     "list of 3 numbers"},
    {"qwen2_vl_text", "{\"rope_parameters\": {\"mrope_section\": 8}}",
     "list of 3 numbers"},
    {"qwen2", "{\"rope_scaling\": {\"type\": \"mrope\"}}",
     "rope_type 'mrope' is unknown"},
};

static void test_sections_give_each_pair_its_axis(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char axis_of[HEAD_SIZE / 2];
        char got[HEAD_SIZE] = "";
        struct layer_rotation rotation;
        attn_error error;
        if (read_rotation(cases[i].type, cases[i].config, &rotation, &error)) {
            rotation_fill_axes(&rotation, axis_of);
            for (size_t a = 0; a < rotation.dims / 2; a++)
                got[a] = (char)('0' + axis_of[a]);
            if (strcmp(got, cases[i].axes) != 0)
                fail_msg("%s %s: %s", cases[i].type, cases[i].config, got);
        } else if (strstr(error.text, cases[i].axes) == NULL) {
            fail_msg("%s %s: %s", cases[i].type, cases[i].config, error.text);
        }
    }
}

static void test_other_families_have_no_sections(void **state) {
    struct layer_rotation rotation;
    attn_error error;
    (void)state;
    assert_true(read_rotation("qwen2",
                              "{\"rope_scaling\": {\"type\": \"default\", "
                              "\"mrope_section\": [2, 3, 3]}}",
                              &rotation, &error));
    assert_int_equal(rotation.sections, SECTIONS_NONE);
}

static void test_patches_of_a_grid_have_row_and_column(void **state) {
    static const char *const axes = "11112222";
    unsigned char axis_of[HEAD_SIZE / 2];
    double frequencies[HEAD_SIZE / 2];
    struct model_rotation made = {.frequencies = frequencies};
    struct layer_rotation rotation;
    attn_error error;
    (void)state;
    assert_true(read_rotation("dinov3_vit",
                              "{\"image_size\": 70, \"patch_size\": 16, "
                              "\"num_register_tokens\": 2, \"rope_theta\": 16}",
                              &rotation, &error));
    assert_int_equal(rotation.grid, 4);
    assert_int_equal(rotation.grid_first, 3);
    rotation_fill_axes(&rotation, axis_of);
    assert_int_equal(frequencies_fill(&rotation, &made, &error), ATTN_OK);
    for (size_t a = 0; a < HEAD_SIZE / 2; a++) {
        double step = 1.5707963267948966 / (double)(1 << a % 4); /* 2 pi / 4 / 16^(a/4) */
        assert_int_equal(axis_of[a], axes[a] - '0');
        assert_true(fabs(frequencies[a] - step) < 1e-15);
    }
    assert_true(read_rotation("dinov3_vit", "{}", &rotation, &error));
    assert_true(rotation.grid == 14 && rotation.grid_first == 1 && rotation.base == 100);
    assert_false(read_rotation("dinov3_vit", "{\"patch_size\": 225}", &rotation, &error));
    assert_non_null(strstr(error.text, "patch_size 225 must be within image_size 224"));
}

static void test_proportional_turns_all_pairs_unless_told(void **state) {
    static const struct {
        const char *type, *part;
        size_t turning;
    } shares[] = {{"llama", "", 8},
                  {"llama", ", \"partial_rotary_factor\": 0.5", 4},
                  {"stablelm", "", 2}, /* the share that its class has */
                  {"gemma4_text", "", 2},
                  {"gemma4_text", ", \"partial_rotary_factor\": null", 8}};
    (void)state;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        struct layer_rotation rotation;
        char text[128];
        attn_error error;
        snprintf(text, sizeof text,
                 "{\"rope_parameters\": {\"rope_type\": \"proportional\"%s}}",
                 shares[i].part);
        assert_true(read_rotation(shares[i].type, text, &rotation, &error));
        assert_int_equal(rotation.dims, HEAD_SIZE);
        assert_int_equal(rotation.turning, shares[i].turning);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proportional_turns_all_pairs_unless_told),
        cmocka_unit_test(test_sections_give_each_pair_its_axis),
        cmocka_unit_test(test_other_families_have_no_sections),
        cmocka_unit_test(test_patches_of_a_grid_have_row_and_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
