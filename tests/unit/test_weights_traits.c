/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_traits.c: what config.json makes of a layer: defaults of keys that are
 * absent or null, the spellings of both versions, and values that are refused. */
#include "find_family.h"
#include "trait_cases.h"
#include "weights_file.h"

#include "weights/families/rotation.h"
#include "weights/families/traits.h"
#include "weights/layer/make.h"

#include <math.h>

static const struct trait_case trait_cases[] = {
    /* defaults of classes, when keys are absent */
    {"gpt2", "{}", 0, "12 12 64", "causal, layer norm before"},
    {"opt", "{}", 0, "12 12 64", "causal, layer norm before"},
    {"bert", "{}", 0, "12 12 64", "plain"},
    {"electra", "{}", 0, "4 4 64", "plain"},
    {"albert", "{}", 0, "64 64 64", "plain"},
    {"esm", "{}", 0, "12 12 64", "layer norm before"},
    {"wav2vec2", "{}", 0, "12 12 64", "plain"},
    {"gpt_neo", "{}", 0, "16 16 128", "causal, scale 1, layer norm before"},
    {"gpt_neo", "{}", 1, "16 16 128", "causal, scale 1, window 256, layer norm before"},
    {"gpt_neox", "{}", 0, "64 64 96", "causal, rope 10000 of 24, layer norm before"},
    {"gptj", "{}", 0, "16 16 256",
     "causal, rope interleaved 10000 of 64, layer norm before"},
    {"bloom", "{}", 0, "8 8 8", "causal, alibi, layer norm before"},
    {"llama", "{}", 0, "32 32 128", "causal, rope 10000 of 128, RMS norm before"},
    {"mistral", "{}", 31, "32 8 128",
     "causal, rope 10000 of 128, window 4096, RMS norm before"},
    {"mixtral", "{}", 0, "32 8 128", "causal, rope 1e+06 of 128, RMS norm before"},
    {"qwen2", "{}", 0, "32 32 128", "causal, rope 10000 of 128, RMS norm before"},
    {"qwen3", "{}", 0, "32 32 128",
     "causal, rope 10000 of 128, RMS norm of each head, RMS norm before"},
    {"qwen3_next", "{}", 0, "16 2 256",
     "causal, rope 10000 of 64, RMS norm (1+w) of each head, RMS norm (1+w) before"},
    {"afmoe", "{}", 2, "16 16 128",
     "causal, rope 10000 of 128, window 1024, RMS norm of each head, RMS norm before"},
    {"afmoe", "{}", 3, "16 16 128", "causal, RMS norm of each head, RMS norm before"},
    {"bitnet", "{}", 0, "20 5 128",
     "causal, rope 500000 of 128, RMS norm of heads' outputs, RMS norm before"},
    {"gemma", "{}", 0, "16 16 256", "causal, rope 10000 of 256, RMS norm (1+w) before"},
    {"gemma2", "{}", 0, "8 4 256",
     "causal, rope 10000 of 256, window 4096, softcap 50, RMS norm (1+w) before"},
    {"gemma2", "{}", 1, "8 4 256",
     "causal, rope 10000 of 256, softcap 50, RMS norm (1+w) before"},
    {"gemma3_text", "{}", 4, "8 4 256",
     "causal, rope 10000 of 256, window 4096, RMS norm (1+w) of each head, "
     "RMS norm (1+w) before"},
    {"gemma3_text", "{}", 5, "8 4 256",
     "causal, rope 1e+06 of 256, RMS norm (1+w) of each head, RMS norm (1+w) before"},
    {"phi", "{}", 0, "32 32 64", "causal, rope 10000 of 32, layer norm before"},
    {"phi3", "{}", 0, "32 32 96", "causal, rope 10000 of 96, RMS norm before"},
    {"gpt_oss", "{}", 0, "64 8 64",
     "causal, rope yarn 150000 of 64, window 128, RMS norm before"},
    {"gpt_oss", "{}", 1, "64 8 64", "causal, rope yarn 150000 of 64, RMS norm before"},
    {"starcoder2", "{}", 0, "24 2 128", "causal, rope 10000 of 128, layer norm before"},
    {"falcon", "{}", 0, "71 1 64", "causal, rope 10000 of 64, layer norm before"},
    {"mpt", "{}", 0, "16 16 128", "causal, alibi, layer norm before"},
    {"olmo2", "{}", 0, "32 32 128", "causal, rope 10000 of 128, RMS norm of all heads"},
    {"modernbert", "{}", 0, "12 12 64", "rope 160000 of 64"},
    {"modernbert", "{}", 1, "12 12 64",
     "rope 10000 of 64, window 64 on each side, layer norm before"},
    {"modernbert", "{}", 3, "12 12 64", "rope 160000 of 64, layer norm before"},
    {"t5", "{}", 0, "8 8 64", "scale 1, bias of 32 buckets up to 128, RMS norm before"},
    {"mt5", "{}", 7, "6 6 64", "scale 1, bias of 32 buckets up to 128, RMS norm before"},
    {"mpnet", "{}", 0, "12 12 64", "bias of 32 buckets up to 128"},

    /* null is "not set", which is not always the default */
    {"mistral", "{\"num_key_value_heads\": null, \"sliding_window\": null}", 0,
     "32 32 128", "causal, rope 10000 of 128, RMS norm before"},
    {"gemma", "{\"head_dim\": null}", 0, "16 16 192",
     "causal, rope 10000 of 192, RMS norm (1+w) before"},
    {"gemma2", "{\"attn_logit_softcapping\": null}", 1, "8 4 256",
     "causal, rope 10000 of 256, RMS norm (1+w) before"},
    {"llama", "{\"rope_scaling\": null, \"head_dim\": null}", 0, "32 32 128",
     "causal, rope 10000 of 128, RMS norm before"},
    {"mpt", "{\"attn_config\": {\"clip_qkv\": null, \"softmax_scale\": null}}", 0,
     "16 16 128", "causal, alibi, layer norm before"},

    /* rotary keys of both versions; inside the object comes first */
    {"llama", "{\"rope_theta\": 5e5}", 0, "32 32 128",
     "causal, rope 500000 of 128, RMS norm before"},
    {"llama", "{\"rope_parameters\": {\"rope_theta\": 5e5}}", 0, "32 32 128",
     "causal, rope 500000 of 128, RMS norm before"},
    {"llama", "{\"rope_theta\": 7, \"rope_parameters\": {\"rope_theta\": 5e5}}", 0,
     "32 32 128", "causal, rope 500000 of 128, RMS norm before"},
    {"llama", "{\"rope_theta\": 7, \"rope_parameters\": {\"rope_type\": \"default\"}}", 0,
     "32 32 128", "causal, rope 7 of 128, RMS norm before"},
    {"llama", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", 0, "32 32 128",
     "causal, rope linear 10000 of 128, RMS norm before"},
    {"gpt_neox", "{\"rotary_pct\": 0.5, \"rotary_emb_base\": 20000}", 0, "64 64 96",
     "causal, rope 20000 of 48, layer norm before"},
    {"gpt_neox",
     "{\"rotary_pct\": 1, \"rope_parameters\": {\"partial_rotary_factor\": 0.5, "
     "\"rope_theta\": 20000}}",
     0, "64 64 96", "causal, rope 20000 of 48, layer norm before"},
    {"phi", "{\"hidden_size\": 2560, \"partial_rotary_factor\": 0.4}", 0, "32 32 80",
     "causal, rope 10000 of 32, layer norm before"},
    {"gptj", "{\"rotary_dim\": null}", 0, "16 16 256",
     "causal, rope interleaved 10000 of 256, layer norm before"},
    {"esm", "{\"position_embedding_type\": \"rotary\"}", 0, "12 12 64",
     "rope 10000 of 64, layer norm before"},
    {"gemma3_text",
     "{\"rope_theta\": 2e6, \"rope_local_base_freq\": 3e4, "
     "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}",
     5, "8 4 256",
     "causal, rope linear 2e+06 of 256, RMS norm (1+w) of each head, "
     "RMS norm (1+w) before"},
    {"gemma3_text",
     "{\"rope_theta\": 2e6, \"rope_local_base_freq\": 3e4, "
     "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}",
     0, "8 4 256",
     "causal, rope 30000 of 256, window 4096, RMS norm (1+w) of each head, "
     "RMS norm (1+w) before"},
    {"modernbert", "{\"global_rope_theta\": 7, \"local_rope_theta\": 8}", 1, "12 12 64",
     "rope 8 of 64, window 64 on each side, layer norm before"},
    {"modernbert", "{\"global_rope_theta\": 7, \"local_rope_theta\": 8}", 0, "12 12 64",
     "rope 7 of 64"},
    {"modernbert", "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}", 1,
     "12 12 64", "rope linear 10000 of 64, window 64 on each side, layer norm before"},
    {"modernbert",
     "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 7}, "
     "\"sliding_attention\": {\"rope_theta\": 8}}}",
     1, "12 12 64", "rope 8 of 64, window 64 on each side, layer norm before"},

    /* which layers have a window */
    {"qwen2", "{\"use_sliding_window\": true, \"max_window_layers\": 1}", 0, "32 32 128",
     "causal, rope 10000 of 128, RMS norm before"},
    {"qwen2", "{\"use_sliding_window\": true, \"max_window_layers\": 1}", 1, "32 32 128",
     "causal, rope 10000 of 128, window 4096, RMS norm before"},
    {"qwen2", "{\"use_sliding_window\": true, \"max_window_layers\": 0}", 0, "32 32 128",
     "causal, rope 10000 of 128, window 4096, RMS norm before"},
    {"qwen2_moe", "{\"use_sliding_window\": false, \"sliding_window\": 0}", 0,
     "16 16 128", "causal, rope 10000 of 128, RMS norm before"},
    {"qwen2_moe", "{\"use_sliding_window\": true, \"max_window_layers\": 1}", 0,
     "16 16 128", "causal, rope 10000 of 128, window 4096, RMS norm before"},
    {"qwen2_moe", "{\"use_sliding_window\": true, \"max_window_layers\": 1}", 2,
     "16 16 128", "causal, rope 10000 of 128, RMS norm before"},
    {"qwen3_moe",
     "{\"use_sliding_window\": true, \"max_window_layers\": 2, "
     "\"layer_types\": [\"full_attention\"]}",
     1, "32 4 64",
     "causal, rope 10000 of 64, window 4096, RMS norm of each head, RMS norm before"},
    {"gemma3_text",
     "{\"sliding_window_pattern\": 2, \"sliding_window\": 9, "
     "\"use_bidirectional_attention\": true}",
     0, "8 4 256",
     "rope 10000 of 256, window 4 on each side, RMS norm (1+w) of each head, "
     "RMS norm (1+w) before"},
    {"gpt_neo",
     "{\"attention_types\": [[[\"global\"], 2], [[\"local\", \"global\"], 11]]}", 2,
     "16 16 128", "causal, scale 1, window 256, layer norm before"},
    {"gpt_neo",
     "{\"attention_types\": [[[\"global\"], 2], [[\"local\", \"global\"], 11]]}", 1,
     "16 16 128", "causal, scale 1, layer norm before"},

    /* other keys that change what is computed */
    {"gpt2", "{\"scale_attn_weights\": false}", 0, "12 12 64",
     "causal, scale 1, layer norm before"},
    {"gpt2", "{\"scale_attn_by_inverse_layer_idx\": true}", 1, "12 12 64",
     "causal, scale 0.0625, layer norm before"},
    {"gpt2", "{\"hidden_size\": 48, \"num_attention_heads\": 4}", 0, "4 4 12",
     "causal, layer norm before"},
    {"bert", "{\"is_decoder\": true}", 0, "12 12 64", "causal"},
    {"opt", "{\"do_layer_norm_before\": false}", 0, "12 12 64", "causal"},
    {"wav2vec2", "{\"do_stable_layer_norm\": true}", 0, "12 12 64", "layer norm before"},
    /* its class has always 32 of them */
    {"mpnet", "{\"relative_attention_num_buckets\": 64}", 0, "12 12 64",
     "bias of 32 buckets up to 128"},
    /* which is a key of its class, but its class does not use it */
    {"gemma3_text", "{\"attn_logit_softcapping\": 50}", 5, "8 4 256",
     "causal, rope 1e+06 of 256, RMS norm (1+w) of each head, RMS norm (1+w) before"},
    {"gemma2", "{\"query_pre_attn_scalar\": 144}", 1, "8 4 256",
     "causal, rope 10000 of 256, scale 0.0833333, softcap 50, RMS norm (1+w) before"},
    {"phi", "{\"qk_layernorm\": true}", 0, "32 32 64",
     "causal, rope 10000 of 32, layer norm of each head, layer norm before"},
    {"falcon", "{\"new_decoder_architecture\": true, \"num_kv_heads\": 1}", 0, "71 1 64",
     "causal, rope 10000 of 64, layer norm before"},
    {"falcon", "{\"new_decoder_architecture\": true}", 0, "71 71 64",
     "causal, rope 10000 of 64, layer norm before"},
    {"falcon", "{\"multi_query\": false, \"alibi\": true}", 0, "71 71 64",
     "causal, alibi, layer norm before"},
    {"mpt", "{\"attn_config\": {\"clip_qkv\": 6, \"softmax_scale\": 0.5}}", 0,
     "16 16 128", "causal, scale 0.5, clip 6, alibi, layer norm before"},

    /* which layers are rotated */
    {"smollm3", "{}", 3, "16 4 128", "causal, RMS norm before"},
    {"smollm3", "{\"no_rope_layer_interval\": 2}", 0, "16 4 128",
     "causal, rope 2e+06 of 128, RMS norm before"},
    {"smollm3", "{\"no_rope_layers\": [0, 1]}", 0, "16 4 128", "causal, RMS norm before"},
    {"llama4_text", "{\"attn_temperature_tuning\": 0}", 3, "40 8 128",
     "causal, RMS norm before"},
    {"exaone4", "{}", 0, "32 32 128",
     "causal, rope 10000 of 128, window 4096, RMS norm of each head"},
    {"exaone4", "{}", 3, "32 32 128", "causal, RMS norm of each head"},
    {"exaone4", "{\"sliding_window_pattern\": \"LG\"}", 1, "32 32 128",
     "causal, RMS norm of each head"},
    {"exaone4", "{\"sliding_window\": null}", 0, "32 32 128",
     "causal, rope 10000 of 128, RMS norm of each head"},
    {"granitemoehybrid", "{\"position_embedding_type\": \"rope\"}", 5, "32 32 128",
     "causal, rope 10000 of 128, scale 1, RMS norm before"},
    {"granitemoehybrid", "{\"position_embedding_type\": \"nope\"}", 5, "32 32 128",
     "causal, scale 1, RMS norm before"},
    {"olmo_hybrid", "{\"rope_parameters\": {\"rope_theta\": null}}", 3, "30 30 128",
     "causal, RMS norm of all heads"},
    {"olmo_hybrid", "{\"rope_theta\": null}", 3, "30 30 128",
     "causal, RMS norm of all heads"},
    {"minimax_m2", "{\"rotary_dim\": 64}", 0, "48 8 128",
     "causal, rope 5e+06 of 64, RMS norm of all heads, RMS norm before"},
    {"minimax_m2", "{\"partial_rotary_factor\": 0.25}", 0, "48 8 128",
     "causal, rope 5e+06 of 32, RMS norm of all heads, RMS norm before"},
    {"moonshine", "{}", 0, "8 8 36", "rope interleaved 10000 of 32, layer norm before"},
    {"nomic_bert", "{\"rotary_emb_base\": 7, \"rotary_emb_fraction\": 1.0}", 0,
     "12 12 64", "rope 7 of 64"},

    /* windows of other families */
    {"ministral", "{}", 31, "32 8 128",
     "causal, rope 10000 of 128, window 4096, RMS norm before"},
    {"dots1", "{\"max_window_layers\": 1}", 0, "32 32 144",
     "causal, rope 10000 of 144, RMS norm of each head, RMS norm before"},
    {"dots1", "{\"max_window_layers\": 1}", 1, "32 32 144",
     "causal, rope 10000 of 144, window 4096, RMS norm of each head, RMS norm before"},
    {"dots1", "{}", 61, "32 32 144",
     "causal, rope 10000 of 144, RMS norm of each head, RMS norm before"},
    {"cwm", "{}", 4, "48 8 128", "causal, rope llama3 1e+06 of 128, RMS norm before"},
    {"t5gemma", "{}", 0, "8 4 256",
     "rope 10000 of 256, window 4096 on each side, softcap 50, RMS norm (1+w) before"},
    {"modernbert-decoder", "{\"local_attention\": 8}", 1, "12 12 64",
     "causal, rope 10000 of 64, window 4, layer norm before"},
    {"olmo3",
     "{\"rope_theta\": 7, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", 0,
     "32 32 128", "causal, rope 7 of 128, window 4096, RMS norm of all heads"},
    {"olmo3",
     "{\"rope_theta\": 7, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", 3,
     "32 32 128", "causal, rope linear 7 of 128, RMS norm of all heads"},

    /* scales and norms of other families */
    {"granite", "{\"attention_multiplier\": 0.25}", 0, "32 32 128",
     "causal, rope 10000 of 128, scale 0.25, RMS norm before"},
    {"granite", "{}", 0, "32 32 128",
     "causal, rope 10000 of 128, scale 1, RMS norm before"},
    {"hyperclovax", "{}", 0, "32 32 128", "causal, rope 10000 of 128, RMS norm before"},
    {"falcon_h1", "{\"head_dim\": 16, \"key_multiplier\": 0.5}", 0, "32 8 16",
     "causal, rope 10000 of 16, scale 0.125"},
    {"olmo", "{\"clip_qkv\": 6}", 0, "32 32 128",
     "causal, rope 10000 of 128, clip 6, layer norm before without weight"},
    {"glm4_moe", "{\"head_dim\": 128, \"use_qk_norm\": true}", 0, "96 8 128",
     "causal, rope 10000 of 64, RMS norm of each head, RMS norm before"},

    /* refused, with the key */
    {"smollm3", "{\"no_rope_layers\": [0, 2]}", 1, NULL, "list of 0 or 1 for each"},
    {"smollm3", "{\"no_rope_layers\": \"x\"}", 0, NULL, "list of 0 or 1 for each"},
    {"smollm3", "{\"no_rope_layer_interval\": 0}", 0, NULL,
     "no_rope_layer_interval is 0"},
    {"granite", "{\"attention_multiplier\": 0}", 0, NULL, "attention_multiplier is 0"},
    {"falcon_h1", "{\"key_multiplier\": \"x\"}", 0, NULL, "key_multiplier is 'x'"},
    {"dots1", "{\"layer_types\": [\"full_attention\"]}", 0, NULL,
     "for each of 62 layers"},
    {"phimoe", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_mscale\": 1.2}}", 0,
     NULL, "short_mscale is 1.2"},
    {"llama", "{\"rope_theta\": -1}", 0, NULL, "rope_theta is -1"},
    {"llama", "{\"rope_theta\": \"x\"}", 0, NULL, "rope_theta is 'x'"},
    {"phi", "{\"partial_rotary_factor\": 1.5}", 0, NULL, "must be even and within"},
    {"phi", "{\"partial_rotary_factor\": 0.02}", 0, NULL, "must be even and within"},
    {"gptj", "{\"rotary_dim\": 257}", 0, NULL, "must be even and within"},
    {"gptj", "{\"rotary_dim\": 3}", 0, NULL, "must be even and within"},
    {"llama", "{\"rope_scaling\": {\"type\": \"linear\"}}", 0, NULL, "factor is missing"},
    {"llama",
     "{\"rope_scaling\": {\"type\": \"yarn\", \"original_max_position_embeddings\": 8}}",
     0, NULL, "factor and max_position_embeddings are missing"},
    {"llama", "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", 0, NULL,
     "max_position_embeddings is missing"},
    {"llama",
     "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"llama3\", "
     "\"factor\": 2, \"low_freq_factor\": 4, \"high_freq_factor\": 3}}",
     0, NULL, "must not be less than low_freq_factor"},
    {"phi3",
     "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"su\", "
     "\"short_factor\": [1], \"long_factor\": [1]}}",
     0, NULL, "short_factor must be a list of 48 numbers"},
    {"qwen2", "{\"use_sliding_window\": true, \"max_window_layers\": -1}", 0, NULL,
     "max_window_layers is -1, but must be a whole number from 0"},
    {"qwen2",
     "{\"use_sliding_window\": true, \"sliding_window\": 0, \"max_window_layers\": 0}", 0,
     NULL, "layer 0 has sliding attention, but sliding_window is 0"},
    {"gemma2", "{\"sliding_window\": null}", 0, NULL, "sliding_window is not set"},
    {"modernbert", "{\"local_attention\": 1}", 1, NULL, "must be at least 2"},
    {"gpt_neo", "{\"attention_types\": [[[\"global\"], 1]]}", 1, NULL, "for layer 1"},
    {"gpt_neo", "{\"attention_types\": [[[], 12]]}", 0, NULL, "attention_types must"},
    {"gpt_neo", "{\"attention_types\": {}}", 0, NULL, "attention_types must"},
    {"modernbert", "{\"local_rope_theta\": null}", 1, NULL, "local_rope_theta is null"},
    {"t5", "{\"relative_attention_num_buckets\": 3}", 0, NULL, "are not possible"},
    {"t5", "{\"relative_attention_max_distance\": 8}", 0, NULL, "are not possible"},
    {"mpnet", "{\"relative_attention_num_buckets\": 31}", 0, NULL, "are not possible"},
    {"deberta-v2",
     "{\"relative_attention\": true, \"pos_att_type\": \"c2p\", \"position_buckets\": 5}",
     0, NULL, "5 buckets up to distance 512 are not possible"},
    {"deberta-v2",
     "{\"relative_attention\": true, \"pos_att_type\": \"c2p\", \"position_buckets\": 8, "
     "\"max_relative_positions\": 5}",
     0, NULL, "8 buckets up to distance 5 are not possible"},
    {"wav2vec2-bert", "{\"position_embeddings_type\": \"rotary\"}", 0, NULL,
     "must be relative_key"},
    {"mpt", "{\"attn_config\": {\"kv_n_heads\": 4}}", 0, NULL, "attn_config.kv_n_heads"},
    {"gemma", "{\"use_bidirectional_attention\": true}", 0, NULL,
     "use_bidirectional_attention is true, but must be false"},
    {"gemma2", "{\"use_bidirectional_attention\": true}", 0, NULL,
     "use_bidirectional_attention is true, but must be false"},
    {"bitnet", "{\"quantization_config\": {\"quant_method\": \"bitnet\"}}", 0, NULL,
     "quantization_config"},
    {"bert", "{\"is_decoder\": 1}", 0, NULL, "is_decoder is 1"},
    {"gemma2", "{\"query_pre_attn_scalar\": 0}", 0, NULL, "query_pre_attn_scalar is 0"},
    {"gemma2",
     "{\"query_pre_attn_scalar\": 0, \"sliding_window\": -1, \"head_dim\": \"x\"}", 0,
     NULL, "head_dim is 'x'"}, /* the first that is read */
};

/* Reads the traits of a layer in the first stack of a family. */
static attn_status read_traits(const char *type, const json_t *config, size_t index,
                               struct layer *ret_layer, attn_error *ret_error) {
    const struct match match = {.family = find_family(type), .type = type};
    const struct stack *stack = &match.family->stacks[0];
    struct match_stack found = {.stack = stack,
                                .part = stack->part,
                                .section = {.object = config, .error = ret_error},
                                .num_layers = stack->layers};

    *ret_error = (attn_error){.status = ATTN_OK};
    found.num_heads = config_get_count(&found.section, stack->heads_keys, stack->heads);
    found.width = config_get_count(&found.section, stack->width_keys, stack->width);
    assert_int_equal(ret_error->status, ATTN_OK);
    return traits_read(&match, &found, index, ret_layer);
}

/* Writes the features without the word that the norm's tensor is not there. */
static void describe_without_tensors(const struct layer *layer,
                                     char ret_text[FEATURES_TEXT_SIZE]) {
    layer_describe_features(layer, ret_text);
    char *end = strstr(ret_text, " (not in the file)");
    if (end != NULL)
        *end = '\0';
}

static void compare_traits(const struct trait_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct trait_case *want = &cases[i];
        char sizes[64], features[FEATURES_TEXT_SIZE];
        struct layer layer;
        attn_error error = {.text = ""};
        json_t *config = json_loads(want->config, 0, NULL);
        assert_non_null(config);

        attn_status status = read_traits(want->type, config, want->index, &layer, &error);
        if (want->sizes == NULL) {
            if (status == ATTN_OK)
                fail_msg("%s %s is not refused", want->type, want->config);
            assert_text_has(error.text, want->features);
        } else {
            if (status != ATTN_OK)
                fail_msg("%s %s: %s", want->type, want->config, error.text);
            snprintf(sizes, sizeof sizes, "%zu %zu %zu", layer.info.num_heads,
                     layer.info.num_kv_heads, layer.info.width.score);
            describe_without_tensors(&layer, features);
            if (strcmp(sizes, want->sizes) != 0 || strcmp(features, want->features) != 0)
                fail_msg("%s %s: %s: %s", want->type, want->config, sizes, features);
        }
        json_decref(config);
    }
}

static void test_config_makes_layers_what_they_are(void **state) {
    (void)state;
    compare_traits(trait_cases, sizeof trait_cases / sizeof trait_cases[0]);
}

static void test_config_says_what_becomes_of_rows(void **state) {
    (void)state;
    compare_traits(row_cases, sizeof row_cases / sizeof row_cases[0]);
}

/* Reads the rotary parameters of llama, or of another family, from `text`. */
static struct layer_rotation must_read_rotation(const char *type, const char *text,
                                                json_t **ret_config) {
    struct layer_rotation rotation;
    attn_error error = {.text = ""};
    *ret_config = json_loads(text, 0, NULL);
    const struct config_section section = {.object = *ret_config, .error = &error};
    const struct layer_source layer = {
        .family = find_family(type), .section = &section, .num_layers = 1};
    rotation_read(&layer, 8, &rotation);
    if (error.status != ATTN_OK)
        fail_msg("%s", error.text);
    return rotation;
}

static void test_llama3_reads_its_factors(void **state) {
    json_t *config;
    (void)state;
    struct layer_rotation rotation = must_read_rotation(
        "llama",
        "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
        "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
        "\"original_max_position_embeddings\": 8192}, \"max_position_embeddings\": 9}",
        &config);
    assert_true(rotation.type == ROTATION_LLAMA3 && rotation.factor == 8 &&
                rotation.low_freq_factor == 1 && rotation.high_freq_factor == 4 &&
                rotation.original_positions == 8192 && rotation.max_positions == 9);
    json_decref(config);
}

static void test_original_length_at_the_top_comes_first(void **state) {
    json_t *config;
    (void)state;
    struct layer_rotation rotation = must_read_rotation(
        "llama",
        "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, "
        "\"original_max_position_embeddings\": 5}, "
        "\"original_max_position_embeddings\": 7, \"max_position_embeddings\": 9}",
        &config);
    assert_int_equal(rotation.original_positions, 7);
    assert_true(rotation.beta_fast == 32 && rotation.beta_slow == 1 && rotation.truncate);
    json_decref(config);

    rotation = must_read_rotation("llama",
                                  "{\"rope_scaling\": {\"rope_type\": \"yarn\", "
                                  "\"truncate\": false, \"mscale\": 2}, "
                                  "\"max_position_embeddings\": 9}",
                                  &config);
    assert_int_equal(rotation.original_positions, 9);
    assert_true(!rotation.truncate && rotation.factor == 0 && rotation.mscale == 2);
    json_decref(config);
}

static void test_longrope_has_a_factor_for_each_pair(void **state) {
    static const char *const names[] = {"su", "yarn", "longrope"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char text[300];
        json_t *config;
        snprintf(text, sizeof text,
                 "{\"rope_scaling\": {\"type\": \"%s\", \"short_factor\": [1, 2, 3, 4], "
                 "\"long_factor\": [5, 6, 7, 8.5]}, \"max_position_embeddings\": 64, "
                 "\"original_max_position_embeddings\": 16}",
                 names[i]);
        struct layer_rotation rotation = must_read_rotation("phi3", text, &config);
        assert_int_equal(rotation.type, ROTATION_LONGROPE);
        assert_true(json_number_value(json_array_get(rotation.long_factors, 3)) == 8.5);
        assert_true(json_number_value(json_array_get(rotation.short_factors, 0)) == 1);
        json_decref(config);
    }
}

static void test_scale_is_that_of_the_head_size(void **state) {
    struct layer layer;
    attn_error error;
    json_t *config = json_object();
    (void)state;
    assert_int_equal(read_traits("bert", config, 0, &layer, &error), ATTN_OK);
    assert_true(layer.info.score.scale == 0.125);
    json_decref(config);
}

static void test_buckets_of_causal_stacks_are_on_one_side(void **state) {
    const struct family *family = find_family("t5");
    json_t *config = json_object();
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct match match = {.family = family, .type = "t5"};
        attn_error error = {.status = ATTN_OK};
        const struct match_stack stack = {.stack = &family->stacks[i],
                                          .section = {.object = config, .error = &error},
                                          .num_heads = 8,
                                          .width = 512,
                                          .num_layers = 6};
        struct layer layer;
        assert_int_equal(traits_read(&match, &stack, 0, &layer), ATTN_OK);
        assert_int_equal(layer.info.score.bias,
                         i == 2 ? ATTN_BIAS_NONE : ATTN_BIAS_BUCKETS);
        assert_true(layer.bias.both_sides == (i == 0));
        assert_true(layer.info.mask.causal == (i == 1) && layer.cross == (i == 2));
    }
    json_decref(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_makes_layers_what_they_are),
        cmocka_unit_test(test_config_says_what_becomes_of_rows),
        cmocka_unit_test(test_llama3_reads_its_factors),
        cmocka_unit_test(test_original_length_at_the_top_comes_first),
        cmocka_unit_test(test_longrope_has_a_factor_for_each_pair),
        cmocka_unit_test(test_scale_is_that_of_the_head_size),
        cmocka_unit_test(test_buckets_of_causal_stacks_are_on_one_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
