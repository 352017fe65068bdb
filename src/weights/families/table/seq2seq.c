/* SPDX-License-Identifier: Apache-2.0 */
/* seq2seq.c: encoders beside decoders. */
#include "weights/families/table/words.h"

/* A share of a head is rounded down to an even number. */
static void round_dims(const struct layer_source *source,
                       const struct config_section *inside,
                       struct layer_rotation *rotation) {
    (void)source, (void)inside;
    rotation->dims -= rotation->dims % 2;
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
/* The three stacks of encoder-decoder models. Keys without a side are the encoder's. */
#define KEYS_ENCODER .heads_keys = "encoder_attention_heads,num_attention_heads", \
                     .layers_keys = "encoder_layers,num_hidden_layers"
#define KEYS_DECODER .heads_keys = "decoder_attention_heads", \
                     .layers_keys = "decoder_layers"
#define STACK_SEQ2SEQ(name, own, keys, norm_name, h, w, n, mask_of, is_cross) \
    {.part = name ".", .layer = name ".layers.#.", .module = own "_attn.", \
     .names = NAMES_PROJ("out_proj"), .norm = norm_name, keys, \
     .width_keys = "d_model hidden_size", SIZES(h, w, n), .mask = mask_of, \
     .cross = is_cross}
#define STACKS_SEQ2SEQ(norm, cross, h, w, n_encoder, n_decoder) \
    STACKS_MASKED(MASK_CAUSAL, norm, cross, h, w, n_encoder, n_decoder)
#define STACKS_MASKED(mask_of, norm, cross, h, w, n_encoder, n_decoder) { \
    STACK_SEQ2SEQ("encoder", "self", KEYS_ENCODER, norm, h, w, n_encoder, MASK_NONE, 0), \
    STACK_SEQ2SEQ("decoder", "self", KEYS_DECODER, norm, h, w, n_decoder, mask_of, 0), \
    STACK_SEQ2SEQ("decoder", "encoder", KEYS_DECODER, cross, h, w, n_decoder, \
                  MASK_NONE, 1)}
#define BART(h, w, n, ...) { \
    .types = {__VA_ARGS__}, .stacks = STACKS_SEQ2SEQ(NULL, NULL, h, w, n, n), \
    BIASED}
#define MBART(h, w, n_encoder, n_decoder, ...) { \
    .types = {__VA_ARGS__}, BIASED, LAYER_NORM(NULL, 1e-5), \
    .stacks = STACKS_SEQ2SEQ("self_attn_layer_norm", "encoder_attn_layer_norm", \
                             h, w, n_encoder, n_decoder)}
/* Stacks with keys of Llama, which moonshine and t5gemma have. */
#define STACK_RECENT(name, own, of, kv, section_name, norm_name, h, w, n, mask_of, \
                     is_cross) \
    {.part = name ".", .layer = name ".layers.#.", .module = own "_attn.", \
     .names = NAMES_PROJ("o_proj"), .section = section_name, .norm = norm_name, \
     .heads_keys = of("num_attention_heads"), .kv_keys = of("num_key_value_heads") kv, \
     .width_keys = "hidden_size", .layers_keys = of("num_hidden_layers"), \
     SIZES(h, w, n), .mask = mask_of, .cross = is_cross}
#define OF_ENCODER(key) "encoder_" key
#define OF_DECODER(key) "decoder_" key "," key
#define OF_BOTH(key)    key
#define STACK_MOONSHINE(name, own, of, norm_name, mask_of, is_cross) \
    STACK_RECENT(name, own, of, "", NULL, norm_name, 8, 288, 6, mask_of, is_cross)
#define STACK_T5GEMMA(name, own, norm_name, mask_of, is_cross) \
    STACK_RECENT(name, own, OF_BOTH, "=4", name, norm_name, 8, 2304, 26, mask_of, \
                 is_cross)
/* T5's stacks. */
#define STACK_T5(name, path, own, mask_of, is_cross, keys_of_layers, h, n) \
    {.part = name ".", .layer = name ".block.#.layer." path ".", .module = own ".", \
     .names = {"q", "k", "v", "o"}, .norm = "layer_norm", \
     .heads_keys = "num_heads num_attention_heads", .width_keys = "d_model hidden_size", \
     .layers_keys = keys_of_layers, SIZES(h, 512, n), .mask = mask_of, .cross = is_cross}
#define KEYS_T5 "num_layers num_hidden_layers"
#define T5(type_name, h, n) \
    .types = {type_name}, .scores.scale = 1, \
    .sizes.head_keys = "d_kv head_dim=64", \
    .stacks = {STACK_T5("encoder", "0", "SelfAttention", MASK_NONE, false, KEYS_T5, \
                        h, n), \
               STACK_T5("decoder", "0", "SelfAttention", MASK_CAUSAL, false, \
                        "num_decoder_layers," KEYS_T5, h, n), \
               STACK_T5("decoder", "1", "EncDecAttention", MASK_NONE, true, \
                        "num_decoder_layers," KEYS_T5, h, n)}, \
    RMS_NORM("layer_norm_epsilon", 1e-6), \
    .distance.kind = ATTN_BIAS_BUCKETS, \
    .distance.table = "relative_attention_bias.weight", \
    .distance.max_keys = "relative_attention_max_distance"

const struct family families_seq2seq[] = {
    {   .types = {"whisper"}, .stacks = STACKS_SEQ2SEQ("self_attn_layer_norm",
        "encoder_attn_layer_norm", 6, 384, 4, 4), .biases.always = "qvo",
        LAYER_NORM(NULL, 1e-5)},
    BART(16, 1024, 12, "bart", "marian"),
    BART(12, 768, 6, "plbart"),
    BART(16, 512, 8, "blenderbot-small"),
    MBART(16, 1024, 12, 12, "mbart", "pegasus", "m2m_100"),
    MBART(32, 2560, 2, 24, "blenderbot"),
    MBART(4, 256, 12, 6, "speech_to_text"),
    {   /* queries, keys and values all differ; positions are in the first two */
        .types = {"detr"}, BIASED,
        .stacks = STACKS_MASKED(MASK_NONE, NULL, NULL, 8, 256, 6, 6)},
    {   .types = {"moonshine"}, BIASES_IF("qkv", "attention_bias"),
        .stacks = {STACK_MOONSHINE("encoder", "self", OF_ENCODER, "input_layernorm",
        MASK_NONE, false), STACK_MOONSHINE("decoder", "self", OF_DECODER,
        "input_layernorm", MASK_CAUSAL, false), STACK_MOONSHINE("decoder", "encoder",
        OF_DECODER, "post_attention_layernorm", MASK_NONE, true)}, LAYER_NORM(NULL, 1e-5),
        ROTATION, NEIGHBOURS, PART(0.9), .rotation.adjust = round_dims},
    {   .types = {"t5gemma"}, .stacks = {STACK_T5GEMMA("encoder", "self",
        "pre_self_attn_layernorm", MASK_NONE, false), STACK_T5GEMMA("decoder", "self",
        "pre_self_attn_layernorm", MASK_CAUSAL, false), STACK_T5GEMMA("decoder", "cross",
        "pre_cross_attn_layernorm", MASK_NONE, true)}, BIASES,
        .sizes.head_keys = "head_dim=256",
        .scores.root_keys = "query_pre_attn_scalar=256", .norms.plus_one = true,
        RMS(1e-6), ROTATION, PERIODS(4096, "=2"),
        .scores.softcap_keys = "attn_logit_softcapping"},
    {   T5("t5", 8, 6)},
    {   T5("mt5", 6, 8)},
    {   T5("umt5", 6, 8), .distance.each = true},
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
