/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c: decoders with the names of Llama. */
#include "weights/families/table/words.h"

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
static const struct layer_rotation gpt_oss_rotation = {
    .type = ROTATION_YARN, .factor = 32, .beta_fast = 32, .beta_slow = 1,
    .original_positions = 4096};
/* Layers that predict more tokens lie behind the others. */
#define MORE_LAYERS .stacks[0].more_keys = "num_nextn_predict_layers"
/* What files of Cohere call a rotation of neighbours. */
#define ROPE_GPTJ .demands = "position_embedding_type=rope_gptj"
#define QWEN_WINDOW(which, from) \
    .windows.rule = which, .windows.only_if = "use_sliding_window", \
    .windows.keys = "sliding_window=4096", .windows.from_keys = "max_window_layers=" #from
#define HEAD_NORMS \
    .norms.query = "q_norm", .norms.key = "k_norm", .norms.heads = ATTN_NORM_RMS
#define WINDOWS(which, length) \
    .windows.rule = which, .windows.keys = "sliding_window=" #length
#define QWEN3(type_name, stack, kv, d, which) { \
    .type = type_name, .stacks = {stack}, HEADS(kv, d), \
    BIASES_IF("qkvo", "attention_bias"), RMS(1e-6), HEAD_NORMS, ROTATION, \
    QWEN_WINDOW(which, 28)}

/* Without a norm before. */
#define STACK_NO_NORM(h, w, n) \
    {.part = "", .layer = "layers.#.", .module = "self_attn.", \
     .names = NAMES_PROJ("o_proj"), KEYS_COMMON, SIZES(h, w, n), .mask = MASK_CAUSAL}
#define OLMO2(type_name, value, h, w) \
    .type = type_name, .stacks = {STACK_NO_NORM(h, w, 32)}, HEADS(0, 0), \
    BIASES_IF("qkvo", "attention_bias"), .norms.eps_keys = "rms_norm_eps", \
    .norms.eps = value, HEAD_NORMS, .norms.heads_whole = true
#define GEMMA2(type_name) { \
    .type = type_name, .stacks = {STACK_LLAMA(8, 2304, 26)}, \
    BIASES_IF("qkvo", "attention_bias"), HEADS(4, 256), .scores.scale = SCALE_SCALAR, \
    .norms.plus_one = true, RMS(1e-6), ROTATION, WINDOWS(WINDOW_UNLESS_NTH, 4096), \
    .windows.period_keys = "=2", .scores.softcap_keys = "attn_logit_softcapping"}
#define EXAONE4(type_name, stack) \
    .type = type_name, .stacks = {stack}, HEADS(32, 0), RMS(1e-5), HEAD_NORMS, ROTATION, \
    WINDOWS(WINDOW_UNLESS_NTH, 4096), .windows.period_keys = "sliding_window_pattern=4", \
    .rotation.layers = ROTATED_UNLESS_FULL
#define GLM(type_name) { \
    .type = type_name, .stacks = {STACK_LLAMA(32, 4096, 40)}, HEADS(2, 128), \
    BIASES_IF("qkv", "attention_bias=true"), RMS(1.5625e-07), \
    ROTATION, PART(0.5), .rotation.interleaved = "=true"}
#define ERNIE45(type_name, h, w, n, kv, d) { \
    .type = type_name, .stacks = {STACK_LLAMA(h, w, n)}, HEADS(kv, d), \
    BIASES_IF("qkvo", "use_bias"), RMS(1e-5), BASE(500000), \
    .rotation.interleaved = "=true"}
#define GRANITE(type_name, otherwise) { \
    .type = type_name, .stacks = {STACK_LLAMA(32, 4096, 32)}, HEADS(0, 0), \
    BIASES_IF("qkvo", "attention_bias"), RMS(1e-6), ROTATION, \
    .scores.scale = SCALE_KEY, .scores.scale_keys = "attention_multiplier", \
    .scores.scale_otherwise = otherwise}
/* Texts of models with images, whose positions have three axes. */
#define SECTIONS(order) .rotation.sections = order
#define QWEN2_VL(type_name) { \
    .type = type_name, .stacks = {STACK_LLAMA(64, 8192, 80)}, HEADS(8, 0), \
    .biases.always = "qkv", RMS(1e-5), BASE(1e6), SECTIONS(SECTIONS_BLOCKS), \
    .rotation.section_sizes = {16, 24, 24}, QWEN_WINDOW(WINDOW_QWEN, 80)}
#define QWEN3_VL(type_name, h, w, n, d) { \
    .type = type_name, .stacks = {STACK_LLAMA(h, w, n)}, HEADS(h, d), \
    .ignored = "sliding_window", \
    BIASES_IF("qkvo", "attention_bias"), RMS(1e-6), HEAD_NORMS, BASE(500000), \
    SECTIONS(SECTIONS_INTERLEAVED), .rotation.section_sizes = {24, 20, 20}}
#define LLAMA3_UNSET(name, theta, times, original) \
    static const struct layer_rotation name = { \
        .type = ROTATION_LLAMA3, .base = theta, .factor = times, .low_freq_factor = 1, \
        .high_freq_factor = 4, .original_positions = original}
static const struct layer_rotation ministral3_rotation = {
    .type = ROTATION_YARN, .base = 1e6, .factor = 16, .beta_fast = 32, .beta_slow = 1,
    .truncate = true, .mscale = 1, .mscale_all_dim = 1, .original_positions = 16384,
    .query_beta = 0.1};
static const struct layer_rotation gemma4_rotation = {
    .type = ROTATION_PROPORTIONAL, .factor = 1};
#define HUNYUAN(type_name) { \
    .type = type_name, .stacks = {STACK_LLAMA(32, 4096, 32)}, HEADS(0, 0), \
    BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), .norms.query = "query_layernorm", \
    .norms.key = "key_layernorm", .norms.heads = ATTN_NORM_RMS, \
    .norms.heads_last = true, ROTATION, .rotation.alpha = true}
/* Values are normed, and the last layers take those of earlier ones. */
#define GEMMA3N(type_name, w, n, kv, period_of_full, shared) \
    .type = type_name, .stacks = {STACK_LLAMA(8, w, n)}, HEADS(kv, 256), \
    BIASES_IF("qkvo", "attention_bias"), RMS(1e-6), HEAD_NORMS, \
    .norms.values = ATTN_NORM_RMS, .scores.scale = SCALE_ONE, BASE(1e6), \
    .rotation.local_keys = "rope_local_base_freq", .rotation.local_base = 10000, \
    WINDOWS(WINDOW_UNLESS_NTH, 512), .windows.period_keys = "=" #period_of_full, \
    .borrowing.count_keys = "num_kv_shared_layers=" #shared
LLAMA3_UNSET(apertus_rotation, 12e6, 8, 8192);
LLAMA3_UNSET(cwm_rotation, 1e6, 16, 8192);

static const struct family families[] = {
    {   .type = "llama", .stacks = {STACK_LLAMA(32, 4096, 32)},
        BIASES_IF("qkvo", "attention_bias"), HEADS(0, 0), RMS(1e-6), ROTATION},
    {   .type = "voxtral_text", .stacks = {STACK_LLAMA(32, 3072, 30)}, HEADS(8, 128),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), BASE(1e8),
        .demands = "model_type=llama"},
    {   .type = "mistral", .stacks = {STACK_LLAMA(32, 4096, 32)}, HEADS(8, 0), RMS(1e-6),
        ROTATION, WINDOWS(WINDOW_ALL, 4096)},
    {   .type = "mixtral", .stacks = {STACK_LLAMA(32, 4096, 32)}, HEADS(8, 0), RMS(1e-5),
        BASE(1e6), WINDOWS(WINDOW_ALL, 0)},
    {   .type = "qwen2", .stacks = {STACK_LLAMA(32, 4096, 32)}, .biases.always = "qkv",
        HEADS(32, 0), RMS(1e-6), ROTATION, QWEN_WINDOW(WINDOW_QWEN, 28)},
    {   .type = "qwen2_moe", .stacks = {STACK_LLAMA(16, 2048, 24)},
        BIASES_IF("qkv", "qkv_bias=true"), HEADS(16, 0), RMS(1e-6),
        ROTATION, QWEN_WINDOW(WINDOW_QWEN2_MOE, 28)},
    QWEN3("qwen3", STACK_DECODER(MASK_UNLESS_BIDIRECTIONAL, 32, 4096, 32), 32, 128,
          WINDOW_QWEN), /* voyage-4-nano has its key, which transformers does not read */
    QWEN3("qwen3_moe", STACK_LLAMA(32, 2048, 24), 4, 0, WINDOW_ALL),
    QWEN2_VL("qwen2_vl_text"),
    QWEN2_VL("qwen2_5_vl_text"),
    QWEN3_VL("qwen3_vl_text", 32, 4096, 32, 128),
    QWEN3_VL("qwen3_vl_moe_text", 16, 2048, 24, 0),
    {   .type = "phi",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = NAMES_PROJ("dense"),
                    .norm = "input_layernorm", SIZES(32, 2048, 24),
                    .mask = MASK_CAUSAL}}, .biases.always = "qkvo", HEADS(0, 0),
        LAYER_NORM("layer_norm_eps", 1e-5), .norms.query = "q_layernorm",
        .norms.key = "k_layernorm", .norms.heads_if = "qk_layernorm",
        .norms.heads = ATTN_NORM_LAYER, ROTATION, PART(0.5)},
    {   .type = "phi3",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = PACKED("qkv_proj", "o_proj"), .norm = "input_layernorm",
                    SIZES(32, 3072, 32), .mask = MASK_CAUSAL}},
        .weights.split = SPLIT_BLOCKS, HEADS(0, 0), RMS(1e-5), ROTATION, PART(1),
        .rotation.longrope_alias = "su yarn", .rotation.original = 4096,
        WINDOWS(WINDOW_ALL, 0)},
    {   .type = "starcoder2", .stacks = {STACK_LLAMA(24, 3072, 30)},
        BIASES_IF("qkvo", "use_bias=true"), HEADS(2, 0),
        LAYER_NORM("norm_epsilon", 1e-5), ROTATION, WINDOWS(WINDOW_ALL, 0)},
    {   .type = "gemma", .stacks = {STACK_LLAMA(16, 3072, 28)},
        BIASES_IF("qkvo", "attention_bias"), HEADS(16, 256), .norms.plus_one = true,
        RMS(1e-6), ROTATION},
    GEMMA2("gemma2"),
    GEMMA2("vaultgemma"),
    {   .type = "gemma3_text",
        .stacks = {STACK_DECODER(MASK_UNLESS_BIDIRECTIONAL, 8, 2304, 26)},
        BIASES_IF("qkvo", "attention_bias"), HEADS(4, 256), .scores.scale = SCALE_SCALAR,
        .norms.plus_one = true, RMS(1e-6), HEAD_NORMS, BASE(1e6),
        .rotation.local_keys = "rope_local_base_freq", .rotation.local_base = 10000,
        WINDOWS(WINDOW_UNLESS_NTH, 4096),
        .windows.halved_if = "use_bidirectional_attention",
        .windows.period_keys = "sliding_window_pattern=6"},
    {   GEMMA3N("gemma3n_text", 2048, 35, 2, 5, 15),
        .ignored = "query_pre_attn_scalar"},
    {   GEMMA3N("gemma4_text", 2304, 30, 4, 6, 0), .windows.skips_last = true,
        .rotation.unset = &gemma4_rotation,
        .rotation.part_turning = 0.25, .sizes.full_head_keys = "global_head_dim=512",
        .sizes.full_kv_keys = "num_global_key_value_heads",
        .weights.keys_are_values = "attention_k_eq_v"},
    {   .type = "cohere", .stacks = {STACK_LLAMA(64, 8192, 40)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias"), LAYER_NORM("layer_norm_eps", 1e-5),
        .norms.query = "q_norm", .norms.key = "k_norm", .norms.heads = ATTN_NORM_LAYER,
        .norms.heads_if = "use_qk_norm", .norms.heads_each = true, BASE(500000),
        .rotation.interleaved = "=true", ROPE_GPTJ},
    {   .type = "cohere2", .stacks = {STACK_LLAMA(64, 8192, 40)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias"), LAYER_NORM("layer_norm_eps", 1e-5), ROTATION,
        .rotation.interleaved = "=true", .rotation.layers = ROTATED_SLIDING,
        WINDOWS(WINDOW_UNLESS_NTH, 4096),
        .windows.period_keys = "sliding_window_pattern=4", ROPE_GPTJ},
    {   .type = "stablelm", .stacks = {STACK_LLAMA(32, 2560, 32)}, HEADS(32, 0),
        BIASES_IF("qkv", "use_qkv_bias"), LAYER_NORM("layer_norm_eps", 1e-5),
        .norms.query = "q_layernorm.norms.#", .norms.key = "k_layernorm.norms.#",
        .norms.heads = ATTN_NORM_LAYER, .norms.heads_if = "qk_layernorm",
        .norms.heads_each = true, ROTATION, PART(0.25)},
    {   .type = "persimmon",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = PACKED("query_key_value", "dense"),
                    .norm = "input_layernorm", SIZES(64, 4096, 36),
                    .mask = MASK_CAUSAL}}, .weights.split = SPLIT_GROUPS,
        .biases.always = "qkvo", LAYER_NORM("layer_norm_eps", 1e-5),
        .norms.query = "q_layernorm", .norms.key = "k_layernorm",
        .norms.heads = ATTN_NORM_LAYER, .norms.heads_if = "qk_layernorm=true", ROTATION,
        PART(0.5)},
    HUNYUAN("hunyuan_v1_dense"),
    HUNYUAN("hunyuan_v1_moe"),
    {   /* layers that rotate have norms without weight, others a factor of queries */
        .type = "llama4_text", .stacks = {STACK_LLAMA(40, 5120, 48)}, HEADS(8, 128),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), BASE(500000),
        .rotation.interleaved = "=true", .rotation.layers = ROTATED_LISTED,
        .norms.heads = ATTN_NORM_RMS, .norms.heads_bare = true, .norms.heads_last = true,
        .norms.heads_rotated = true, .norms.heads_if = "use_qk_norm=true",
        .windows.chunk_keys = "attention_chunk_size=8192",
        .factor.beta_keys = "attn_scale", .factor.beta = 0.1,
        .factor.length_keys = "floor_scale=8192", .factor.offset = 1,
        .factor.unrotated = true, .factor.only_if = "attn_temperature_tuning=true"},
    {   /* no norm has a weight */
        .type = "nanochat", .stacks = {STACK_NO_NORM(6, 768, 12)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-6), .norms.bare = true,
        .norms.heads = ATTN_NORM_RMS, .norms.heads_bare = true, .norms.heads_last = true,
        ROTATION, .rotation.backward = true},
    {   .type = "olmoe", .stacks = {STACK_LLAMA(16, 2048, 16)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), HEAD_NORMS,
        .norms.heads_whole = true, ROTATION, .scores.clip_keys = "clip_qkv",
        .scores.clip_last = true},
    {   .type = "ministral3", .stacks = {STACK_LLAMA(32, 4096, 34)}, HEADS(8, 128),
        RMS(1e-5), ROTATION, .rotation.unset = &ministral3_rotation,
        WINDOWS(WINDOW_ALL, 0), .factor.rotary = true},
    {   OLMO2("olmo2", 1e-5, 32, 4096), ROTATION},
    {   OLMO2("flex_olmo", 1e-6, 32, 4096), BASE(500000)},
    {   OLMO2("olmo3", 1e-5, 32, 4096), BASE(500000),
        /* the same base, but unscaled, in layers with a window */
        .rotation.local_keys = "rope_theta",
        .rotation.local_base = 500000, WINDOWS(WINDOW_UNLESS_NTH, 4096),
        .windows.period_keys = "=4"},
    {   OLMO2("olmo_hybrid", 1e-6, 30, 3840), ROTATION, .rotation.null_base = true,
        .layers.without = "linear_attention", .layers.period_keys = "=4",
        .layers.offset = 3},
    {   /* the norm before it has neither weight nor bias */
        .type = "olmo", .stacks = {STACK_NO_NORM(32, 4096, 32)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias"), LAYER_NORM(NULL, 1e-5), .norms.bare = true,
        ROTATION, .scores.clip_keys = "clip_qkv"},
    {   .type = "gpt_oss", .stacks = {STACK_LLAMA(64, 2880, 36)}, HEADS(8, 64),
        BIASES_IF("qkvo", "attention_bias=true"), RMS(1e-5),
        BASE(150000), .rotation.unset = &gpt_oss_rotation,
        WINDOWS(WINDOW_UNLESS_NTH, 128), .windows.period_keys = "=2",
        .scores.sinks = "sinks"},
    {   .type = "apertus",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = NAMES_PROJ("o_proj"), .norm = "attention_layernorm",
                    SIZES(32, 4096, 32), .mask = MASK_CAUSAL}},
        HEADS(0, 0), BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), HEAD_NORMS,
        BASE(12e6), .rotation.unset = &apertus_rotation},
    {   .type = "afmoe",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON,
                    .names = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"},
                    .norm = "input_layernorm", SIZES(16, 2048, 32), .mask = MASK_CAUSAL}},
        HEADS(0, 128), BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), HEAD_NORMS,
        ROTATION, .rotation.layers = ROTATED_SLIDING, WINDOWS(WINDOW_UNLESS_NTH, 1024),
        .windows.period_keys = "global_attn_every_n_layers=4"},
    {   /* with quantization_config, transformers rounds rows and weights, too */
        .type = "bitnet", .stacks = {STACK_LLAMA(20, 2560, 30)},
        .demands = "quantization_config=null", HEADS(5, 0),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), .norms.out = "attn_sub_norm",
        BASE(500000)},
    {   .type = "arcee", .stacks = {STACK_LLAMA(32, 2560, 32)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-5), ROTATION},
    {   .type = "cwm", .stacks = {STACK_LLAMA(48, 6144, 64)}, HEADS(8, 128), RMS(1e-5),
        BASE(1e6), .rotation.unset = &cwm_rotation, WINDOWS(WINDOW_UNLESS_1ST, 8192),
        .windows.period_keys = "=4"},
    {   .type = "dots1", .stacks = {STACK_LLAMA(32, 4608, 62)}, HEADS(32, 0),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-6), HEAD_NORMS, ROTATION,
        WINDOWS(WINDOW_QWEN, 4096), .windows.from_keys = "max_window_layers=62"},
    ERNIE45("ernie4_5", 16, 1024, 18, 2, 128),
    ERNIE45("ernie4_5_moe", 20, 2560, 28, 4, 0),
    {   EXAONE4("exaone4", STACK_NO_NORM(32, 4096, 32))},
    {   EXAONE4("exaone_moe", STACK_LLAMA(32, 4096, 32))},
    {   /* another mixer gets the norm's output besides, so the norm stays outside */
        .type = "falcon_h1", .stacks = {STACK_NO_NORM(32, 4096, 32)}, HEADS(8, 0),
        BIASES_IF("qkvo", "attention_bias"), ROTATION,
        .scores.factor_keys = "key_multiplier"},
    GLM("glm"),
    GLM("glm4"),
    {   .type = "glm4_moe", .stacks = {STACK_LLAMA(96, 4096, 46)}, HEADS(8, 0),
        BIASES_IF("qkv", "attention_bias"), RMS(1e-5), HEAD_NORMS,
        .norms.heads_if = "use_qk_norm", ROTATION, PART(0.5), MORE_LAYERS},
    {   .type = "glm4v_text", .stacks = {STACK_LLAMA(32, 4096, 40)}, HEADS(2, 0),
        .biases.always = "qkv", RMS(1e-5), ROTATION, PART(1),
        .rotation.interleaved = "=true", SECTIONS(SECTIONS_BLOCKS),
        .rotation.section_sizes = {8, 12, 12}},
    {   .type = "glm4v_moe_text", .stacks = {STACK_LLAMA(96, 4096, 46)}, HEADS(8, 0),
        BIASES_IF("qkv", "attention_bias=true"), RMS(1e-5), ROTATION,
        PART(0.5), SECTIONS(SECTIONS_BLOCKS), .rotation.section_sizes = {8, 12, 12},
        MORE_LAYERS},
    GRANITE("granite", 1),
    GRANITE("granitemoe", 1),
    GRANITE("hyperclovax", 0),
    {   .type = "helium", .stacks = {STACK_LLAMA(20, 2560, 24)}, HEADS(20, 128),
        BIASES_IF("qkv", "attention_bias"), RMS(1e-8), BASE(100000),
        .rotation.interleaved = "=true"},
    {   .type = "jais2", .stacks = {STACK_LLAMA(26, 3328, 32)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias=true"),
        LAYER_NORM("layer_norm_eps", 1e-5), ROTATION},
    {   .type = "minimax_m2", .stacks = {STACK_LLAMA(48, 3072, 62)}, HEADS(8, 128),
        RMS(1e-6), HEAD_NORMS, .norms.heads_whole = true, BASE(5e6), PART(1),
        .rotation.dims_keys = "rotary_dim"},
    {   .type = "ministral", .stacks = {STACK_LLAMA(32, 4096, 32)}, HEADS(8, 0),
        RMS(1e-6), ROTATION, WINDOWS(WINDOW_BY_TYPE, 4096)},
    {   .type = "nemotron", .stacks = {STACK_LLAMA(48, 6144, 32)}, HEADS(0, 0),
        BIASES_IF("qkvo", "attention_bias"), LAYER_NORM("norm_eps", 1e-5),
        .norms.plus_one = true, ROTATION, PART(0.5)},
    {   .type = "phimoe", .stacks = {STACK_LLAMA(32, 4096, 32)}, HEADS(8, 0),
        BIASES_IF("qkvo", "attention_bias"), LAYER_NORM("rms_norm_eps", 1e-5), BASE(1e6),
        WINDOWS(WINDOW_ALL, 0),
        .demands = "rope_scaling.short_mscale=null rope_parameters.short_mscale=null"},
    {   .type = "seed_oss", .stacks = {STACK_LLAMA(80, 4096, 64)}, HEADS(8, 128),
        BIASES_IF("qkv", "attention_bias=true"),
        .biases.output_keys = "attention_out_bias", RMS(1e-6), ROTATION},
    {   .type = "smollm3", .stacks = {STACK_LLAMA(16, 2048, 36)}, HEADS(4, 0),
        BIASES_IF("qkvo", "attention_bias"), RMS(1e-6), BASE(2e6),
        .rotation.layers = ROTATED_LISTED, WINDOWS(WINDOW_UNLESS_ROTATED, 0),
        .windows.only_if = "use_sliding_window"},
    {   .type = "solar_open", .stacks = {STACK_LLAMA(64, 4096, 48)}, HEADS(8, 128),
        BIASES_IF("qkv", "attention_bias"), RMS(1e-5), BASE(1e6)},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

const struct family_list families_llama = {families,
                                           sizeof families / sizeof families[0]};
