/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c: decoders with the names of Llama. */
#include "weights/families/table/words.h"

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
#define STACK_GEMMA3(name, section_name, above, h, w, n) \
    {.part = name, .section = section_name, .under = above, .layer = "layers.#.", \
     .module = "self_attn.", .names = NAMES_PROJ("o_proj"), .norm = "input_layernorm", \
     KEYS_COMMON, SIZES(h, w, n), .mask = MASK_UNLESS_BIDIRECTIONAL}
/* Where it is true, transformers' kernels differ: eager is causal, and sdpa is not. */
#define CAUSAL_GEMMA .demands = "use_bidirectional_attention=false"
static const struct layer_rotation gpt_oss_rotation = {
    .type = ROTATION_YARN, .factor = 32, .beta_fast = 32, .beta_slow = 1,
    .original_positions = 4096};
#define QWEN_WINDOW(which) .windows.rule = which, \
.windows.only_if = "use_sliding_window", \
                          .windows.keys = "sliding_window", .windows.size = 4096
#define QWEN3(type_name, h, w, n, kv, d, which) { \
    .type = type_name, .stacks = {STACK_LLAMA(h, w, n)}, .biases.if_set = "qkvo", \
    .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads", \
    .sizes.kv_heads = kv, \
    .sizes.head_keys = "head_dim", .sizes.head = d, RMS(1e-6), .norms.query = "q_norm", \
    .norms.key = "k_norm", .norms.heads = ATTN_NORM_RMS, ROTATION, \
    QWEN_WINDOW(which), \
    .weights.ignored = OLD_ROTARY}
#define GEMMA3(type_name, name, section_name, above) { \
    .type = type_name, .stacks = {STACK_GEMMA3(name, section_name, above, 8, 2304, 26)}, \
    .biases.if_set = "qkvo", \
    .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads", \
    .sizes.kv_heads = 4, \
    .sizes.head_keys = "head_dim", .sizes.head = 256, .scores.scale = SCALE_SCALAR, \
    .norms.plus_one = true, RMS(1e-6), \
    .norms.query = "q_norm", .norms.key = "k_norm", .norms.heads = ATTN_NORM_RMS, \
    .rotation.rotates = true, .rotation.base_keys = "rope_theta", .rotation.base = 1e6, \
    .rotation.local_keys = "rope_local_base_freq", .rotation.local_base = 10000, \
    .windows.rule = WINDOW_UNLESS_NTH, .windows.keys = "sliding_window", \
    .windows.size = 4096, \
    .windows.period_keys = "sliding_window_pattern _sliding_window_pattern",
        .windows.period = 6}

static const struct family families[] = {
    {   .type = "llama", .stacks = {STACK_LLAMA(32, 4096, 32)}, .biases.if_set = "qkvo",
        .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads",
        .sizes.head_keys = "head_dim", RMS(1e-6), ROTATION,
        .weights.ignored = OLD_ROTARY},
    {   .type = "mistral", .stacks = {STACK_LLAMA(32, 4096, 32)},
        .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 8,
        .sizes.head_keys = "head_dim", RMS(1e-6),
        ROTATION, .windows.rule = WINDOW_ALL, .windows.keys = "sliding_window",
        .windows.size = 4096,
        .weights.ignored = OLD_ROTARY},
    {   .type = "mixtral", .stacks = {STACK_LLAMA(32, 4096, 32)},
        .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 8,
        .sizes.head_keys = "head_dim", RMS(1e-5),
        .rotation.rotates = true, .rotation.base_keys = "rope_theta",
        .rotation.base = 1e6,
        .windows.rule = WINDOW_ALL, .windows.keys = "sliding_window",
        .weights.ignored = OLD_ROTARY},
    {   .type = "qwen2", .stacks = {STACK_LLAMA(32, 4096, 32)}, .biases.always = "qkv",
        .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 32,
        .sizes.head_keys = "head_dim", RMS(1e-6),
        ROTATION, QWEN_WINDOW(WINDOW_QWEN), .weights.ignored = OLD_ROTARY},
    {   .type = "qwen2_moe", .stacks = {STACK_LLAMA(16, 2048, 24)},
        .biases.if_set = "qkv",
        .biases.keys = "qkv_bias", .biases.otherwise = true,
        .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 16,
        .sizes.head_keys = "head_dim", RMS(1e-6), ROTATION,
        QWEN_WINDOW(WINDOW_QWEN2_MOE),
        .weights.ignored = OLD_ROTARY},
    QWEN3("qwen3", 32, 4096, 32, 32, 128, WINDOW_QWEN),
    QWEN3("qwen3_moe", 32, 2048, 24, 4, 0, WINDOW_ALL),
    {   .type = "phi",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = NAMES_PROJ("dense"),
                    .norm = "input_layernorm", SIZES(32, 2048, 24),
                    .mask = MASK_CAUSAL}},
        .biases.always = "qkvo", .sizes.kv_keys = "num_key_value_heads",
        .sizes.head_keys = "head_dim", .weights.ignored = OLD_ROTARY,
        LAYER_NORM("layer_norm_eps", 1e-5),
        .norms.query = "q_layernorm", .norms.key = "k_layernorm",
        .norms.heads_if = "qk_layernorm", .norms.heads = ATTN_NORM_LAYER, ROTATION,
        .rotation.part_keys = "partial_rotary_factor", .rotation.part = 0.5},
    {   .type = "phi3",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = PACKED("qkv_proj", "o_proj"), .norm = "input_layernorm",
                    SIZES(32, 3072, 32), .mask = MASK_CAUSAL}},
        .weights.split = SPLIT_BLOCKS, .sizes.kv_keys = "num_key_value_heads",
        .sizes.head_keys = "head_dim",
        .weights.ignored = OLD_ROTARY, RMS(1e-5), ROTATION,
        .rotation.part_keys = "partial_rotary_factor", .rotation.part = 1,
        .rotation.longrope_alias = "su yarn",
        .windows.rule = WINDOW_ALL, .windows.keys = "sliding_window"},
    {   .type = "starcoder2", .stacks = {STACK_LLAMA(24, 3072, 30)},
        .biases.if_set = "qkvo",
        .biases.keys = "use_bias", .biases.otherwise = true,
        .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 2,
        .sizes.head_keys = "head_dim", LAYER_NORM("norm_epsilon", 1e-5), ROTATION,
        .windows.rule = WINDOW_ALL, .windows.keys = "sliding_window",
        .weights.ignored = OLD_ROTARY},
    {   .type = "gemma", .stacks = {STACK_LLAMA(16, 3072, 28)}, CAUSAL_GEMMA,
        .biases.if_set = "qkvo",
        .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 16,
        .sizes.head_keys = "head_dim", .sizes.head = 256,
        .norms.plus_one = true, RMS(1e-6),
        ROTATION, .weights.ignored = OLD_ROTARY},
    {   .type = "gemma2", .stacks = {STACK_LLAMA(8, 2304, 26)}, CAUSAL_GEMMA,
        .biases.if_set = "qkvo",
        .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 4,
        .sizes.head_keys = "head_dim", .sizes.head = 256, .scores.scale = SCALE_SCALAR,
        .norms.plus_one = true, RMS(1e-6),
        ROTATION, .windows.rule = WINDOW_UNLESS_NTH, .windows.keys = "sliding_window",
        .windows.size = 4096, .windows.period = 2,
        .scores.softcap_keys = "attn_logit_softcapping",
        .scores.softcap = 50},
    GEMMA3("gemma3_text", "", NULL, NULL),
    GEMMA3("gemma3", "text.", "text_config", "language_model."),
    {   .type = "olmo2",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = NAMES_PROJ("o_proj"), SIZES(32, 4096, 32),
                    .mask = MASK_CAUSAL}},
        .biases.if_set = "qkvo", .biases.keys = "attention_bias",
        .sizes.kv_keys = "num_key_value_heads",
        .sizes.head_keys = "head_dim", .weights.ignored = OLD_ROTARY,
        .norms.eps_keys = "rms_norm_eps", .norms.eps = 1e-5, .norms.query = "q_norm",
        .norms.key = "k_norm", .norms.heads = ATTN_NORM_RMS,
        .norms.heads_whole = true, ROTATION},
    {   .type = "gpt_oss", .stacks = {STACK_LLAMA(64, 2880, 36)}, .biases.if_set = "qkvo",
        .biases.keys = "attention_bias", .biases.otherwise = true,
        .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 8, .sizes.head_keys = "head_dim", .sizes.head = 64, RMS(1e-5),
        .rotation.rotates = true,
        .rotation.base_keys = "rope_theta", .rotation.base = 150000,
        .rotation.unset = &gpt_oss_rotation,
        .windows.rule = WINDOW_UNLESS_NTH, .windows.keys = "sliding_window",
        .windows.size = 128,
        .windows.period = 2, .scores.sinks = "sinks"},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

const struct family_list families_llama = {families,
                                           sizeof families / sizeof families[0]};
