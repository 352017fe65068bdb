/* SPDX-License-Identifier: Apache-2.0 */
/* names.c: a table of foreign names. Names of attnd itself are not in it. */
#include "wire/names.h"

#include <stddef.h>
#include <string.h>

#define NO_MATRIX                                                                        \
    "attnd takes no mask matrix and no bias of scores; use causal, window, positions, "  \
    "or valid_lens for padding at the end; /v1/attention/dot-product takes a bias"
#define NO_HOLES                                                                         \
    "attnd takes no mask with holes; use valid_lens, how many keys of each sequence "    \
    "are valid, from the first on"
#define OF_MODEL                                                                         \
    "it belongs to the model; leave it out, or send queries and keys of your own to "    \
    "/v1/attention/dot-product"
#define TO_BIAS                                                                          \
    "use bias, which is added to the scores: 0 where a query attends to a key, and "     \
    "null (-inf in safetensors) where it does not"

#define NAMES_MAX 8

struct remedy {
    const char *remedy;
    const char *names[NAMES_MAX]; /* the last may be followed by NULL */
};

/* Of requests without a model; NULL ends it, and `remedies` has the others. */
static const struct remedy given_remedies[] = {
    {TO_BIAS,
     {"attn_mask", "mask", "src_mask", "attn_bias", "position_bias", "score_mod",
      "block_mask"}},
    {"use scale", {"softmax_scale", "scaling", "sm_scale"}},
    {"use softcap", {"logits_soft_cap", "logit_cap", "attn_logit_softcapping"}},
    {"use slopes", {"alibi_slopes"}},
    {"use sinks", {"s_aux", "sink"}},
    {"use num_heads", {"n_heads", "n_head", "nhead", "head_num", "num_attention_heads"}},
    {"use num_kv_heads, or send keys with fewer heads than queries",
     {"num_key_value_heads", "enable_gqa"}},
    {"list weights in need",
     {"need_weights", "output_attentions", "return_weights", "return_attention",
      "return_attention_scores", "return_attention_weights"}},
    {"there is no model, so leave it out", {"model"}},
    {"leave it out: heads that are not wanted can be left out of weights_heads",
     {"head_mask", "layer_head_mask"}},
    {NULL, {NULL}}};

static const struct remedy remedies[] = {
    {"use causal", {"is_causal", "causal_mask", "use_causal_mask", "is_decoder"}},
    {NO_MATRIX,
     {"attn_mask", "mask", "src_mask", "attn_bias", "bias", "position_bias", "score_mod",
      "block_mask"}},
    {NO_HOLES,
     {"attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask",
      "encoder_attention_mask", "memory_key_padding_mask", "pad_mask", "key_mask"}},
    {"use valid_lens",
     {"valid_len", "valid_lengths", "lengths", "lens", "seq_lens", "seqlens",
      "sequence_lengths", "actual_seq_lengths"}},
    {"use queries",
     {"query", "q", "x", "input", "hidden_states", "inputs_embeds", "embeddings",
      "tokens"}},
    {"use keys",
     {"key", "k", "memory", "context", "encoder_hidden_states", "key_states",
      "key_value_states"}},
    {"use values", {"value", "v", "value_states"}},
    {"use positions",
     {"position_ids", "position", "query_positions", "cache_position", "input_pos"}},
    {"use key_positions", {"key_position_ids", "key_position"}},
    {"use window",
     {"window_size", "sliding_window", "local_window_size", "attention_window"}},
    {"use need_weights",
     {"output_attentions", "return_weights", "return_attention",
      "return_attention_scores", "return_attention_weights"}},
    {"use need_weights, which may be \"mean\"", {"average_attn_weights"}},
    {"use head_mask", {"layer_head_mask", "heads_mask", "head_masks"}},
    {"use weights_heads", {"heads", "head", "head_indices"}},
    {OF_MODEL,
     {"num_heads", "n_heads", "n_head", "nhead", "head_num", "num_attention_heads",
      "num_kv_heads", "num_key_value_heads"}},
    {OF_MODEL,
     {"scale", "softmax_scale", "scaling", "softcap", "logits_soft_cap", "alibi_slopes",
      "sinks", "enable_gqa"}},
    {"dropout is the identity here; leave it out",
     {"dropout", "dropout_p", "attention_dropout", "training"}},
    {NULL, {NULL}}};

/* Returns NULL when the table has no such name. */
static const char *find_remedy(const struct remedy *table, const char *name) {
    for (; table->remedy != NULL; table++) {
        for (size_t j = 0; j < NAMES_MAX && table->names[j] != NULL; j++) {
            if (strcmp(table->names[j], name) == 0)
                return table->remedy;
        }
    }
    return NULL;
}

const char *wire_name_remedy(const char *name, bool given) {
    const char *remedy = given ? find_remedy(given_remedies, name) : NULL;
    return remedy != NULL ? remedy : find_remedy(remedies, name);
}
