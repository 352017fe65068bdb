/* SPDX-License-Identifier: Apache-2.0 */
/* gpt.c: decoders with the names of GPT-2, GPT-NeoX, Falcon and Bloom. */
#include "weights/families/table/words.h"

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
/* With the keys of the code that came with the weights before transformers had it. */
#define FALCON(type_name) \
    .type = type_name, \
    .stacks = {{.part = "", .layer = "h.#.", .module = "self_attention.", \
                .names = PACKED("query_key_value", "dense"), \
                .norm = "ln_attn input_layernorm", SIZES(71, 4544, 32), \
                .heads_keys = "num_attention_heads n_head", .mask = MASK_CAUSAL, \
                .width_keys = "hidden_size n_embed", \
                .layers_keys = "num_hidden_layers n_layer"}}, \
    .weights.split = SPLIT_GROUPS, .biases.if_set = "qkvo", .biases.keys = "bias", \
    .sizes.kv_keys = "num_kv_heads n_head_kv", .weights.ignored = OLD_ROTARY, \
    LAYER_NORM("layer_norm_epsilon", 1e-5), \
    ROTATION, .rotation.only_if = "alibi=false", \
    .distance.kind = ATTN_BIAS_ALIBI_ROUNDED, .distance.only_if = "alibi"

static const struct family families[] = {
    {   .type = "gpt2",
        .stacks = {{.part = "", .layer = "h.#.", .module = "attn.", KEYS_GPT,
                    SIZES(12, 768, 12), .names = PACKED("c_attn", "c_proj"),
                    .norm = "ln_1", .mask = MASK_CAUSAL},
                   {.part = "", .layer = "h.#.", .module = "crossattention.", KEYS_GPT,
                    SIZES(12, 768, 12), .names = {"q_attn", "c_attn", "c_attn", "c_proj"},
                    .norm = "ln_cross_attn", .present = "add_cross_attention",
                    .cross = true, .query_apart = true}},
        .weights.split = SPLIT_BLOCKS, .weights.transposed = true,
        .biases.always = "qkvo",
        .scores.scale = SCALE_GPT2, .weights.ignored = "bias masked_bias",
        LAYER_NORM("layer_norm_epsilon", 1e-5)},
    {   /* Karpathy's; the same names, but weights are [out, in] and biases optional */
        .type = "nanogpt", .also = "gpt2", .untyped = "block_size",
        .stacks = {{.part = "", .layer = "h.#.", .module = "attn.", KEYS_GPT,
                    SIZES(12, 768, 12), .names = PACKED("c_attn", "c_proj"),
                    .norm = "ln_1", .mask = MASK_CAUSAL}},
        .weights.split = SPLIT_BLOCKS, .biases.if_set = "qkvo", .biases.keys = "bias",
        .biases.otherwise = true,
        .weights.ignored = "bias", LAYER_NORM(NULL, 1e-5)},
    {   .type = "opt",
        .stacks = {{.part = "", .layer = "decoder.layers.#.",
                    .module = "self_attn.", KEYS_COMMON,
                    SIZES(12, 768, 12), .names = NAMES_PROJ("out_proj"),
                    .norm = "self_attn_layer_norm", .mask = MASK_CAUSAL}},
        .biases.if_set = "qkvo", .biases.keys = "enable_bias", .biases.otherwise = true,
        LAYER_NORM(NULL, 1e-5), .norms.before_if = "do_layer_norm_before",
        .norms.before_otherwise = true},
    {   .type = "gpt_neo",
        .stacks = {{.part = "", .layer = "h.#.", .module = "attn.attention.",
                    .names = NAMES_PROJ("out_proj"), .norm = "ln_1", SIZES(16, 2048, 24),
                    .heads_keys = "num_heads num_attention_heads",
                    .width_keys = "hidden_size",
                    .layers_keys = "num_layers num_hidden_layers", .mask = MASK_CAUSAL}},
        .biases.always = "o", .weights.ignored = "bias masked_bias",
        .scores.scale = SCALE_ONE,
        LAYER_NORM("layer_norm_epsilon", 1e-5),
        .windows.rule = WINDOW_GPT_NEO, .windows.keys = "window_size",
        .windows.size = 256},
    {   .type = "gpt_neox",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "attention.", KEYS_COMMON,
                    .names = PACKED("query_key_value", "dense"),
                    .norm = "input_layernorm",
                    SIZES(64, 6144, 44), .mask = MASK_CAUSAL}},
        .weights.split = SPLIT_GROUPS, .biases.if_set = "qkvo",
        .biases.keys = "attention_bias",
        .biases.otherwise = true,
        .weights.ignored = "bias masked_bias " OLD_ROTARY,
        LAYER_NORM("layer_norm_eps", 1e-5),
        .rotation.rotates = true,
        .rotation.base_keys = "rotary_emb_base rope_theta", .rotation.base = 10000,
        .rotation.part_keys = "rotary_pct partial_rotary_factor", .rotation.part = 0.25},
    {   .type = "gptj",
        .stacks = {{.part = "", .layer = "h.#.", .module = "attn.", KEYS_GPT,
                    .names = NAMES_PROJ("out_proj"), .norm = "ln_1", SIZES(16, 4096, 28),
                    .mask = MASK_CAUSAL}},
        .weights.ignored = "bias masked_bias", LAYER_NORM("layer_norm_epsilon", 1e-5),
        .rotation.rotates = true, .rotation.plain = true, .rotation.interleaved = true,
        .rotation.base = 10000, .rotation.dims_keys = "rotary_dim", .rotation.dims = 64},
    {   FALCON("falcon"), .sizes.kv_rule = HEADS_MULTI_QUERY},
    {   FALCON("RefinedWebModel"), .sizes.kv_rule = HEADS_MULTI_QUERY}, /* falcon-7b */
    {   FALCON("RefinedWeb")}, /* falcon-40b, which implies new_decoder_architecture */
    {   .type = "bloom",
        .stacks = {{.part = "", .layer = "h.#.", .module = "self_attention.",
                    .names = PACKED("query_key_value", "dense"),
                    .norm = "input_layernorm",
                    .heads_keys = "n_head num_attention_heads", .mask = MASK_CAUSAL,
                    .width_keys = "hidden_size n_embed",
                    .layers_keys = "n_layer num_hidden_layers", SIZES(8, 64, 2)}},
        .weights.split = SPLIT_GROUPS, .biases.always = "qkvo",
        .distance.kind = ATTN_BIAS_ALIBI,
        LAYER_NORM("layer_norm_epsilon", 1e-5)},
    {   .type = "mpt",
        .stacks = {{.part = "", .layer = "blocks.#.", .module = "attn.",
                    .names = PACKED("Wqkv", "out_proj"),
                    .norm = "norm_1", SIZES(16, 2048, 24),
                    .heads_keys = "n_heads num_attention_heads", .mask = MASK_CAUSAL,
                    .width_keys = "d_model hidden_size",
                    .layers_keys = "n_layers num_hidden_layers"}},
        .demands = "attn_config.attn_type=multihead_attention attn_config.qk_ln=false "
                   "attn_config.kv_n_heads=null attn_config.prefix_lm=false",
        .weights.split = SPLIT_BLOCKS,
        .scores.scale = SCALE_KEY, .scores.scale_keys = "attn_config.softmax_scale",
        LAYER_NORM("layer_norm_epsilon", 1e-5),
        .scores.clip_keys = "attn_config.clip_qkv", .distance.kind = ATTN_BIAS_ALIBI},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

const struct family_list families_gpt = {families, sizeof families / sizeof families[0]};
