/* SPDX-License-Identifier: Apache-2.0 */
/* images.c: encoders of images, and of images beside text. */
#include "weights/families/table/words.h"

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
/* The names of version 4, which are on disk, and those of version 5. */
#define VIT_STACK(name, norm_name, eps, layer_name, ...) { \
    .type = name, .biases.always = "o", .biases.if_set = "qkv", \
    .biases.keys = "qkv_bias", \
    .biases.otherwise = true, LAYER_NORM("layer_norm_eps", eps), \
    .stacks = {{.part = "", .layer = layer_name, .module = "attention.", \
                .names = __VA_ARGS__, .norm = norm_name, KEYS_COMMON, \
                SIZES(12, 768, 12)}}}
#define VIT(name, norm_name, eps, new_layer) \
    VIT_STACK(name, norm_name, eps, "encoder.layer.#.", \
              {"attention.query", "attention.key", "attention.value", "output.dense"}), \
    VIT_STACK(name, norm_name, eps, new_layer, NAMES_PROJ("o_proj"))
/* Vision and text towers; version 5 leaves out the path where there is one tower only. */
#define STACK_TOWER(name, section_name, path, h, w, n, mask_of) \
    {.part = name, .section = section_name, .layer = path "encoder.layers.#.", \
     .module = "self_attn.", .names = NAMES_PROJ("out_proj"), .norm = "layer_norm1", \
     KEYS_COMMON, SIZES(h, w, n), .mask = mask_of}
#define STACK_TEXT(name, section_name, h, w, n, mask_of) \
    STACK_TOWER(name, section_name, "text_model.", h, w, n, mask_of)
#define STACK_VISION(name, section_name, h, w, n) \
    STACK_TOWER(name, section_name, "vision_model.", h, w, n, MASK_NONE)
#define TOWER(type_name, eps) \
    .type = type_name, .biases.always = "qkvo", LAYER_NORM("layer_norm_eps", eps)
#define ONE_TOWER(type_name, eps, path, h, w, mask_of) \
    {TOWER(type_name, eps), .stacks = {STACK_TOWER("", NULL, path, h, w, 12, mask_of)}}, \
    {TOWER(type_name, eps), .stacks = {STACK_TOWER("", NULL, "", h, w, 12, mask_of)}}

static const struct family families[] = {
    VIT("vit", "layernorm_before", 1e-12, "layers.#."),
    VIT("deit", "layernorm_before", 1e-12, "layers.#."),
    VIT("vit_mae", "layernorm_before", 1e-12, "layers.#."),
    VIT("audio-spectrogram-transformer", "layernorm_before", 1e-12, "layers.#."),
    VIT("dinov2", "norm1", 1e-6, "encoder.layer.#."),
    {   TOWER("clip", 1e-5),
        .stacks = {STACK_TEXT("text.", "text_config", 8, 512, 12, MASK_CAUSAL),
                   STACK_VISION("vision.", "vision_config", 12, 768, 12)}},
    {   TOWER("siglip", 1e-6),
        .stacks = {STACK_TEXT("text.", "text_config", 12, 768, 12, MASK_NONE),
                   STACK_VISION("vision.", "vision_config", 12, 768, 12)}},
    ONE_TOWER("clip_text_model", 1e-5, "text_model.", 8, 512, MASK_CAUSAL),
    ONE_TOWER("clip_vision_model", 1e-5, "vision_model.", 12, 768, MASK_NONE),
    ONE_TOWER("siglip_text_model", 1e-6, "text_model.", 12, 768, MASK_NONE),
    ONE_TOWER("siglip_vision_model", 1e-6, "vision_model.", 12, 768, MASK_NONE),
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */

const struct family_list families_images = {families,
                                            sizeof families / sizeof families[0]};
