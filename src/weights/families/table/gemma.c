/* SPDX-License-Identifier: Apache-2.0 */
/* gemma.c: decoders of the Gemma family. */
#include "weights/families/table/words.h"

#include <stdio.h>

/* Without use_bidirectional_attention the window is as it is said; with it, half of it
 * and one, of which the mask by that key alone leaves out the farthest. */
static size_t halve_gemma3_window(const struct layer_source *layer) {
    size_t window = layer->window;

    if (!config_get_bool(layer->section, "use_bidirectional_attention") || window == 0)
        return window;
    return window / 2 +
           (layer->causal || !config_get_bool(layer->section, "is_causal=true"));
}

/* Norms values, and lets the last layers take keys and values of the last layer of their
 * kind before them. */
static void adjust_gemma(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;
    struct layer_source lender = *source;
    size_t count = config_get_index(section, source->family->layers.shared_keys);
    size_t end = source->num_layers - count;

    layer->info.value_norm.kind = ATTN_NORM_RMS;
    if (count >= source->num_layers) {
        error_keep(
            section->error, ATTN_E_VALUE,
            "num_kv_shared_layers is %zu, but must be less than %zu, the number of "
            "layers",
            count, source->num_layers);
        return;
    }
    layer->borrows = source->index >= end;
    for (lender.index = end; layer->borrows && lender.index-- > 0;) {
        layer->lender = lender.index;
        if (kind_slides(&lender) == (layer->info.mask.window > 0))
            return;
    }
    if (layer->borrows)
        error_keep(
            section->error, ATTN_E_VALUE,
            "layer %zu takes keys of an earlier layer of its kind, but there is "
            "none before the last %zu; correct num_kv_shared_layers or layer_types",
            source->index, count);
}

/* Reads sizes of this layer that differ from those of others: from its object in
 * per_layer_config, else those of layers without a window. Their values may be the raw
 * keys, without a tensor of their own. */
static void read_gemma4_sizes(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;
    const json_t *all = config_find(section, "per_layer_config", NULL);
    struct config_section own = {.error = section->error};
    char number[24];

    if (source->index + 1 == source->num_layers)
        layer->info.mask.window = 0; /* whatever layer_types says */
    layer->keys_are_values =
        layer->info.mask.window == 0 && config_get_bool(section, "attention_k_eq_v");
    if (all != NULL && !json_is_null(all)) {
        for (int digits = 1; digits < 6 && own.object == NULL; digits++) {
            snprintf(number, sizeof number, "%0*zu", digits, source->index);
            own.object = json_object_get(all, number); /* "5", as well as "05" */
        }
        if (!json_is_object(all) || (own.object != NULL && !json_is_object(own.object)))
            error_keep(section->error, ATTN_E_VALUE,
                       "per_layer_config must be an object, with an object for each "
                       "layer that differs");
        layer->info.num_kv_heads =
            config_get_count(&own, "num_key_value_heads", layer->info.num_kv_heads);
        layer->info.width.score =
            config_get_count(&own, "head_dim", layer->info.width.score);
    } else if (layer->info.mask.window == 0) {
        layer->info.width.score =
            config_get_count(section, "global_head_dim=512", layer->info.width.score);
        if (layer->keys_are_values)
            layer->info.num_kv_heads = config_get_count(
                section, "num_global_key_value_heads", layer->info.num_kv_heads);
    }
}

/* Layers without a window have another number of key heads, too. */
static void read_embedding_sizes(const struct layer_source *source, struct layer *layer) {
    read_gemma4_sizes(source, layer);
    if (layer->info.mask.window == 0 &&
        !json_is_object(config_find(source->section, "per_layer_config", NULL)))
        layer->info.num_kv_heads =
            config_get_count(source->section, "num_global_key_value_heads=1", 1);
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
static const struct layer_rotation gemma4_rotation = {
    .type = ROTATION_PROPORTIONAL, .factor = 1};
/* Values are normed, and the last layers take those of earlier ones. */
#define GEMMA3N(type_name, w, n, kv, period_of_full) \
    LLAMA(type_name, 8, w, n, kv, 256), BIASES, RMS(1e-6), HEAD_NORMS, \
    .scores.scale = 1, BASE(1e6), LOCAL_BASE("rope_local_base_freq", 10000), \
    PERIODS(512, "=" #period_of_full), .adjust = adjust_gemma

const struct family families_gemma[] = {
    {   LLAMA("gemma", 16, 3072, 28, 16, 256), BIASES, .norms.plus_one = true, RMS(1e-6),
        ROTATION},
    {   LLAMAS(8, 2304, 26, 4, 256, "gemma2", "vaultgemma"), BIASES, RMS(1e-6), ROTATION,
        .norms.plus_one = true, .scores.root_keys = "query_pre_attn_scalar=256",
        PERIODS(4096, "=2"), .scores.softcap_keys = "attn_logit_softcapping"},
    {   .types = {"gemma3_text"}, .stacks = {STACK_DECODER(MASK_UNLESS_BIDIRECTIONAL, 8,
        2304, 26)}, BIASES, HEADS(4, 256),
        .scores.root_keys = "query_pre_attn_scalar=256", .norms.plus_one = true,
        RMS(1e-6), HEAD_NORMS, BASE(1e6), LOCAL_BASE("rope_local_base_freq", 10000),
        PERIODS(4096, "sliding_window_pattern=6"), .windows.length = halve_gemma3_window},
    {   GEMMA3N("gemma3n_text", 2048, 35, 2, 5), .ignored = "query_pre_attn_scalar",
        .layers.shared_keys = "num_kv_shared_layers=15"},
    {   GEMMA3N("gemma4_text", 2304, 30, 4, 6), .rotation.unset = &gemma4_rotation,
        .rotation.part = 0.25, .sizes.adjust = read_gemma4_sizes,
        .layers.shared_keys = "num_kv_shared_layers"},
    {   .types = {"embedding_gemma2_text"}, .stacks = {STACK_DECODER(MASK_NONE, 4, 512,
        24)}, BIASES, HEADS(2, 256), RMS(1e-6), HEAD_NORMS, .scores.scale = 1, BASE(1e6),
        LOCAL_BASE("rope_local_base_freq", 10000), .sizes.adjust = read_embedding_sizes,
        PERIODS(512, "sliding_window_pattern=6"),
        .layers.shared_keys = "num_kv_shared_layers", .adjust = adjust_gemma},
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
