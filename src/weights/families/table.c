/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: finds entries of the table, and says why some families have none. */
#include "weights/families/table/words.h"

#include <string.h>

const struct family *family_get(size_t index) {
    static const struct family_list *const lists[] = {
        &families_gpt,  &families_llama,  &families_hybrid, &families_latent,
        &families_bert, &families_images, &families_seq2seq};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (index < lists[i]->count)
            return &lists[i]->items[index];
        index -= lists[i]->count;
    }
    return NULL;
}

/* Their texts have the families of table/, which other words of their own can name. */
static const struct family_text texts[] = {
    {"aya_vision", "text_config", "language_model.", "cohere2", false},
    {"gemma3", "text_config", "language_model.", "gemma3_text", false},
    {"gemma4", "text_config", "language_model.", "gemma4_text", false},
    {"idefics3", "text_config", "text_model.", "llama", false},
    {"internvl", "text_config", "language_model.", "qwen2", false},
    {"lfm2_vl", "text_config", "language_model.", "lfm2", false},
    {"llava", "text_config", "language_model.", "llama", false},
    {"llava_onevision", "text_config", "language_model.", "qwen2", false},
    {"mistral3", "text_config", "language_model.", "mistral", false},
    {"paligemma", "text_config", "language_model.", "gemma", true},
    {"qwen2_audio", "text_config", "language_model.", "qwen2", false},
    {"qwen3_5", "text_config", "language_model.", "qwen3_5_text", false},
    {"qwen3_5_moe", "text_config", "language_model.", "qwen3_5_moe_text", false},
    {"smolvlm", "text_config", "text_model.", "llama", false},
    {"voxtral", "text_config", "language_model.", "llama", false},
};

const struct family_text *family_find_text(const char *type) {
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(texts[i].type, type) == 0)
            return &texts[i];
    }
    return NULL;
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
    {"deberta deberta-v2", "its scores have terms of content by position"},
    {"longformer big_bird bigbird_pegasus reformer longt5",
     "its attention is sparse in a way of its own"},
    {"swin swinv2 beit", "its attention has windows or biases in two dimensions"},
    {"wavlm", "its attention has a gated bias"},
    {"llama4 llama4_text", "its attention has norms, scales or masks of its own"},
    {"xlnet transfo-xl", "its attention shifts relative positions"},
};

const char *family_refusal(const char *type) {
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        if (family_list_has(refusals[i].types, type))
            return refusals[i].reason;
    }
    return NULL;
}
