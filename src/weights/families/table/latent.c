/* SPDX-License-Identifier: Apache-2.0 */
/* latent.c: decoders whose keys and values differ in size, most with latent attention. */
#include "weights/families/table/words.h"

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
/* One number of heads, and sizes in the order of struct family_latent. */
#define LATENT(type_name, h, w, n, eps, shared_keys, ...) \
    .type = type_name, .weights.split = SPLIT_LATENT, \
    .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON, \
                .names = PACKED("kv_a_proj_with_mqa", "o_proj"), SIZES(h, w, n), \
                .norm = "input_layernorm", .mask = MASK_CAUSAL, \
                .more_keys = "num_nextn_predict_layers,num_mtp_layers"}}, \
    .biases.if_set = "oQK", .biases.keys = "attention_bias", \
    .sizes.kv_keys = "num_key_value_heads", .latent = __VA_ARGS__, RMS(eps), ROTATION, \
    .rotation.dims_keys = shared_keys "=64", .scores.scale = SCALE_YARN
#define SHARED "qk_rope_head_dim"
#define HALVES .rotation.interleaved = "rope_interleave=true"

static const struct layer_rotation mistral4_rotation = {
    .type = ROTATION_YARN, .base = 1e4, .factor = 128, .beta_fast = 32, .beta_slow = 1,
    .truncate = true, .mscale = 1, .mscale_all_dim = 1,
    .original_positions = 8192, .query_beta = 0.1};

static const struct family families[] = {
    {   LATENT("deepseek_v2", 32, 4096, 32, 1e-6, SHARED, {1536, 512, 128, 64, 128}),
        .rotation.interleaved = "=true"},
    {   LATENT("deepseek_v3", 128, 7168, 61, 1e-6, SHARED, {1536, 512, 128, 64, 128}),
        HALVES},
    {   LATENT("glm4_moe_lite", 20, 2048, 47, 1e-5, SHARED ",head_dim",
               {768, 512, 192, 64, 256}), HALVES},
    {   LATENT("youtu", 16, 2048, 32, 1e-6, SHARED, {1536, 512, 128, 64, 128}), HALVES},
    {   LATENT("mistral4", 32, 4096, 36, 1e-6, SHARED, {1024, 256, 64, 64, 128}), HALVES,
        .rotation.unset = &mistral4_rotation, .factor.rotary = true},
    {   .type = "mimo_v2_flash", .stacks = {STACK_LLAMA(64, 4096, 48)},
        .ignored = "attention_chunk_size", BIASES_IF("qkv", "attention_bias"),
        HEADS(4, 192), .sizes.kv_sliding = 2, .sizes.value_keys = "v_head_dim=128",
        RMS(1e-5), BASE(5e6), .rotation.local_keys = "swa_rope_theta",
        .rotation.local_base = 10000, PART(0.334), .windows.rule = WINDOW_UNLESS_NTH,
        .windows.keys = "sliding_window=129",
        .windows.earlier_keys = "sliding_window_size", .windows.period_keys = "=6",
        .windows.skips_first = true, .scores.value_factor = 0.707,
        .scores.value_factor_keys = "attention_value_scale",
        .scores.sinks = "attention_sink_bias", .scores.sinks_sliding = true},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

const struct family_list families_latent = {families,
                                            sizeof families / sizeof families[0]};
