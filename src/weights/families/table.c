/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: finds entries of the table, and says why some families have none. */
#include "weights/families/table/words.h"

#include <string.h>

const struct family *family_get(size_t index) {
    static const struct family *const lists[] = {
        families_gpt,    families_llama, families_gemma,  families_hybrid,
        families_latent, families_bert,  families_images, families_seq2seq};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (const struct family *family = lists[i]; family->types[0] != NULL; family++) {
            if (index-- == 0)
                return family;
        }
    }
    return NULL;
}

const char *family_find_type(const struct family *family, const json_t *config,
                             const char *type) {
    const char *const *types = family->types;

    /* Karpathy's files have the names of GPT-2, and its type or none */
    if (strcmp(types[0], "nanogpt") == 0 &&
        (type == NULL ? json_object_get(config, "block_size") != NULL
                      : strcmp(type, "gpt2") == 0))
        return types[0];
    while (type != NULL && *types != NULL && strcmp(*types, type) != 0)
        types++;
    return type != NULL ? *types : NULL;
}

/* Their texts have the families of table/, which other words of their own can name. */
static const struct family_text texts[] = {
    {"aya_vision", "language_model.", "cohere2", false, NULL},
    {"embedding_gemma2", "language_model.", "embedding_gemma2_text", false, NULL},
    /* its masks are causal, with a window of its own, where its text has none */
    {"gemma3", "language_model.", "gemma3_text", false,
     "use_bidirectional_attention=false"},
    {"gemma3n", "language_model.", "gemma3n_text", false, NULL},
    {"gemma4", "language_model.", "gemma4_text", false, NULL},
    {"glm4v", NULL, "glm4v_text", false, NULL},
    {"glm4v_moe", NULL, "glm4v_moe_text", false, NULL},
    {"idefics3", "text_model.", "llama", false, NULL},
    {"internvl", "language_model.", "qwen2", false, NULL},
    {"lfm2_vl", "language_model.", "lfm2", false, NULL},
    {"llama4", "language_model.", "llama4_text", false, NULL},
    {"llava", "language_model.", "llama", false, NULL},
    {"llava_onevision", "language_model.", "qwen2", false, NULL},
    {"mistral3", "language_model.", "mistral", false, NULL},
    {"mllama", "language_model.", "mllama_text_model", false, NULL},
    {"paligemma", "language_model.", "gemma", true, NULL},
    {"phi4_multimodal", NULL, "phi4_multimodal_text", false, NULL},
    {"qwen2_5_vl", NULL, "qwen2_5_vl_text", false, NULL},
    {"qwen2_audio", "language_model.", "qwen2", false, NULL},
    {"qwen2_vl", NULL, "qwen2_vl_text", false, NULL},
    {"qwen3_5", "language_model.", "qwen3_5_text", false, NULL},
    {"qwen3_5_moe", "language_model.", "qwen3_5_moe_text", false, NULL},
    {"qwen3_vl", NULL, "qwen3_vl_text", false, NULL},
    {"qwen3_vl_moe", NULL, "qwen3_vl_moe_text", false, NULL},
    {"smolvlm", "text_model.", "llama", false, NULL},
    {"voxtral", "language_model.", "voxtral_text", false, NULL},
};

const struct family_text *family_find_text(const char *type) {
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(texts[i].type, type) == 0)
            return &texts[i];
    }
    return NULL;
}

/* Families whose attention needs something else; '*' stands for any ending. Types that
 * the table has are never looked up here, only their siblings. */
static const struct {
    const char *types, *anchor, *reason;
} refusals[] = {
    {"deepseek_v32* deepseek_v4* glm_moe_dsa* glm5_next*", "sparse-attention",
     "an indexer chooses the keys of each query (sparse attention)"},
    {"deepseek* kimi_k2* kimi_vl* glm4_moe_lite* youtu* mistral4* longcat*",
     "latent-attention",
     "its keys and values are of low rank (multi-head latent attention) in a way of its "
     "own"},
    {"qwen3_next* qwen3_5* kimi_linear* minimax* olmo_hybrid* afmoe* laguna*", "gates",
     "its attention has gates, or layers of linear attention, of its own"},
    {"mamba* falcon_mamba* falcon_h1* rwkv* retnet* xlstm* recurrent_gemma* jamba* "
     "bamba* zamba* nemotron_h* granitemoehybrid* lfm2*",
     "state-space", "its layers, or some of them, are not attention"},
    {"qwen2_vl* qwen2_5_vl* qwen2_5_omni* qwen3_vl* qwen3_omni* glm4v* ernie4_5_vl*",
     "three-axes", "its rotary positions have three axes, in an order of its own"},
    {"deberta*", "content-by-position",
     "its scores have terms of content by position in a way of its own"},
    {"longformer led big_bird* bigbird_pegasus reformer longt5 nystromformer yoso mra",
     "sparse-attention", "its attention is sparse in a way of its own"},
    {"swin* beit* data2vec-vision donut* levit* hiera* dinov3* sam*", "two-dimensions",
     "its attention has windows, biases or rotations in two dimensions"},
    {"wavlm*", "gated-bias", "its attention has a gated bias"},
    {"xlnet transfo-xl wav2vec2-conformer", "relative-positions",
     "its attention shifts relative positions"},
    {"t5gemma2*", "own-attention",
     "one softmax of its decoder goes over its own keys and those of the encoder"},
    {"gemma3n* llama4* mimo*", "own-attention",
     "its attention has norms, scales or masks of its own"},
    {"chatglm baichuan* internlm* qwen phi3small phi-msft jais xverse grok*", "own-code",
     "it comes with code of its own, which transformers does not have"},
};

/* Returns whether one of the patterns, which are separated by spaces, fits. */
static bool has_pattern(const char *patterns, const char *type) {
    while (*patterns != '\0') {
        size_t size = strcspn(patterns, " *");
        bool any = patterns[size] == '*';
        if (strncmp(patterns, type, size) == 0 && (any || type[size] == '\0'))
            return true;
        patterns += size + strspn(patterns + size, " *");
    }
    return false;
}

const char *family_refusal(const char *type, const char **ret_anchor) {
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        *ret_anchor = refusals[i].anchor;
        if (has_pattern(refusals[i].types, type))
            return refusals[i].reason;
    }
    return NULL;
}
