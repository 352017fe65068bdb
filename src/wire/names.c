/* SPDX-License-Identifier: Apache-2.0 */
/* names.c: a table of foreign names. Names of attnd itself are not in it. */
#include "wire/names.h"

#include <stddef.h>
#include <string.h>

#define NO_MATRIX                                                                        \
    "attnd takes no mask matrix and no bias of scores; use causal, window, positions, "  \
    "or valid_lens for padding at the end"
#define NO_HOLES                                                                         \
    "attnd takes no mask with holes; use valid_lens, how many keys of each sequence "    \
    "are valid, from the first on"
#define OF_MODEL "it belongs to the model; leave it out"

#define NAMES_MAX 8

static const struct {
    const char *remedy;
    const char *names[NAMES_MAX]; /* the last may be followed by NULL */
} remedies[] = {
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
};

const char *wire_name_remedy(const char *name) {
    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++) {
        for (size_t j = 0; j < NAMES_MAX && remedies[i].names[j] != NULL; j++) {
            if (strcmp(remedies[i].names[j], name) == 0)
                return remedies[i].remedy;
        }
    }
    return NULL;
}
