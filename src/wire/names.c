/* SPDX-License-Identifier: Apache-2.0 */
/* names.c: a table of foreign names, and of attnd's own in other letters. */
#include "wire/names.h"

#include "base/nearest.h"

#include <stddef.h>
#include <string.h>

#define OF_MODEL                                                                         \
    "it belongs to the model; leave it out, or send queries and keys of your own to "    \
    "/v1/attention/dot-product"
#define TO_MASK                                                                          \
    "use attn_mask: booleans, true where a query sees a key, or numbers that are added " \
    "to the scores; [Tk], [Tq][Tk], up to [B][H][Tq][Tk], where 1 stands for all"
#define TO_PADDING                                                                       \
    "use attn_mask, of shape [B][1][1][Tk], or [Tk] without a batch: true where a key "  \
    "is seen, false where it is padding"
#define TO_REVERSE TO_PADDING ", the reverse of key_padding_mask of torch"

#define NAMES_MAX 10

static const struct {
    const char *remedy;
    const char *names[NAMES_MAX]; /* the last may be followed by NULL */
    const char *given; /* the remedy in a request without a model; NULL: the same */
} remedies[] = {
    {"use causal",
     {"causal", "is_causal", "causal_mask", "use_causal_mask", "is_decoder"},
     NULL},
    {TO_MASK, {"attn_mask", "mask", "src_mask", "score_mod", "block_mask"}, NULL},
    {"use bias, which is added to the scores",
     {"bias", "attn_bias", "position_bias"},
     NULL},
    {TO_PADDING,
     {"attention_mask", "encoder_attention_mask", "padding_mask", "pad_mask", "key_mask"},
     NULL},
    {TO_REVERSE,
     {"key_padding_mask", "src_key_padding_mask", "memory_key_padding_mask"},
     NULL},
    {"use valid_lens",
     {"valid_lens", "valid_len", "valid_lengths", "lengths", "lens", "seq_lens",
      "seqlens", "sequence_lengths", "actual_seq_lengths"},
     NULL},
    {"use queries",
     {"queries", "query", "q", "x", "input", "inputs", "hidden_states", "inputs_embeds",
      "embeddings", "tokens"},
     NULL},
    {"use keys",
     {"keys", "key", "k", "memory", "context", "encoder_hidden_states", "key_states",
      "key_value_states"},
     NULL},
    {"use values", {"values", "value", "v", "value_states"}, NULL},
    {"use positions",
     {"positions", "position_ids", "position", "query_positions", "cache_position",
      "input_pos"},
     NULL},
    {"use key_positions", {"key_positions", "key_position_ids", "key_position"}, NULL},
    {"use window",
     {"window", "window_size", "sliding_window", "local_window_size", "attention_window"},
     NULL},
    {"use need_weights",
     {"need_weights", "output_attentions", "return_weights", "return_attention",
      "return_attention_scores", "return_attention_weights"},
     "list weights in need"},
    {"use need_weights, which may be \"mean\"", {"average_attn_weights"}, NULL},
    {"use head_mask",
     {"head_mask", "layer_head_mask", "heads_mask", "head_masks"},
     "leave it out: heads that are not wanted can be left out of weights_heads"},
    {"use weights_heads", {"weights_heads", "heads", "head", "head_indices"}, NULL},
    {OF_MODEL,
     {"num_heads", "n_heads", "n_head", "head_num", "num_attention_heads"},
     "use num_heads"},
    {OF_MODEL, {"num_kv_heads"}, "use num_kv_heads"},
    {OF_MODEL,
     {"num_key_value_heads", "enable_gqa"},
     "use num_kv_heads, or send keys with fewer heads than queries"},
    {OF_MODEL, {"scale", "softmax_scale", "scaling", "sm_scale"}, "use scale"},
    {OF_MODEL,
     {"softcap", "logits_soft_cap", "logit_cap", "attn_logit_softcapping"},
     "use softcap"},
    {OF_MODEL, {"slopes", "alibi_slopes"}, "use slopes"},
    {OF_MODEL, {"sinks", "s_aux", "sink"}, "use sinks"},
    {"use weights_queries", {"weights_queries", "query_indices"}, NULL},
    {"use timeout_ms", {"timeout_ms"}, NULL},
    {"use model", {"model", "model_name"}, "there is no model, so leave it out"},
    {"sizes are those of the rows and of the model; leave it out",
     {"embed_dim", "d_model", "hidden_size", "kdim", "vdim", "head_dim"},
     NULL},
    {"sequences are the first axis; leave it out", {"batch_first"}, NULL},
    {"attnd keeps no cache between requests; send all keys and values",
     {"past_key_values", "past_key_value", "layer_past", "use_cache", "kv_cache"},
     NULL},
    {"each request stands alone; leave it out",
     {"sequence_id", "sequence_start", "sequence_end"},
     NULL},
    {"results are float32; leave it out", {"dtype", "torch_dtype"}, NULL},
    {"add such a key to keys and values, or leave it out",
     {"add_zero_attn", "add_bias_kv"},
     NULL},
    {"dropout is the identity here; leave it out",
     {"dropout", "dropout_p", "attention_dropout", "training"},
     NULL},
};

const char *wire_name_remedy(const char *name, bool given) {
    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++) {
        const char *remedy = remedies[i].remedy;
        if (given && remedies[i].given != NULL)
            remedy = remedies[i].given;
        const char *own = strncmp(remedy, "use ", 4) == 0 ? remedy + 4 : "";
        for (size_t j = 0; j < NAMES_MAX && remedies[i].names[j] != NULL; j++) {
            if (nearest_takes(remedies[i].names[j], name, 0) && strcmp(own, name) != 0)
                return remedy;
        }
    }
    return NULL;
}
