/* SPDX-License-Identifier: Apache-2.0 */
/* trait_cases.h: what config.json says of norms, rotations and factors of projected rows,
 * of layers that take keys of others, and of masks. */
#ifndef ATTND_TESTS_TRAIT_CASES_H
#define ATTND_TESTS_TRAIT_CASES_H

#include <stddef.h>

/* A family, its config.json, and what one layer of it must be. */
struct trait_case {
    const char *type, *config;
    size_t index;
    const char *sizes;    /* "H KV D"; NULL: refused */
    const char *features; /* or the words of the refusal */
};

static const struct trait_case row_cases[] = {
    /* sizes when their keys are absent */
    {"hyperclovax", "{\"hidden_size\": 48, \"num_attention_heads\": 4}", 0, "4 4 12",
     "causal, rope 10000 of 12, RMS norm before"},
    {"jais2", "{\"hidden_size\": 48, \"num_attention_heads\": 4}", 0, "4 4 12",
     "causal, rope 10000 of 12, layer norm before"},
    {"cohere2", "{\"hidden_size\": 48, \"num_attention_heads\": 4}", 3, "4 4 12",
     "causal, layer norm before"},
    {"helium", "{\"hidden_size\": 2560, \"num_attention_heads\": 40}", 0, "40 20 128",
     "causal, rope interleaved 100000 of 128, RMS norm before"},
    {"mimo_v2_flash", "{}", 0, "64 4 192",
     "causal, rope 5e+06 of 64, values of size 128, values times 0.707, RMS norm before"},
    {"mimo_v2_flash", "{\"sliding_window_size\": 128, \"sliding_window\": 64}", 1,
     "64 8 192",
     "causal, rope 10000 of 64, values of size 128, values times 0.707, window 129, "
     "RMS norm before"},
    {"deberta-v2", "{}", 0, "24 24 64", "plain"},
    {"deberta-v2", /* v3 */
     "{\"hidden_size\": 768, \"num_attention_heads\": 12, \"relative_attention\": true, "
     "\"pos_att_type\": \"p2c|c2p\", \"position_buckets\": 256, "
     "\"max_relative_positions\": -1}",
     0, "12 12 64",
     "scale 0.0721688, content to position of 512, position to content of 512"},
    {"deberta-v2", "{\"pos_att_type\": [\"c2p\"]}", 0, "24 24 64", "scale 0.0883883"},
    {"deberta-v2", "{\"relative_attention\": true}", 0, "24 24 64", "plain"},
    {"deberta-v2",
     "{\"relative_attention\": true, \"pos_att_type\": [\"p2c\"], "
     "\"position_buckets\": -1, \"max_relative_positions\": 100}",
     0, "24 24 64", "scale 0.0883883, position to content of 200"},
    {"wav2vec2-bert", "{}", 0, "16 16 64",
     "content to position of 73, layer norm before"},
    {"wav2vec2-bert", "{\"position_embeddings_type\": null}", 0, "16 16 64",
     "layer norm before"},
    {"gpt_bigcode", "{\"scale_attn_weights\": false}", 1, "12 1 64",
     "causal, scale 1, layer norm before"},
    {"llama4_text", "{}", 0, "40 8 128",
     "causal, rope interleaved 500000 of 128, chunks of 8192, RMS norm without weight of "
     "each head after the rotation, RMS norm before"},
    {"llama4_text", "{\"use_qk_norm\": false, \"attention_chunk_size\": null}", 0,
     "40 8 128", "causal, rope interleaved 500000 of 128, RMS norm before"},
    {"llama4_text", "{\"attn_temperature_tuning\": 4, \"floor_scale\": 16}", 3,
     "40 8 128", "causal, queries times 1 + 0.1 ln(1 + (i + 1) / 16), RMS norm before"},
    {"llama4_text", "{\"attn_temperature_tuning\": 0}", 3, "40 8 128",
     "causal, RMS norm before"},
    {"gemma3n_text", "{}", 0, "8 2 256",
     "causal, rope 10000 of 256, scale 1, window 512, RMS norm of each head, "
     "RMS norm of values, RMS norm before"},
    {"gemma3n_text", "{}", 34, "8 2 256",
     "keys of layer 19, causal, rope 1e+06 of 256, scale 1, RMS norm of each head, "
     "RMS norm of values, RMS norm before"},
    {"gemma4_text", "{}", 0, "8 4 256",
     "causal, rope 10000 of 256, scale 1, window 512, RMS norm of each head, "
     "RMS norm of values, RMS norm before"},
    {"gemma4_text", "{\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1}", 5,
     "8 1 512",
     "causal, rope proportional 1e+06 of 512, scale 1, RMS norm of each head, "
     "RMS norm of values, RMS norm before"},
    {"cohere", "{\"use_qk_norm\": true}", 0, "64 64 128",
     "causal, rope interleaved 500000 of 128, layer norm of each head by its own "
     "weights, layer norm before"},
    {"cohere2", "{\"position_embedding_type\": \"rope_gptj\"}", 3, "64 64 128",
     "causal, layer norm before"},
    {"cohere2", "{\"position_embedding_type\": \"alibi\"}", 3, NULL,
     "position_embedding_type is 'alibi', but must be rope_gptj"},
    {"hunyuan_v1_dense", "{}", 0, "32 32 128",
     "causal, rope 10000 of 128, RMS norm of each head after the rotation, "
     "RMS norm before"},
    {"nanochat", "{}", 0, "6 6 128",
     "causal, rope 10000 of 128, RMS norm without weight of each head after the "
     "rotation, RMS norm before without weight"},
    {"olmoe", "{\"clip_qkv\": 8}", 0, "16 16 128",
     "causal, rope 10000 of 128, clip 8 after norms, RMS norm of all heads, "
     "RMS norm before"},
    {"ministral3", "{\"max_position_embeddings\": 262144}", 0, "32 8 128",
     "causal, rope yarn 1e+06 of 128, queries times 1 + 0.1 ln(1 + (i + 0) / 16384), "
     "RMS norm before"},
    {"ministral3", "{\"rope_parameters\": {\"llama_4_scaling_beta\": 0}}", 0, "32 8 128",
     "causal, rope 10000 of 128, RMS norm before"},
    {"ministral3",
     "{\"rope_scaling\": {\"llama_4_scaling_beta\": 0.3, "
     "\"original_max_position_embeddings\": 4}}",
     0, "32 8 128",
     "causal, rope 10000 of 128, queries times 1 + 0.3 ln(1 + (i + 0) / 4), RMS norm "
     "before"},
    {"granite_swa", "{}", 0, "20 4 128",
     "causal, rope 10000 of 128, scale 1, RMS norm before"},
    {"granite_swa",
     "{\"layer_rope_theta\": [7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
     "0, 0, 0, 0, 0]}",
     1, "20 4 128", "causal, scale 1, window 128, RMS norm before"},
    {"granite_swa",
     "{\"layer_rope_theta\": [7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
     "0, 0, 0, 0, 0]}",
     2, "20 4 128", "causal, rope 9 of 128, scale 1, window 128, RMS norm before"},
    {"granite_swa", "{\"layer_rope_theta\": [7]}", 0, NULL,
     "layer_rope_theta must be a list of a number for each of 24 layers"},
    {"cohere2_moe", "{\"rms_norm_eps\": 1e-6}", 3, "64 64 128",
     "causal, RMS norm before"},
    {"cohere2_moe", "{\"layer_types\": null, \"mlp_layer_types\": [0, 0, 0, \"dense\"]}",
     3, "64 64 128", "causal, rope interleaved 10000 of 128, layer norm before"},
    {"cohere2_moe",
     "{\"prefix_dense_sliding_window_pattern\": 2, "
     "\"mlp_layer_types\": [0, 0, 0, \"dense\"]}",
     3, "64 64 128", "causal, layer norm before"},
    {"cohere2_moe", "{\"first_k_dense_replace\": 3}", 0, NULL,
     "first_k_dense_replace is 3, but must be null|0"},
    {"minicpm3", "{\"hidden_size\": 80, \"num_attention_heads\": 4}", 0, "4 4 96",
     "causal, rope 10000 of 32, latent queries of 768, latent keys of 256 + 32, values "
     "of size 20, RMS norm before"},
    {"embedding_gemma2_text", "{}", 0, "4 2 256",
     "rope 10000 of 256, scale 1, window 512 on each side, RMS norm of each head, RMS "
     "norm of values, RMS norm before"},
    {"embedding_gemma2_text", "{}", 5, "4 1 512",
     "rope 1e+06 of 512, scale 1, RMS norm of each head, RMS norm of values, RMS norm "
     "before"},
    {"embedding_gemma2_text", "{\"num_global_key_value_heads\": 2}", 5, "4 2 512",
     "rope 1e+06 of 512, scale 1, RMS norm of each head, RMS norm of values, RMS norm "
     "before"},
    {"mllama_text_model", "{\"cross_attention_layers\": [2]}", 3, "32 8 128",
     "causal, rope 500000 of 128, RMS norm before"},
    {"hy_v3", "{}", 0, "64 8 128",
     "causal, rope 1.11588e+07 of 128, RMS norm of each head, RMS norm before"},
    {"phi4_multimodal_text", "{}", 0, "32 8 96",
     "causal, rope 10000 of 96, RMS norm before"},
    {"mimo", "{}", 0, "32 32 128", "causal, rope 10000 of 128, RMS norm before"},
    {"new", "{\"rope_scaling\": {\"type\": \"ntk\", \"factor\": 2}}", 0, "12 12 64",
     "rope linear 20000 of 64"},
    {"new", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", 0, NULL,
     "rope_scaling.type is 'linear', but must be ntk"},
    {"new", "{\"logn_attention_scale\": true}", 0, NULL,
     "logn_attention_scale is true, but must be false"},
    /* what is null is false, as in Python */
    {"deepseek_v3", "{\"rope_interleave\": null}", 0, "128 128 192",
     "causal, rope 10000 of 64, latent queries of 1536, latent keys of 512 + 64, values "
     "of size 128, RMS norm before"},
    {"starcoder2", "{\"use_bias\": null, \"use_sliding_window\": null}", 0, "24 2 128",
     "causal, rope 10000 of 128, layer norm before"},
    /* a share of a head, of which the class rotates all: is it another model's? */
    {"llama", "{\"partial_rotary_factor\": 0.5}", 0, NULL, "rotates whole heads"},
    {"nomic_bert", "{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", 0, NULL,
     "rotates whole heads"},
    {"nomic_bert", "{\"rotary_emb_fraction\": 0.5}", 0, NULL,
     "rotary_emb_fraction is 0.5, but must be 1"},
    /* layers that slide, and a window that is none */
    {"smollm3", "{\"use_sliding_window\": true, \"sliding_window\": 8}", 3, "16 4 128",
     "causal, window 8, RMS norm before"},
    {"smollm3", "{\"use_sliding_window\": true, \"sliding_window\": 8}", 0, "16 4 128",
     "causal, rope 2e+06 of 128, RMS norm before"},
    {"smollm3",
     "{\"sliding_window\": 8, \"num_hidden_layers\": 36, \"layer_types\": "
     "[\"sliding_attention\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
     "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
     "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]}",
     0, "16 4 128", "causal, rope 2e+06 of 128, window 8, RMS norm before"},
    {"qwen2", "{\"use_sliding_window\": true, \"sliding_window\": 0}", 0, "32 32 128",
     "causal, rope 10000 of 128, RMS norm before"},
    {"mistral", "{\"sliding_window\": 0}", 0, NULL, "but sliding_window is 0"},
    {"modernbert", "{\"sliding_window\": 8, \"local_attention\": 64}", 1, "12 12 64",
     "rope 10000 of 64, window 8 on each side, layer norm before"},
    {"olmo_hybrid",
     "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}", 3, NULL,
     "rotary parameters by type of layer"},
    {"gemma4_text", "{\"per_layer_config\": {\"05\": {\"head_dim\": 64}}}", 5, "8 4 64",
     "causal, rope proportional 1e+06 of 64, scale 1, RMS norm of each head, RMS norm of "
     "values, RMS norm before"},
    {"roformer", "{\"rotary_value\": true}", 0, "12 12 64",
     "rope interleaved 10000 of 64, values rotated"},
    /* masks */
    {"llama", "{\"is_causal\": false}", 0, "32 32 128",
     "rope 10000 of 128, RMS norm before"},
    {"llama", "{\"is_causal\": null}", 0, "32 32 128",
     "rope 10000 of 128, RMS norm before"},
    {"llama", "{\"is_causal\": true}", 0, "32 32 128",
     "causal, rope 10000 of 128, RMS norm before"},
    {"llama", "{\"is_causal\": 0}", 0, NULL, "is_causal is 0, but must be true or false"},
    {"mistral", "{\"is_causal\": false, \"sliding_window\": 9}", 0, "32 8 128",
     "rope 10000 of 128, window 9 on each side, RMS norm before"},
    {"modernbert-decoder", "{\"is_causal\": false}", 1, "12 12 64",
     "rope 10000 of 64, window 64 on each side, layer norm before"},
    {"gemma3_text", "{\"is_causal\": false, \"sliding_window\": 9}", 0, "8 4 256",
     "rope 10000 of 256, window 9 on each side, RMS norm (1+w) of each head, "
     "RMS norm (1+w) before"},
    {"gemma3_text",
     "{\"is_causal\": false, \"sliding_window\": 9, "
     "\"use_bidirectional_attention\": true}",
     0, "8 4 256",
     "rope 10000 of 256, window 5 on each side, RMS norm (1+w) of each head, "
     "RMS norm (1+w) before"},
    {"bert", "{\"is_decoder\": true, \"is_causal\": false}", 0, "12 12 64", "plain"},
    {"bert", "{\"is_causal\": true}", 0, "12 12 64", "plain"},
    {"openai-gpt", "{\"is_causal\": false}", 0, "12 12 64", "causal"},
    {"imagegpt", "{\"is_causal\": false}", 0, "8 8 64", "causal, RMS norm before"},
    {"llama4_text", "{\"is_causal\": false, \"use_qk_norm\": false}", 0, "40 8 128",
     "causal, rope interleaved 500000 of 128, chunks of 8192, RMS norm before"},
    {"llama4_text", "{\"is_causal\": false, \"attn_temperature_tuning\": 0}", 3,
     "40 8 128", "RMS norm before"},
    {"qwen3", "{\"use_bidirectional_attention\": true}", 0, "32 32 128",
     "rope 10000 of 128, RMS norm of each head, RMS norm before"},
    {"stablelm", "{\"norm_eps\": 1e-5}", 0, "32 32 80",
     "causal, rope 10000 of 20, layer norm before"},
    {"stablelm", "{\"norm_eps\": 1e-6}", 0, NULL,
     "has norm_eps, but family stablelm has"},
    {"llama", "{\"use_bidirectional_attention\": true}", 0, NULL,
     "use_bidirectional_attention is true, but must be false|vision: set causal="},
    {"llama", "{\"use_bidirectional_attention\": true, \"is_causal\": false}", 0,
     "32 32 128", "rope 10000 of 128, RMS norm before"},
    {"llama", "{\"bidirectional\": true}", 0, NULL,
     "bidirectional is true, but must be false: set causal="},
    {"llama", "{\"causal\": false}", 0, NULL,
     "causal is false, but must be true: set causal="},
    {"llama", "{\"causal_attention\": false}", 0, NULL,
     "causal_attention is false, but must be true"},
    {"llama", "{\"use_causal_mask\": false}", 0, NULL,
     "use_causal_mask is false, but must be true"},
    {"llama", "{\"causal\": true, \"bidirectional\": false, \"use_causal_mask\": null}",
     0, "32 32 128", "causal, rope 10000 of 128, RMS norm before"},
    {"nomic_bert", "{\"causal\": false}", 0, "12 12 64", "rope 1000 of 64"},
    {"nomic_bert", "{\"causal\": true}", 0, NULL, "causal is true, but must be false"},
    {"gemma4_text", "{\"per_layer_config\": [1]}", 0, NULL, "per_layer_config must be"},
    {"gemma4_text", "{\"per_layer_config\": {\"0\": 32}}", 0, NULL,
     "per_layer_config must be"},
    {"gemma4_text", "{\"per_layer_config\": {\"1\": {\"head_dim\": -1}}}", 1, NULL,
     "head_dim is -1"},
    {"gemma4_text", "{\"per_layer_config\": {\"1\": {\"num_key_value_heads\": 3}}}", 1,
     NULL, "8 query heads cannot share 3 key heads"},
    {"gemma4_text", "{\"global_head_dim\": 0}", 5, NULL, "global_head_dim is 0"},
    {"gemma4_text", "{\"attention_k_eq_v\": 1}", 5, NULL, "attention_k_eq_v is 1"},
    {"gemma4_text", "{\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1e99}",
     5, NULL, "num_global_key_value_heads is 1e+99"},
    {"gemma4_text", "{\"num_kv_shared_layers\": 30}", 29, NULL,
     "num_kv_shared_layers is 30, but must be less than 30, the number of layers"},
    {"gemma4_text", "{\"num_kv_shared_layers\": -1}", 29, NULL,
     "num_kv_shared_layers is -1"},
    {"gemma4_text", "{\"num_kv_shared_layers\": 27}", 29, NULL,
     "there is none before the last 27; correct num_kv_shared_layers or layer_types"},
    {"gemma4_text",
     "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", "
     "\"partial_rotary_factor\": 1.5}}}",
     5, NULL, "partial_rotary_factor is 1.5"},
    {"gemma4_text", "{\"use_bidirectional_attention\": \"all\"}", 0, NULL,
     "use_bidirectional_attention is 'all'"},
    {"ministral3", "{\"rope_parameters\": {\"llama_4_scaling_beta\": -0.1}}", 0, NULL,
     "llama_4_scaling_beta is -0.1"},
    {"ministral3", "{\"rope_parameters\": {\"rope_theta\": 7}}", 0, NULL,
     "llama_4_scaling_beta or original_max_position_embeddings is missing"},
    {"ministral3", "{\"rope_parameters\": {\"llama_4_scaling_beta\": 0.1}}", 0, NULL,
     "original_max_position_embeddings is missing"},
    {"ministral3",
     "{\"rope_parameters\": {\"llama_4_scaling_beta\": 0.1, "
     "\"original_max_position_embeddings\": 0.5}}",
     0, NULL, "original_max_position_embeddings is 0.5"},
    {"hunyuan_v1_dense",
     "{\"max_position_embeddings\": 64, \"rope_parameters\": {\"rope_type\": "
     "\"dynamic\", \"factor\": 1, \"alpha\": \"x\"}}",
     0, NULL, "alpha is 'x'"},
    {"roformer", "{\"rotary_value\": \"yes\"}", 0, NULL, "rotary_value is 'yes'"},
    {"olmoe", "{\"clip_qkv\": -8}", 0, NULL, "clip_qkv is -8"},
    {"cohere", "{\"use_qk_norm\": 1}", 0, NULL, "use_qk_norm is 1"},
    {"stablelm", "{\"qk_layernorm\": \"x\"}", 0, NULL, "qk_layernorm is 'x'"},
};

#endif
