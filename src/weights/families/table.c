/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: one entry for each family. Names of tensors, orders of rows and defaults are
 * those of Hugging Face's transformers, as its class of that name computes the layer. */
#include "weights/families/family.h"

#include <string.h>

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
#define KEYS_COMMON .heads_keys = "num_attention_heads", .width_keys = "hidden_size", \
                    .layers_keys = "num_hidden_layers"
#define KEYS_GPT    .heads_keys = "n_head num_attention_heads", \
                    .width_keys = "n_embd hidden_size", \
                    .layers_keys = "n_layer num_hidden_layers"
#define NAMES_PROJ(o) {"q_proj", "k_proj", "v_proj", o}
#define NAMES_BERT  {"self.query", "self.key", "self.value", "output.dense"}
#define PACKED(qkv, o) {qkv, NULL, NULL, o}
#define SIZES(h, w, n) .heads = h, .width = w, .layers = n

/* Llama's names, which many share. */
#define STACK_LLAMA(h, w, n) \
    {.part = "", .layer = "layers.#.", .module = "self_attn.", \
     .norm = "input_layernorm", .names = NAMES_PROJ("o_proj"), KEYS_COMMON, \
     SIZES(h, w, n), .mask = MASK_CAUSAL}
#define STACK_GEMMA3(name, section_name, above, h, w, n) \
    {.part = name, .section = section_name, .under = above, .layer = "layers.#.", \
     .module = "self_attn.", .names = NAMES_PROJ("o_proj"), .norm = "input_layernorm", \
     KEYS_COMMON, SIZES(h, w, n), .mask = MASK_UNLESS_BIDIRECTIONAL}
/* Where it is true, transformers' kernels differ: eager is causal, and sdpa is not. */
#define CAUSAL_GEMMA .demands = "use_bidirectional_attention=false"
#define ROTATION    .rotation.rotates = true, .rotation.base_keys = "rope_theta", \
                    .rotation.base = 10000
#define LAYER_NORM(keys, value) \
    .norms.before = ATTN_NORM_LAYER, .norms.eps_keys = keys, .norms.eps = value
#define RMS_NORM(keys, value) \
    .norms.before = ATTN_NORM_RMS, .norms.eps_keys = keys, .norms.eps = value
#define RMS(value)  RMS_NORM("rms_norm_eps", value)
#define OLD_ROTARY  "rotary_emb.inv_freq"

/* The two stacks of BERT; the second exists in decoders. */
#define STACKS_BERT(h, w, n) { \
    {.part = "", .layer = "encoder.layer.#.", .module = "attention.", \
     .names = NAMES_BERT, KEYS_COMMON, SIZES(h, w, n), .mask = MASK_IF_DECODER}, \
    {.part = "", .layer = "encoder.layer.#.", .module = "crossattention.", \
     .names = NAMES_BERT, KEYS_COMMON, SIZES(h, w, n), \
     .present = "add_cross_attention", .cross = true}}
#define BERT(type_name, h, w, n) { \
    .type = type_name, .stacks = STACKS_BERT(h, w, n), .biases.always = "qkvo", \
    .weights.ignored = "output.LayerNorm.weight output.LayerNorm.bias output.LayerNorm.gamma " \
               "output.LayerNorm.beta", \
    .demands = "position_embedding_type=absolute"}

/* The three stacks of encoder-decoder models. */
#define STACK_SEQ2SEQ(name, own, other, norm_name, h, w, n, mask_of, is_cross) \
    {.part = name ".", .layer = name ".layers.#.", .module = own "_attn.", \
     .names = NAMES_PROJ("out_proj"), .norm = norm_name, \
     .heads_keys = other "_attention_heads", .width_keys = "d_model hidden_size", \
     .layers_keys = other "_layers", SIZES(h, w, n), .mask = mask_of, .cross = is_cross}
#define STACKS_SEQ2SEQ(norm, cross, h, w, n_encoder, n_decoder) { \
    STACK_SEQ2SEQ("encoder", "self", "encoder", norm, h, w, n_encoder, MASK_NONE, 0), \
    STACK_SEQ2SEQ("decoder", "self", "decoder", norm, h, w, n_decoder, MASK_CAUSAL, 0), \
    STACK_SEQ2SEQ("decoder", "encoder", "decoder", cross, h, w, n_decoder, MASK_NONE, 1)}
#define BART(type_name, h, w, n) { \
    .type = type_name, .stacks = STACKS_SEQ2SEQ(NULL, NULL, h, w, n, n), \
    .biases.always = "qkvo"}
#define MBART(type_name, h, w, n_encoder, n_decoder) { \
    .type = type_name, .biases.always = "qkvo", LAYER_NORM(NULL, 1e-5), \
    .stacks = STACKS_SEQ2SEQ("self_attn_layer_norm", "encoder_attn_layer_norm", \
                             h, w, n_encoder, n_decoder)}

/* The names of version 4, which are on disk, and those of version 5. */
#define VIT_STACK(name, norm_name, eps, layer_name, ...) { \
    .type = name, .biases.always = "o", .biases.if_set = "qkv", .biases.keys = "qkv_bias", \
    .biases.otherwise = true, LAYER_NORM("layer_norm_eps", eps), \
    .stacks = {{.part = "", .layer = layer_name, .module = "attention.", \
                .names = __VA_ARGS__, .norm = norm_name, KEYS_COMMON, \
                SIZES(12, 768, 12)}}}
#define VIT(name, norm_name, eps, new_layer) \
    VIT_STACK(name, norm_name, eps, "encoder.layer.#.", \
              {"attention.query", "attention.key", "attention.value", "output.dense"}), \
    VIT_STACK(name, norm_name, eps, new_layer, NAMES_PROJ("o_proj"))
#define WAV2VEC2(name) { \
    .type = name, .biases.always = "qkvo", LAYER_NORM("layer_norm_eps", 1e-5), \
    .norms.before_if = "do_stable_layer_norm", \
    .stacks = {{.part = "", .layer = "encoder.layers.#.", .module = "attention.", \
                .names = NAMES_PROJ("out_proj"), .norm = "layer_norm", KEYS_COMMON, \
                SIZES(12, 768, 12)}}}

/* Vision and text towers; version 5 leaves out the path where there is one tower only. */
#define STACK_TOWER(name, section_name, path, h, w, n, mask_of) \
    {.part = name, .section = section_name, .layer = path "encoder.layers.#.", \
     .module = "self_attn.", .names = NAMES_PROJ("out_proj"), .norm = "layer_norm1", \
     KEYS_COMMON, SIZES(h, w, n), .mask = mask_of}
#define STACK_TEXT(name, section_name, h, w, n, mask_of) \
    STACK_TOWER(name, section_name, "text_model.", h, w, n, mask_of)
#define STACK_VISION(name, section_name, h, w, n) \
    STACK_TOWER(name, section_name, "vision_model.", h, w, n, MASK_NONE)
#define TOWER(type_name, eps) \
    .type = type_name, .biases.always = "qkvo", LAYER_NORM("layer_norm_eps", eps)

#define ONE_TOWER(type_name, eps, path, h, w, mask_of) \
    {TOWER(type_name, eps), .stacks = {STACK_TOWER("", NULL, path, h, w, 12, mask_of)}}, \
    {TOWER(type_name, eps), .stacks = {STACK_TOWER("", NULL, "", h, w, 12, mask_of)}}

/* T5's stacks. */
#define STACK_T5(name, path, own, mask_of, is_cross, keys_of_layers, h, n) \
    {.part = name ".", .layer = name ".block.#.layer." path ".", .module = own ".", \
     .names = {"q", "k", "v", "o"}, .norm = "layer_norm", \
     .heads_keys = "num_heads num_attention_heads", .width_keys = "d_model hidden_size", \
     .layers_keys = keys_of_layers, SIZES(h, 512, n), .mask = mask_of, .cross = is_cross}
#define KEYS_T5 "num_layers num_hidden_layers"
#define T5(type_name, each, h, n) { \
    .type = type_name, .scores.scale = SCALE_ONE, .sizes.head_keys = "d_kv", .sizes.head = 64, \
    .stacks = {STACK_T5("encoder", "0", "SelfAttention", MASK_NONE, false, KEYS_T5, \
                        h, n), \
               STACK_T5("decoder", "0", "SelfAttention", MASK_CAUSAL, false, \
                        "num_decoder_layers," KEYS_T5, h, n), \
               STACK_T5("decoder", "1", "EncDecAttention", MASK_NONE, true, \
                        "num_decoder_layers," KEYS_T5, h, n)}, \
    RMS_NORM("layer_norm_epsilon", 1e-6), \
    .distance.kind = ATTN_BIAS_BUCKETS, .distance.table = "relative_attention_bias.weight", \
    .distance.every_layer = each, .distance.max_keys = "relative_attention_max_distance", \
    .distance.buckets = 32, .distance.farthest = 128}

static const struct layer_rotation gpt_oss_rotation = {
    .type = ROTATION_YARN, .factor = 32, .beta_fast = 32, .beta_slow = 1,
    .original_positions = 4096};

static const struct layer_rotation mistral4_rotation = {
    .type = ROTATION_YARN, .interleaved = true, .factor = 128, .beta_fast = 32, .beta_slow = 1,
    .truncate = true, .mscale = 1, .mscale_all_dim = 1, .original_positions = 8192};

/* DeepSeek's latent attention; one number of heads, and sizes in the order of struct
 * family_latent. */
#define LATENT(type_name, h, w, n, eps, r, ...) \
    .type = type_name, .weights.split = SPLIT_LATENT, .weights.ignored = OLD_ROTARY, \
    .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON, \
                .names = PACKED("kv_a_proj_with_mqa", "o_proj"), .norm = "input_layernorm", \
                .more_keys = "num_nextn_predict_layers", SIZES(h, w, n), \
                .mask = MASK_CAUSAL}}, \
    .biases.if_set = "oQK", .biases.keys = "attention_bias", \
    .sizes.kv_keys = "num_key_value_heads", .latent = __VA_ARGS__, RMS(eps), ROTATION, \
    .rotation.interleaved = true, .rotation.dims_keys = "qk_rope_head_dim", \
    .rotation.dims = r, .scores.scale = SCALE_YARN

#define QWEN_WINDOW(which) .windows.rule = which, .windows.only_if = "use_sliding_window", \
                          .windows.keys = "sliding_window", .windows.size = 4096
#define QWEN3(type_name, h, w, n, kv, d, which) { \
    .type = type_name, .stacks = {STACK_LLAMA(h, w, n)}, .biases.if_set = "qkvo", \
    .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = kv, \
    .sizes.head_keys = "head_dim", .sizes.head = d, RMS(1e-6), .norms.query = "q_norm", \
    .norms.key = "k_norm", .norms.heads = ATTN_NORM_RMS, ROTATION, \
    QWEN_WINDOW(which), \
    .weights.ignored = OLD_ROTARY}
#define GEMMA3(type_name, name, section_name, above) { \
    .type = type_name, .stacks = {STACK_GEMMA3(name, section_name, above, 8, 2304, 26)}, \
    .biases.if_set = "qkvo", \
    .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 4, \
    .sizes.head_keys = "head_dim", .sizes.head = 256, .scores.scale = SCALE_SCALAR, \
    .norms.plus_one = true, RMS(1e-6), \
    .norms.query = "q_norm", .norms.key = "k_norm", .norms.heads = ATTN_NORM_RMS, \
    .rotation.rotates = true, .rotation.base_keys = "rope_theta", .rotation.base = 1e6, \
    .rotation.local_keys = "rope_local_base_freq", .rotation.local_base = 10000, \
    .windows.rule = WINDOW_UNLESS_NTH, .windows.keys = "sliding_window", .windows.size = 4096, \
    .windows.period_keys = "sliding_window_pattern _sliding_window_pattern", .windows.period = 6}

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
        .weights.split = SPLIT_BLOCKS, .weights.transposed = true, .biases.always = "qkvo",
        .scores.scale = SCALE_GPT2, .weights.ignored = "bias masked_bias",
        LAYER_NORM("layer_norm_epsilon", 1e-5)},
    {   /* Karpathy's; the same names, but weights are [out, in] and biases optional */
        .type = "nanogpt", .also = "gpt2", .untyped = "block_size",
        .stacks = {{.part = "", .layer = "h.#.", .module = "attn.", KEYS_GPT,
                    SIZES(12, 768, 12), .names = PACKED("c_attn", "c_proj"),
                    .norm = "ln_1", .mask = MASK_CAUSAL}},
        .weights.split = SPLIT_BLOCKS, .biases.if_set = "qkvo", .biases.keys = "bias", .biases.otherwise = true,
        .weights.ignored = "bias", LAYER_NORM(NULL, 1e-5)},
    {   .type = "opt",
        .stacks = {{.part = "", .layer = "decoder.layers.#.",
                    .module = "self_attn.", KEYS_COMMON,
                    SIZES(12, 768, 12), .names = NAMES_PROJ("out_proj"),
                    .norm = "self_attn_layer_norm", .mask = MASK_CAUSAL}},
        .biases.if_set = "qkvo", .biases.keys = "enable_bias", .biases.otherwise = true,
        LAYER_NORM(NULL, 1e-5), .norms.before_if = "do_layer_norm_before",
        .norms.before_otherwise = true},
    BERT("bert", 12, 768, 12),
    BERT("roberta", 12, 768, 12),
    BERT("xlm-roberta", 12, 768, 12),
    BERT("camembert", 12, 768, 12),
    BERT("layoutlm", 12, 768, 12),
    BERT("electra", 4, 256, 12),
    {   .type = "albert",
        .stacks = {{.part = "", .layer = "encoder.albert_layer_groups.#.albert_layers.0.",
                    .module = "attention.", .names = {"query", "key", "value", "dense"},
                    .heads_keys = "num_attention_heads", .width_keys = "hidden_size",
                    .layers_keys = "num_hidden_groups", SIZES(64, 4096, 1)}},
        .demands = "inner_group_num=1 position_embedding_type=absolute",
        .biases.always = "qkvo",
        .weights.ignored = "LayerNorm.weight LayerNorm.bias LayerNorm.gamma LayerNorm.beta"},
    {   .type = "distilbert",
        .stacks = {{.part = "", .layer = "transformer.layer.#.", .module = "attention.",
                    .names = {"q_lin", "k_lin", "v_lin", "out_lin"}, SIZES(12, 768, 6),
                    .heads_keys = "n_heads num_attention_heads",
                    .width_keys = "dim hidden_size",
                    .layers_keys = "n_layers num_hidden_layers"}},
        .biases.always = "qkvo"},
    VIT("vit", "layernorm_before", 1e-12, "layers.#."),
    VIT("deit", "layernorm_before", 1e-12, "layers.#."),
    VIT("vit_mae", "layernorm_before", 1e-12, "layers.#."),
    VIT("audio-spectrogram-transformer", "layernorm_before", 1e-12, "layers.#."),
    VIT("dinov2", "norm1", 1e-6, "encoder.layer.#."),
    {   TOWER("clip", 1e-5),
        .stacks = {STACK_TEXT("text.", "text_config", 8, 512, 12, MASK_CAUSAL),
                   STACK_VISION("vision.", "vision_config", 12, 768, 12)}},
    {   TOWER("siglip", 1e-6),
        .stacks = {STACK_TEXT("text.", "text_config", 12, 768, 12, MASK_NONE),
                   STACK_VISION("vision.", "vision_config", 12, 768, 12)}},
    ONE_TOWER("clip_text_model", 1e-5, "text_model.", 8, 512, MASK_CAUSAL),
    ONE_TOWER("clip_vision_model", 1e-5, "vision_model.", 12, 768, MASK_NONE),
    ONE_TOWER("siglip_text_model", 1e-6, "text_model.", 12, 768, MASK_NONE),
    ONE_TOWER("siglip_vision_model", 1e-6, "vision_model.", 12, 768, MASK_NONE),
    {   .type = "whisper",
        .stacks = STACKS_SEQ2SEQ("self_attn_layer_norm", "encoder_attn_layer_norm",
                                 6, 384, 4, 4),
        .biases.always = "qvo", LAYER_NORM(NULL, 1e-5)},
    BART("bart", 16, 1024, 12),
    BART("marian", 16, 1024, 12),
    BART("plbart", 12, 768, 6),
    BART("blenderbot-small", 16, 512, 8),
    MBART("mbart", 16, 1024, 12, 12),
    MBART("pegasus", 16, 1024, 12, 12),
    MBART("m2m_100", 16, 1024, 12, 12),
    MBART("blenderbot", 32, 2560, 2, 24),
    WAV2VEC2("wav2vec2"),
    WAV2VEC2("hubert"),
    WAV2VEC2("unispeech"),
    WAV2VEC2("data2vec-audio"),
    {   .type = "gpt_neo",
        .stacks = {{.part = "", .layer = "h.#.", .module = "attn.attention.",
                    .names = NAMES_PROJ("out_proj"), .norm = "ln_1", SIZES(16, 2048, 24),
                    .heads_keys = "num_heads num_attention_heads",
                    .width_keys = "hidden_size",
                    .layers_keys = "num_layers num_hidden_layers", .mask = MASK_CAUSAL}},
        .biases.always = "o", .weights.ignored = "bias masked_bias", .scores.scale = SCALE_ONE,
        LAYER_NORM("layer_norm_epsilon", 1e-5),
        .windows.rule = WINDOW_GPT_NEO, .windows.keys = "window_size", .windows.size = 256},
    {   .type = "llama", .stacks = {STACK_LLAMA(32, 4096, 32)}, .biases.if_set = "qkvo",
        .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads",
        .sizes.head_keys = "head_dim", RMS(1e-6), ROTATION, .weights.ignored = OLD_ROTARY},
    {   .type = "mistral", .stacks = {STACK_LLAMA(32, 4096, 32)},
        .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 8,
        .sizes.head_keys = "head_dim", RMS(1e-6),
        ROTATION, .windows.rule = WINDOW_ALL, .windows.keys = "sliding_window",
        .windows.size = 4096,
        .weights.ignored = OLD_ROTARY},
    {   .type = "mixtral", .stacks = {STACK_LLAMA(32, 4096, 32)},
        .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 8,
        .sizes.head_keys = "head_dim", RMS(1e-5),
        .rotation.rotates = true, .rotation.base_keys = "rope_theta", .rotation.base = 1e6,
        .windows.rule = WINDOW_ALL, .windows.keys = "sliding_window",
        .weights.ignored = OLD_ROTARY},
    {   .type = "qwen2", .stacks = {STACK_LLAMA(32, 4096, 32)}, .biases.always = "qkv",
        .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 32,
        .sizes.head_keys = "head_dim", RMS(1e-6),
        ROTATION, QWEN_WINDOW(WINDOW_QWEN), .weights.ignored = OLD_ROTARY},
    {   .type = "qwen2_moe", .stacks = {STACK_LLAMA(16, 2048, 24)}, .biases.if_set = "qkv",
        .biases.keys = "qkv_bias", .biases.otherwise = true, .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 16,
        .sizes.head_keys = "head_dim", RMS(1e-6), ROTATION,
        QWEN_WINDOW(WINDOW_QWEN2_MOE),
        .weights.ignored = OLD_ROTARY},
    QWEN3("qwen3", 32, 4096, 32, 32, 128, WINDOW_QWEN),
    QWEN3("qwen3_moe", 32, 2048, 24, 4, 0, WINDOW_ALL),
    {   LATENT("deepseek_v2", 32, 4096, 32, 1e-6, 64, {1536, 512, 128, 64, 128})},
    {   LATENT("deepseek_v3", 128, 7168, 61, 1e-6, 64, {1536, 512, 128, 64, 128}),
        .rotation.interleaved_keys = "rope_interleave"},
    {   LATENT("glm4_moe_lite", 20, 2048, 47, 1e-5, 64, {768, 512, 192, 64, 256}),
        .rotation.interleaved_keys = "rope_interleave"},
    {   LATENT("youtu", 16, 2048, 32, 1e-6, 64, {1536, 512, 128, 64, 128}),
        .rotation.interleaved_keys = "rope_interleave"},
    {   LATENT("mistral4", 32, 4096, 36, 1e-6, 64, {1024, 256, 64, 64, 128}),
        .rotation.interleaved_keys = "rope_interleave", .rotation.unset = &mistral4_rotation},
    {   .type = "mimo_v2_flash", .stacks = {STACK_LLAMA(64, 4096, 48)},
        .biases.if_set = "qkv", .biases.keys = "attention_bias",
        .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 4, .sizes.kv_sliding = 2,
        .sizes.head_keys = "head_dim", .sizes.head = 192,
        .sizes.value_keys = "v_head_dim", .sizes.value = 128, RMS(1e-5),
        .rotation.rotates = true, .rotation.base_keys = "rope_theta", .rotation.base = 5e6,
        .rotation.local_keys = "swa_rope_theta", .rotation.local_base = 10000,
        .rotation.part_keys = "partial_rotary_factor", .rotation.part = 0.334,
        .windows.rule = WINDOW_UNLESS_NTH, .windows.keys = "sliding_window",
        .windows.size = 129, .windows.period = 6, .scores.sinks = "attention_sink_bias",
        .scores.sinks_sliding = true, .scores.value_factor_keys = "attention_value_scale",
        .scores.value_factor = 0.707},
    {   .type = "gpt_neox",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "attention.", KEYS_COMMON,
                    .names = PACKED("query_key_value", "dense"),
                    .norm = "input_layernorm",
                    SIZES(64, 6144, 44), .mask = MASK_CAUSAL}},
        .weights.split = SPLIT_GROUPS, .biases.if_set = "qkvo", .biases.keys = "attention_bias",
        .biases.otherwise = true,
        .weights.ignored = "bias masked_bias " OLD_ROTARY, LAYER_NORM("layer_norm_eps", 1e-5),
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
    {   .type = "starcoder2", .stacks = {STACK_LLAMA(24, 3072, 30)}, .biases.if_set = "qkvo",
        .biases.keys = "use_bias", .biases.otherwise = true, .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 2,
        .sizes.head_keys = "head_dim", LAYER_NORM("norm_epsilon", 1e-5), ROTATION,
        .windows.rule = WINDOW_ALL, .windows.keys = "sliding_window",
        .weights.ignored = OLD_ROTARY},
    {   FALCON("falcon"), .sizes.kv_rule = HEADS_MULTI_QUERY},
    {   FALCON("RefinedWebModel"), .sizes.kv_rule = HEADS_MULTI_QUERY}, /* falcon-7b */
    {   FALCON("RefinedWeb")}, /* falcon-40b, which implies new_decoder_architecture */
    {   .type = "gemma", .stacks = {STACK_LLAMA(16, 3072, 28)}, CAUSAL_GEMMA,
        .biases.if_set = "qkvo",
        .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 16,
        .sizes.head_keys = "head_dim", .sizes.head = 256, .norms.plus_one = true, RMS(1e-6),
        ROTATION, .weights.ignored = OLD_ROTARY},
    {   .type = "gemma2", .stacks = {STACK_LLAMA(8, 2304, 26)}, CAUSAL_GEMMA,
        .biases.if_set = "qkvo",
        .biases.keys = "attention_bias", .sizes.kv_keys = "num_key_value_heads", .sizes.kv_heads = 4,
        .sizes.head_keys = "head_dim", .sizes.head = 256, .scores.scale = SCALE_SCALAR,
        .norms.plus_one = true, RMS(1e-6),
        ROTATION, .windows.rule = WINDOW_UNLESS_NTH, .windows.keys = "sliding_window",
        .windows.size = 4096, .windows.period = 2, .scores.softcap_keys = "attn_logit_softcapping",
        .scores.softcap = 50},
    GEMMA3("gemma3_text", "", NULL, NULL),
    GEMMA3("gemma3", "text.", "text_config", "language_model."),
    {   .type = "esm",
        .stacks = {{.part = "", .layer = "encoder.layer.#.", .module = "attention.",
                    .names = NAMES_BERT, .norm = "attention.LayerNorm", KEYS_COMMON,
                    SIZES(12, 768, 12), .mask = MASK_IF_DECODER}},
        .demands = "position_embedding_type=absolute|rotary add_cross_attention=false",
        .biases.always = "qkvo",
        .weights.ignored = "LayerNorm.weight LayerNorm.bias LayerNorm.gamma LayerNorm.beta "
                   "self.rotary_embeddings.inv_freq",
        LAYER_NORM("layer_norm_eps", 1e-12),
        .rotation.rotates = true, .rotation.plain = true,
        .rotation.only_if = "position_embedding_type=rotary",
        .rotation.base_keys = "rope_theta", .rotation.base = 10000},
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
        .biases.keys = "attention_bias", .biases.otherwise = true, .sizes.kv_keys = "num_key_value_heads",
        .sizes.kv_heads = 8, .sizes.head_keys = "head_dim", .sizes.head = 64, RMS(1e-5),
        .rotation.rotates = true,
        .rotation.base_keys = "rope_theta", .rotation.base = 150000,
        .rotation.unset = &gpt_oss_rotation,
        .windows.rule = WINDOW_UNLESS_NTH, .windows.keys = "sliding_window", .windows.size = 128,
        .windows.period = 2, .scores.sinks = "sinks"},
    {   .type = "modernbert",
        .stacks = {{.part = "", .layer = "layers.#.", .module = "attn.", KEYS_COMMON,
                    .names = PACKED("Wqkv", "Wo"),
                    .norm = "attn_norm", SIZES(12, 768, 22)}},
        .weights.split = SPLIT_BLOCKS, .biases.if_set = "qkvo", .biases.keys = "attention_bias",
        LAYER_NORM("norm_eps", 1e-5),
        .norms.before_skips_first = true, .rotation.rotates = true,
        .rotation.base_keys = "global_rope_theta rope_theta", .rotation.base = 160000,
        .rotation.local_keys = "local_rope_theta", .rotation.local_base = 10000,
        .rotation.local_scaled = true,
        .windows.rule = WINDOW_UNLESS_1ST, .windows.keys = "local_attention", .windows.size = 128,
        .windows.period_keys = "global_attn_every_n_layers", .windows.period = 3},
    T5("t5", false, 8, 6),
    T5("mt5", false, 6, 8),
    T5("umt5", true, 6, 8),
    {   .type = "mpnet",
        .stacks = {{.part = "", .layer = "encoder.layer.#.",
                    .module = "attention.", KEYS_COMMON,
                    .names = {"attn.q", "attn.k", "attn.v", "attn.o"}, SIZES(12, 768,
                    12)}},
        .biases.always = "qkvo",
        .weights.ignored = "LayerNorm.weight LayerNorm.bias LayerNorm.gamma LayerNorm.beta",
        .distance.kind = ATTN_BIAS_BUCKETS,
        .distance.table = "encoder.relative_attention_bias.weight",
        .distance.outside = true, .distance.buckets = 32, .distance.farthest = 128,
        .distance.fixed = true},
    {   .type = "bloom",
        .stacks = {{.part = "", .layer = "h.#.", .module = "self_attention.",
                    .names = PACKED("query_key_value", "dense"),
                    .norm = "input_layernorm",
                    .heads_keys = "n_head num_attention_heads", .mask = MASK_CAUSAL,
                    .width_keys = "hidden_size n_embed",
                    .layers_keys = "n_layer num_hidden_layers", SIZES(8, 64, 2)}},
        .weights.split = SPLIT_GROUPS, .biases.always = "qkvo", .distance.kind = ATTN_BIAS_ALIBI,
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
        .weights.split = SPLIT_BLOCKS, .scores.scale = SCALE_MPT, LAYER_NORM("layer_norm_epsilon", 1e-5),
        .scores.clip_keys = "attn_config.clip_qkv", .distance.kind = ATTN_BIAS_ALIBI},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

const struct family *family_table(size_t *ret_count) {
    *ret_count = sizeof families / sizeof families[0];
    return families;
}

bool family_list_has(const char *names, const char *name) {
    size_t size = strlen(name);

    while (names != NULL && *names != '\0') {
        size_t next = strcspn(names, " ");
        if (next == size && strncmp(names, name, size) == 0)
            return true;
        names += next + strspn(names + next, " ");
    }
    return false;
}

/* Families whose attention needs something else. */
static const struct {
    const char *types, *reason;
} refusals[] = {
    {"deepseek_v32 minicpm3",
     "its latent attention is not that of deepseek_v2 or deepseek_v3"},
    {"qwen3_next qwen3_5", "its attention has output gates and linear layers"},
    {"deberta deberta-v2", "its scores have terms of content by position"},
    {"longformer big_bird bigbird_pegasus reformer longt5",
     "its attention is sparse in a way of its own"},
    {"swin swinv2 beit", "its attention has windows or biases in two dimensions"},
    {"wavlm", "its attention has a gated bias"},
    {"gemma4 llama4", "its attention has norms, scales or masks of its own"},
    {"xlnet transfo-xl", "its attention shifts relative positions"},
};

const char *family_refusal(const char *type) {
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        if (family_list_has(refusals[i].types, type))
            return refusals[i].reason;
    }
    return NULL;
}
