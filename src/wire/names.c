/* SPDX-License-Identifier: Apache-2.0 */
/* names.c: a table of foreign names, and of attnd's own in other letters. */
#include "wire/names.h"

#include "base/nearest.h"

#include <stddef.h>
#include <string.h>

#define NO_MATRIX                                                                        \
    "a model takes no mask matrix; use causal, window, positions, or valid_lens for "    \
    "padding at the end, or send queries and keys of your own with a bias to "           \
    "/v1/attention/dot-product"
#define NO_HOLES                                                                         \
    "a model takes no mask with holes; use valid_lens, how many keys of each sequence "  \
    "are valid, from the first on, or send queries and keys of your own with a bias "    \
    "to /v1/attention/dot-product"
#define OF_MODEL                                                                         \
    "it belongs to the model; leave it out, or send queries and keys of your own to "    \
    "/v1/attention/dot-product"
#define TO_BIAS                                                                          \
    "use bias, which is added to the scores: 0 where a query sees a key, null (-inf "    \
    "in safetensors) where it does not; one of [B][1][1][Tk] masks keys"

#define NAMES_MAX 10

struct remedy {
    const char *remedy;
    const char *names[NAMES_MAX]; /* the last may be followed by NULL */
};

/* Of requests without a model; NULL ends it, and `remedies` has the others. */
static const struct remedy given_remedies[] = {
    {TO_BIAS,
     {"attn_mask", "mask", "src_mask", "attn_bias", "position_bias", "score_mod",
      "block_mask"}},
    {TO_BIAS,
     {"attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask",
      "encoder_attention_mask", "memory_key_padding_mask", "pad_mask", "key_mask"}},
    {"use bias", {"bias"}},
    {"use scale", {"scale", "softmax_scale", "scaling", "sm_scale"}},
    {"use softcap",
     {"softcap", "logits_soft_cap", "logit_cap", "attn_logit_softcapping"}},
    {"use slopes", {"slopes", "alibi_slopes"}},
    {"use sinks", {"sinks", "s_aux", "sink"}},
    {"use num_heads",
     {"num_heads", "n_heads", "n_head", "head_num", "num_attention_heads"}},
    {"use num_kv_heads", {"num_kv_heads"}},
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
    {"use causal",
     {"causal", "is_causal", "causal_mask", "use_causal_mask", "is_decoder"}},
    {NO_MATRIX,
     {"attn_mask", "mask", "src_mask", "attn_bias", "bias", "position_bias", "score_mod",
      "block_mask"}},
    {NO_HOLES,
     {"attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask",
      "encoder_attention_mask", "memory_key_padding_mask", "pad_mask", "key_mask"}},
    {"use valid_lens",
     {"valid_lens", "valid_len", "valid_lengths", "lengths", "lens", "seq_lens",
      "seqlens", "sequence_lengths", "actual_seq_lengths"}},
    {"use queries",
     {"queries", "query", "q", "x", "input", "inputs", "hidden_states", "inputs_embeds",
      "embeddings", "tokens"}},
    {"use keys",
     {"keys", "key", "k", "memory", "context", "encoder_hidden_states", "key_states",
      "key_value_states"}},
    {"use values", {"values", "value", "v", "value_states"}},
    {"use positions",
     {"positions", "position_ids", "position", "query_positions", "cache_position",
      "input_pos"}},
    {"use key_positions", {"key_positions", "key_position_ids", "key_position"}},
    {"use window",
     {"window", "window_size", "sliding_window", "local_window_size",
      "attention_window"}},
    {"use need_weights",
     {"need_weights", "output_attentions", "return_weights", "return_attention",
      "return_attention_scores", "return_attention_weights"}},
    {"use need_weights, which may be \"mean\"", {"average_attn_weights"}},
    {"use head_mask", {"head_mask", "layer_head_mask", "heads_mask", "head_masks"}},
    {"use weights_heads", {"weights_heads", "heads", "head", "head_indices"}},
    {OF_MODEL,
     {"num_heads", "n_heads", "n_head", "head_num", "num_attention_heads", "num_kv_heads",
      "num_key_value_heads"}},
    {OF_MODEL,
     {"scale", "softmax_scale", "scaling", "softcap", "logits_soft_cap", "alibi_slopes",
      "sinks", "enable_gqa"}},
    {"use weights_queries", {"weights_queries", "query_indices"}},
    {"use timeout_ms", {"timeout_ms"}},
    {"use model", {"model", "model_name"}},
    {"sizes are those of the rows and of the model; leave it out",
     {"embed_dim", "d_model", "hidden_size", "kdim", "vdim", "head_dim"}},
    {"sequences are the first axis; leave it out", {"batch_first"}},
    {"attnd keeps no cache between requests; send all keys and values",
     {"past_key_values", "past_key_value", "layer_past", "use_cache", "kv_cache"}},
    {"numbers are as datatype says; leave it out", {"content_type"}},
    {"each request stands alone; leave it out",
     {"sequence_id", "sequence_start", "sequence_end"}},
    {"results are float32; leave it out", {"dtype", "torch_dtype"}},
    {"add such a key to keys and values, or leave it out",
     {"add_zero_attn", "add_bias_kv"}},
    {"dropout is the identity here; leave it out",
     {"dropout", "dropout_p", "attention_dropout", "training"}},
    {NULL, {NULL}}};

/* Returns NULL when the table has no such name, or has it as attnd's own. */
static const char *find_remedy(const struct remedy *table, const char *name) {
    for (; table->remedy != NULL; table++) {
        const char *own = strncmp(table->remedy, "use ", 4) == 0 ? table->remedy + 4 : "";
        for (size_t j = 0; j < NAMES_MAX && table->names[j] != NULL; j++) {
            if (nearest_takes(table->names[j], name, 0) && strcmp(own, name) != 0)
                return table->remedy;
        }
    }
    return NULL;
}

const char *wire_name_remedy(const char *name, bool given) {
    const char *remedy = given ? find_remedy(given_remedies, name) : NULL;
    return remedy != NULL ? remedy : find_remedy(remedies, name);
}
