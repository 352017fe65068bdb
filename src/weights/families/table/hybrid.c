/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid.c: decoders of which only some layers have attention. */
#include "weights/families/table/words.h"

#include <string.h>

/* By a text, where the layers with attention have a *. */
static bool nemotron_attends(const struct layer_source *layer) {
    const char *pattern =
        config_get_text(layer->section, "hybrid_override_pattern", NULL);

    if (pattern == NULL)
        return layer->index % 4 == 2;
    return strnlen(pattern, layer->index + 1) > layer->index &&
           pattern[layer->index] == '*';
}

/* The others attend to images. */
static bool mllama_attends(const struct layer_source *layer) {
    const json_t *list = config_find(layer->section, "cross_attention_layers", NULL);
    size_t i;
    json_t *item;

    if (list == NULL || json_is_null(list))
        return layer->index % 5 != 3;
    json_array_foreach(list, i, item) {
        if (json_integer_value(item) == (json_int_t)layer->index)
            return false;
    }
    return true;
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
#define OTHER_MIXERS .layers.without = "linear_attention conv mamba mlp moe"
#define LFM2(type_name, w) { \
    .types = {type_name}, .stacks = {STACK_SELF("operator_norm", 32, w, 32, \
        MASK_CAUSAL, NAMES_PROJ("out_proj"))}, OTHER_MIXERS, \
    .layers.list_keys = "full_attn_idxs", HEADS(8, 0), RMS_NORM("norm_eps", 1e-5), \
    NORMS_OF_HEADS("q_layernorm", "k_layernorm", ATTN_NORM_RMS), BASE(1e6)}

/* Qwen3-Next and its followers. */
#define QWEN_GATED(type_name, w, n, kv) \
    LLAMA(type_name, 16, w, n, kv, 256), .layers.without = "linear_attention", \
    .layers.last = true, .layers.period_keys = "full_attention_interval=4", \
    .weights.split = SPLIT_GATED, .biases.if_set = "qkvog", \
    .biases.keys = "attention_bias", RMS(1e-6), .norms.plus_one = true, \
    HEAD_NORMS, ROTATION, PART(0.25)
/* Their texts have positions of three axes. */
#define QWEN35(type_name, w, n, kv) { \
    QWEN_GATED(type_name, w, n, kv), .rotation.sections = SECTIONS_INTERLEAVED, \
    .rotation.section_sizes = {11, 11, 10}, .rotation.words = "mrope=default"}

const struct family families_hybrid[] = {
    {   LLAMA("bamba", 32, 4096, 32, 8, 0), BIASES, OTHER_MIXERS,
        .layers.list_keys = "attn_layer_indices", RMS(1e-5), ROTATION, PART(0.5)},
    {   LLAMA("granitemoehybrid", 32, 4096, 32, 0, 0), BIASES, OTHER_MIXERS,
        .layers.types_keys = "layer_types layers_block_type", RMS(1e-6), ROTATION,
        .rotation.only_type = "rope", .scores.scale_keys = "attention_multiplier",
        .scores.scale = 1},
    {   LLAMA("jamba", 32, 4096, 32, 8, 0), RMS(1e-6),
        .layers.period_keys = "attn_layer_period=8",
        .layers.offset_keys = "attn_layer_offset=4"},
    LFM2("lfm2", 2560),
    LFM2("lfm2_moe", 2048),
    {   LLAMA("mllama_text_model", 32, 4096, 40, 8, 0), RMS(1e-5), BASE(500000),
        .layers.attends = mllama_attends},
    {   LLAMA("minimax", 32, 4096, 32, 8, 0), OTHER_MIXERS, .layers.period_keys = "=2",
        RMS(1e-5), BASE(1e6), .windows.keys = "sliding_window"},
    {   .types = {"nemotron_h"}, .stacks = {STACK(KEYS_COMMON, "layers.#.", "mixer.",
        "norm", 32, 4096, 4, MASK_CAUSAL, NAMES_PROJ("o_proj"))}, HEADS(8, 128),
        .biases.as_stored = "qkvo", .ignored = "sliding_window", OTHER_MIXERS,
        .layers.types_keys = "layers_block_type layer_types",
        .layers.attends = nemotron_attends,
        .layers.period_keys = "hybrid_override_pattern",
        RMS_NORM("layer_norm_epsilon rms_norm_eps", 1e-5)},
    {   QWEN_GATED("qwen3_next", 2048, 48, 2)},
    QWEN35("qwen3_5_text", 4096, 32, 4),
    QWEN35("qwen3_5_moe_text", 2048, 40, 2),
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
