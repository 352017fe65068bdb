/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_configs.c: a config.json as people write it, and as the class of
 * transformers completes it, must make the same layers. tests/data/hf/CONFIGS has both,
 * as tests/data/hf/configs.py recorded them: defaults, spellings of both versions, and
 * keys that single families read in a way of their own. */
#include "find_family.h"
#include "weights_file.h"

#include "weights/families/kinds.h"
#include "weights/families/traits.h"
#include "weights/layer/make.h"

#include <stdio.h>

/* What a config.json makes of one stack of a family. */
struct read_stack {
    struct match match;
    struct match_stack found;
    attn_error error;
};

/* Finds the family of a type, and the object that its keys are in. */
static const json_t *find_object_of(const char *type, const json_t *config,
                                    struct match *ret_match) {
    const struct family_text *text = family_find_text(type);
    const json_t *section =
        text != NULL ? json_object_get(config, "text_config") : config;
    const char *own = json_string_value(json_object_get(section, "model_type"));
    bool fixed = text != NULL && strstr(text->otherwise, "_text") != NULL;

    *ret_match = (struct match){.text = text};
    if (text != NULL)
        type = own != NULL && !fixed ? own : text->otherwise;
    ret_match->family = find_family(type);
    ret_match->type = type;
    return section;
}

/* Reads what there is before the layers of stack `i`. */
static void read_stack(const char *type, const json_t *config, size_t i,
                       struct attention_keys *asked, struct read_stack *ret_read) {
    *ret_read = (struct read_stack){.error = {.status = ATTN_OK}};
    const json_t *object = find_object_of(type, config, &ret_read->match);
    const struct stack *stack = &ret_read->match.family->stacks[i];
    const struct family_layers *layers = &ret_read->match.family->layers;

    if (stack->section != NULL)
        object = json_object_get(object, stack->section);
    ret_read->found = (struct match_stack){
        .stack = stack,
        .part = stack->part,
        .section = {.object = object, .error = &ret_read->error, .asked = asked}};
    struct match_stack *found = &ret_read->found;
    size_t listed = kind_count_layers(ret_read->match.family, &found->section);
    found->num_heads = config_get_count(&found->section, stack->heads_keys, stack->heads);
    found->width = config_get_count(&found->section, stack->width_keys, stack->width);
    found->num_layers = config_get_count(
        &found->section, stack->layers_keys,
        layers->types_keys != NULL && listed > 0 ? listed : stack->layers);
}

/* Writes numbers that the features do not have. */
static void describe_numbers(const struct layer *layer, char *ret_text, size_t size) {
    const struct layer_rotation *rotation = &layer->rotation;

    snprintf(ret_text, size,
             " | %zu %zu %zu %zu %zu %zu, scale %.15g, eps %g %g, base %.15g, factor %g, "
             "between %g %g, beta %g %g, %d %zu, magnitude %g %g %g, original %zu",
             layer->info.num_heads, layer->info.num_kv_heads, layer->info.width.score,
             layer->info.width.head, layer->info.latent.query, layer->info.latent.key,
             layer->info.score.scale, layer->info.pre_norm.eps, layer->info.head_norm.eps,
             rotation->base, rotation->factor, rotation->low_freq_factor,
             rotation->high_freq_factor, rotation->beta_fast, rotation->beta_slow,
             rotation->truncate, rotation->turning, rotation->attention_factor,
             rotation->mscale, rotation->mscale_all_dim, rotation->original_positions);
}

/* Describes layer `i`, or says why it cannot be. */
static void describe_layer_text(struct read_stack *read, size_t i, char *ret_text,
                                size_t size) {
    const struct layer_source kind = {.family = read->match.family,
                                      .section = &read->found.section,
                                      .num_layers = read->found.num_layers,
                                      .index = i};
    struct layer layer;

    snprintf(ret_text, size, "no attention");
    if (!kind_attends(&kind))
        return;
    if (traits_read(&read->match, &read->found, i, &layer) != ATTN_OK) {
        snprintf(ret_text, size, "error: %s", read->error.text);
        return;
    }
    layer_describe_features(&layer, ret_text);
    size_t used = strlen(ret_text);
    describe_numbers(&layer, ret_text + used, size - used);
    used = strlen(ret_text);
    for (size_t k = 0; k < ATTN_NUM_LINEARS && used + 1 < size; k++)
        used += (size_t)snprintf(ret_text + used, size - used, " %d",
                                 layer.linears[k].has_bias);
}

/* Compares the layers of stack `i`. */
static void compare_stacks(const char *type, const char *written, const json_t *config,
                           const json_t *full, size_t i, struct attention_keys *asked) {
    enum { TEXT_SIZE = FEATURES_TEXT_SIZE + 512 };
    static struct read_stack a, b;
    char left[TEXT_SIZE], right[TEXT_SIZE];

    read_stack(type, config, i, NULL, &a);
    read_stack(type, full, i, asked, &b);
    if (a.found.num_heads != b.found.num_heads || a.found.width != b.found.width ||
        a.found.num_layers != b.found.num_layers)
        fail_msg("%s %s, stack %zu: %zu heads, width %zu, %zu layers, but transformers "
                 "has %zu, %zu and %zu",
                 type, written, i, a.found.num_heads, a.found.width, a.found.num_layers,
                 b.found.num_heads, b.found.width, b.found.num_layers);
    for (size_t layer = 0; layer < a.found.num_layers; layer++) {
        describe_layer_text(&a, layer, left, sizeof left);
        describe_layer_text(&b, layer, right, sizeof right);
        if (strcmp(left, right) != 0)
            fail_msg("%s %s, stack %zu, layer %zu:\n%s\nbut completed:\n%s", type,
                     written, i, layer, left, right);
    }
}

static void test_configs_are_what_their_classes_complete_them_to(void **state) {
    FILE *file = fopen(TEST_DATA "/hf/CONFIGS", "r");
    char *line = NULL;
    size_t room = 0, count = 0;
    (void)state;

    assert_non_null(file);
    for (; getline(&line, &room, file) > 0; count++) {
        json_t *record = json_loads(line, 0, NULL);
        const char *type = json_string_value(json_array_get(record, 0));
        json_t *config = json_array_get(record, 1), *full = json_array_get(record, 2);
        char *written = json_dumps(config, 0);
        struct attention_keys asked = {.asked[0].object = NULL};
        attn_error error = {.status = ATTN_OK};
        struct match match;
        assert_non_null(type);
        const json_t *object = find_object_of(type, full, &match);
        for (size_t i = 0; i < 3 && match.family->stacks[i].layer != NULL; i++)
            compare_stacks(type, written, config, full, i, &asked);
        if (attention_keys_check(&asked, object, type, match.family->ignored, &error) !=
            ATTN_OK)
            fail_msg("%s %s: %s", type, written, error.text);
        free(written);
        json_decref(record);
    }
    assert_true(count > 500);
    free(line);
    fclose(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configs_are_what_their_classes_complete_them_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
