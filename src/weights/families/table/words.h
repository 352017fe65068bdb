/* SPDX-License-Identifier: Apache-2.0 */
/* words.h: what several files of the table of families write alike. Names of tensors,
 * orders of rows and defaults are those of Hugging Face's transformers, as its class of
 * that name computes the layer. */
#pragma once

#include "base/error.h"
#include "weights/families/kinds.h"

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
#define KEYS(h, w, n) .heads_keys = h, .width_keys = w, .layers_keys = n
#define KEYS_COMMON KEYS("num_attention_heads", "hidden_size", "num_hidden_layers")
#define KEYS_GPT \
    KEYS("n_head num_attention_heads", "n_embd hidden_size", "n_layer num_hidden_layers")
#define NAMES_PROJ(o) {"q_proj", "k_proj", "v_proj", o}
#define PACKED(qkv, o) {qkv, NULL, NULL, o}
#define SIZES(h, w, n) .heads = h, .width = w, .layers = n
/* One stack of names and keys without a part. */
#define STACK(keys, path, inside, before, h, w, n, mask_of, ...) \
    {.part = "", .layer = path, .module = inside, .norm = before, .names = __VA_ARGS__, \
     keys, SIZES(h, w, n), .mask = mask_of}
/* The same in places that many share: those of BERT, then those of Llama. */
#define STACK_ENCODER(before, h, w, n, mask_of, ...) \
    STACK(KEYS_COMMON, "encoder.layer.#.", "attention.", before, h, w, n, mask_of, \
          __VA_ARGS__)
#define STACK_SELF(before, h, w, n, mask_of, ...) \
    STACK(KEYS_COMMON, "layers.#.", "self_attn.", before, h, w, n, mask_of, __VA_ARGS__)
#define STACK_DECODER(mask_of, h, w, n) \
    STACK_SELF("input_layernorm", h, w, n, mask_of, NAMES_PROJ("o_proj"))
#define STACK_LLAMA(h, w, n) STACK_DECODER(MASK_CAUSAL, h, w, n)
#define HEADS(kv, d) \
    .sizes.kv_keys = "num_key_value_heads=" #kv, .sizes.head_keys = "head_dim=" #d
#define BIASES_IF(letters, key) .biases.if_set = letters, .biases.keys = key
#define BIASES BIASES_IF("qkvo", "attention_bias")
#define BIASED .biases.always = "qkvo"
#define LLAMA(type_name, h, w, n, kv, d) LLAMAS(h, w, n, kv, d, type_name)
#define LLAMAS(h, w, n, kv, d, ...) \
    .types = {__VA_ARGS__}, .stacks = {STACK_LLAMA(h, w, n)}, HEADS(kv, d)
#define BASE_OF(keys, value) .rotation.base_keys = keys, .rotation.base = value
#define BASE(value) BASE_OF("rope_theta", value)
#define LOCAL_BASE(keys, value) \
    .rotation.local_keys = keys, .rotation.local_base = value
#define NEIGHBOURS .rotation.interleaved = "=true"
#define PART_OF(keys, value) .rotation.part_keys = keys, .rotation.part = value
#define PART(value) PART_OF("partial_rotary_factor", value)
#define ROTATION BASE(10000)
#define LAYER_NORM(keys, value) \
    .norms.before = ATTN_NORM_LAYER, .norms.eps_keys = keys, .norms.eps = value
#define RMS_NORM(keys, value) \
    .norms.before = ATTN_NORM_RMS, .norms.eps_keys = keys, .norms.eps = value
#define RMS(value)  RMS_NORM("rms_norm_eps", value)
#define NORMS_OF_HEADS(q, k, of) .norms.query = q, .norms.key = k, .norms.heads = of
#define HEAD_NORMS NORMS_OF_HEADS("q_norm", "k_norm", ATTN_NORM_RMS)
#define WINDOW(length) .windows.keys = "sliding_window=" #length
#define WINDOWS(which, length) .windows.slides = which, WINDOW(length)
#define PERIODS(length, keys) \
    WINDOWS(kind_slides_in_period, length), .windows.period_keys = keys
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

/* The files of the table, which end with an entry without a type. */
extern const struct family families_gpt[];
extern const struct family families_llama[];
extern const struct family families_gemma[];
extern const struct family families_hybrid[];
extern const struct family families_latent[];
extern const struct family families_bert[];
extern const struct family families_images[];
extern const struct family families_seq2seq[];
