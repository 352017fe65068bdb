/* SPDX-License-Identifier: Apache-2.0 */
/* gpt.c: decoders with the names of GPT-2, GPT-NeoX, Falcon and Bloom. */
#include "weights/families/table/words.h"

#include <string.h>

/* Returns whether the layer is local by attention_types, [[["global", "local"], 12]]:
 * kinds, and how often they are repeated. */
static bool is_gpt_neo_local(const struct layer_source *layer) {
    const json_t *groups = config_find(layer->section, "attention_types", NULL);
    size_t first = 0, i;
    json_t *group;

    if (groups == NULL || json_is_null(groups))
        return layer->index % 2 == 1;
    json_array_foreach(groups, i, group) {
        const json_t *kinds = json_array_get(group, 0);
        json_int_t times = json_integer_value(json_array_get(group, 1));
        size_t count = json_array_size(kinds);
        if (count == 0 || times < 1 || times > (json_int_t)CONFIG_COUNT_MAX)
            break;
        if (layer->index - first >= count * (size_t)times) {
            first += count * (size_t)times;
            continue;
        }

        const char *kind =
            json_string_value(json_array_get(kinds, (layer->index - first) % count));
        if (kind != NULL && (strcmp(kind, "local") == 0 || strcmp(kind, "global") == 0))
            return strcmp(kind, "local") == 0;
        break;
    }
    error_keep(layer->section->error, ATTN_E_VALUE,
               "attention_types must say global or local for layer %zu, as in "
               "[[[\"global\", \"local\"], 12]]",
               layer->index);
    return false;
}

static void share_one_key_head(const struct layer_source *source, struct layer *layer) {
    if (config_get_bool(source->section, "multi_query=true"))
        layer->info.num_kv_heads = 1;
}

/* The new architecture has a number of its own, else all query heads share one, or none
 * does. */
static void read_falcon_heads(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;

    if (config_get_bool(section, "new_decoder_architecture"))
        layer->info.num_kv_heads =
            config_get_count(section, "num_kv_heads n_head_kv", layer->info.num_heads);
    else
        share_one_key_head(source, layer);
}

static bool has_no_alibi(const struct layer_source *layer) {
    return !json_is_true(config_find(layer->section, "alibi", NULL));
}

static void read_falcon_alibi(const struct layer_source *source, struct layer *layer) {
    if (config_get_bool(source->section, "alibi"))
        layer->info.score.bias = ATTN_BIAS_ALIBI_ROUNDED;
}

static void scale_unless_off(const struct layer_source *source, struct layer *layer) {
    if (!config_get_bool(source->section, "scale_attn_weights=true"))
        layer->info.score.scale = 1;
}

static void scale_by_layer(const struct layer_source *source, struct layer *layer) {
    scale_unless_off(source, layer);
    if (config_get_bool(source->section, "scale_attn_by_inverse_layer_idx"))
        layer->info.score.scale /= (double)(source->index + 1);
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
/* GPT-2's names. */
#define STACK_GPT(before, h, w, n, mask_of, ...) \
    STACK(KEYS_GPT, "h.#.", "attn.", before, h, w, n, mask_of, __VA_ARGS__)
#define C_ATTN PACKED("c_attn", "c_proj")
/* As a Conv1D of transformers has them. */
#define CONV1D \
    .weights.split = SPLIT_BLOCKS, .weights.transposed = true, BIASED
#define GPT_NEOX(type_name, h, w, n) \
    .types = {type_name}, .stacks = {STACK(KEYS_COMMON, "layers.#.", "attention.", \
        "input_layernorm", h, w, n, MASK_CAUSAL, PACKED("query_key_value", "dense"))}, \
    .weights.split = SPLIT_GROUPS, LAYER_NORM("layer_norm_eps", 1e-5), \
    BASE_OF("rotary_emb_base", 10000)
#define LAYER_NORM_EPSILON LAYER_NORM("layer_norm_epsilon", 1e-5)
/* With the keys of the code that came with the weights before transformers had it. */
#define FALCON(...) \
    .types = {__VA_ARGS__}, .stacks = {STACK(KEYS("num_attention_heads n_head", \
        "hidden_size n_embed", "num_hidden_layers n_layer"), "h.#.", "self_attention.", \
        "ln_attn input_layernorm", 71, 4544, 32, MASK_CAUSAL, \
        PACKED("query_key_value", "dense"))}, .weights.split = SPLIT_GROUPS, \
    .biases.if_set = "qkvo", .biases.keys = "bias", \
    LAYER_NORM_EPSILON, ROTATION, .rotation.only_if = has_no_alibi, \
    .adjust = read_falcon_alibi

const struct family families_gpt[] = {
    {   .types = {"gpt2"}, CONV1D, .weights.ignored = "bias masked_bias",
        .stacks = {STACK_GPT("ln_1", 12, 768, 12, MASK_CAUSAL, C_ATTN),
                   {.part = "", .layer = "h.#.", .module = "crossattention.", KEYS_GPT,
                    SIZES(12, 768, 12), .names = {"q_attn", "c_attn", "c_attn", "c_proj"},
                    .norm = "ln_cross_attn", .present = "add_cross_attention",
                    .cross = true}}, LAYER_NORM_EPSILON, .adjust = scale_by_layer},
    {   /* Karpathy's; the same names, but weights are [out, in] and biases optional */
        .types = {"nanogpt"}, .weights.split = SPLIT_BLOCKS, .weights.ignored = "bias",
        .stacks = {STACK_GPT("ln_1", 12, 768, 12, MASK_CAUSAL, C_ATTN)},
        BIASES_IF("qkvo", "bias=true"), LAYER_NORM(NULL, 1e-5)},
    {   .types = {"opt"}, .stacks = {STACK(KEYS_COMMON, "decoder.layers.#.", "self_attn.",
        "self_attn_layer_norm", 12, 768, 12, MASK_CAUSAL, NAMES_PROJ("out_proj"))},
        BIASES_IF("qkvo", "enable_bias=true"), LAYER_NORM(NULL, 1e-5),
        .norms.before_if = "do_layer_norm_before=true"},
    {   .types = {"gpt_neo"}, .stacks = {STACK(KEYS("num_heads num_attention_heads",
        "hidden_size", "num_layers num_hidden_layers"), "h.#.", "attn.attention.", "ln_1",
        16, 2048, 24, MASK_CAUSAL, NAMES_PROJ("out_proj"))}, .biases.always = "o",
        .weights.ignored = "bias masked_bias", .scores.scale = 1, LAYER_NORM_EPSILON,
        .windows.slides = is_gpt_neo_local, .windows.keys = "window_size=256",
        .layers.types_keys = "", .ignored = "sliding_window"},
    {   GPT_NEOX("gpt_neox", 64, 6144, 44), BIASES_IF("qkvo", "attention_bias=true"),
        .weights.ignored = "bias masked_bias", PART_OF("rotary_pct", 0.25)},
    {   GPT_NEOX("gpt_neox_japanese", 32, 2560, 32), PART_OF("rotary_pct", 1),
        .weights.ignored = "dense_bias bias masked_bias"},
    {   .types = {"gptj"}, .weights.ignored = "bias masked_bias", LAYER_NORM_EPSILON,
        .stacks = {STACK_GPT("ln_1", 16, 4096, 28, MASK_CAUSAL, NAMES_PROJ("out_proj"))},
        .rotation.base = 10000, .rotation.plain = true, NEIGHBOURS,
        .rotation.dims_keys = "rotary_dim=64"},
    {   FALCON("falcon", "RefinedWebModel"), .sizes.adjust = read_falcon_heads},
    {   /* falcon-40b, which implies new_decoder_architecture */
        FALCON("RefinedWeb"), .sizes.kv_keys = "num_kv_heads n_head_kv"},
    {   .types = {"bloom"}, .stacks = {STACK(KEYS("n_head num_attention_heads",
        "hidden_size n_embed", "n_layer num_hidden_layers"), "h.#.", "self_attention.",
        "input_layernorm", 8, 64, 2, MASK_CAUSAL, PACKED("query_key_value", "dense"))},
        .weights.split = SPLIT_GROUPS, BIASED,
        .distance.kind = ATTN_BIAS_ALIBI, LAYER_NORM_EPSILON},
    {   .types = {"mpt"},
        .stacks = {STACK(KEYS("n_heads num_attention_heads", "d_model hidden_size",
        "n_layers num_hidden_layers"), "blocks.#.", "attn.", "norm_1", 16, 2048, 24,
        MASK_CAUSAL, PACKED("Wqkv", "out_proj"))},
        .demands = "attn_config.attn_type=multihead_attention attn_config.qk_ln=false "
                   "attn_config.alibi=true "
                   "attn_config.kv_n_heads=null attn_config.prefix_lm=false",
        .weights.split = SPLIT_BLOCKS, LAYER_NORM_EPSILON,
        .scores.scale_keys = "attn_config.softmax_scale",
        .scores.clip_keys = "attn_config.clip_qkv", .distance.kind = ATTN_BIAS_ALIBI},
    {   .types = {"openai-gpt"}, CONV1D, .weights.ignored = "bias",
        .stacks = {STACK_GPT(NULL, 12, 768, 12, MASK_ALWAYS_CAUSAL, C_ATTN)}},
    {   .types = {"imagegpt"}, CONV1D, .weights.ignored = "bias masked_bias",
        .stacks = {STACK_GPT("ln_1", 8, 512, 24, MASK_ALWAYS_CAUSAL, C_ATTN)},
        .adjust = scale_by_layer, .demands = "add_cross_attention=false",
        RMS_NORM("layer_norm_epsilon", 1e-5)},
    {   .types = {"gpt_bigcode"}, .weights.split = SPLIT_ONE_KEY,
        .stacks = {STACK_GPT("ln_1", 12, 768, 12, MASK_CAUSAL, C_ATTN)},
        .weights.ignored = "bias", BIASED, LAYER_NORM_EPSILON,
        .sizes.adjust = share_one_key_head, .adjust = scale_unless_off,
        .demands = "add_cross_attention=false"},
    {   .types = {"codegen"}, .weights.split = SPLIT_QUARTERS, LAYER_NORM_EPSILON,
        .stacks = {STACK_GPT("ln_1", 16, 4096, 28, MASK_CAUSAL,
        PACKED("qkv_proj", "out_proj"))}, .weights.ignored = "causal_mask",
        .rotation.base = 10000, .rotation.plain = true, NEIGHBOURS,
        .rotation.dims_keys = "rotary_dim=64"},
    {   .types = {"ctrl"}, .stacks = {STACK(KEYS_GPT, "h.#.", "multi_head_attention.",
        "layernorm1", 16, 1280, 48, MASK_CAUSAL, {"Wq", "Wk", "Wv", "dense"})},
        BIASED, LAYER_NORM("layer_norm_epsilon", 1e-6)},
    {   .types = {"biogpt"}, .stacks = {STACK_SELF("self_attn_layer_norm", 16, 1024, 24,
        MASK_CAUSAL, NAMES_PROJ("out_proj"))}, BIASED, LAYER_NORM(NULL, 1e-5)},
    {   .types = {"xglm"}, .stacks = {STACK(KEYS("attention_heads num_attention_heads",
        "d_model hidden_size", "num_layers num_hidden_layers"), "layers.#.", "self_attn.",
        "self_attn_layer_norm", 16, 1024, 24, MASK_CAUSAL, NAMES_PROJ("out_proj"))},
        BIASED, .demands = "add_cross_attention=false", LAYER_NORM(NULL, 1e-5)},
    {   .types = {"dbrx"}, .stacks = {STACK(KEYS("n_heads num_attention_heads",
        "d_model hidden_size", "n_layers num_hidden_layers"), "blocks.#.",
        "norm_attn_norm.attn.", "norm_attn_norm.norm_1", 16, 2048, 24, MASK_CAUSAL,
        PACKED("Wqkv", "out_proj"))}, .weights.split = SPLIT_BLOCKS,
        .sizes.kv_keys = "attn_config.kv_n_heads=1", LAYER_NORM(NULL, 1e-5),
        BASE_OF("rope_theta,attn_config.rope_theta", 10000),
        .scores.clip_keys = "attn_config.clip_qkv"},
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
