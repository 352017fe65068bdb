/* SPDX-License-Identifier: Apache-2.0 */
/* images.c: encoders of images, and of images beside text. */
#include "weights/families/table/words.h"

/* Reads the grid of patches. The class token comes first, then the registers. */
static void read_grid(const struct layer_source *source,
                      const struct config_section *inside,
                      struct layer_rotation *rotation) {
    const struct config_section *section = source->section;
    size_t image = config_get_count(section, "image_size", 224);
    size_t patch = config_get_count(section, "patch_size", 16);
    (void)inside;

    rotation->grid = image / patch;
    rotation->grid_first = 1 + config_get_index(section, "num_register_tokens");
    if (rotation->grid == 0 || rotation->dims % 4 != 0)
        error_keep(
            section->error, ATTN_E_VALUE,
            "patch_size %zu must be within image_size %zu, and heads of size %zu a "
            "multiple of 4",
            patch, image, rotation->dims);
}

static void name_videomae_biases(const struct layer_source *source, struct layer *layer) {
    (void)source;
    layer->linears[ATTN_QUERY].bias_name = "attention.q_bias";
    layer->linears[ATTN_VALUE].bias_name = "attention.v_bias";
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
/* The names of version 4, which are on disk, and those of version 5. */
#define NAMES_VIT {"attention.query", "attention.key", "attention.value", "output.dense"}
#define VIT_STACK(norm_name, eps, layer_name, linears, ...) { \
    .types = {__VA_ARGS__}, .biases.always = "o", BIASES_IF("qkv", "qkv_bias=true"), \
    LAYER_NORM("layer_norm_eps", eps), .stacks = {STACK(KEYS_COMMON, layer_name, \
        "attention.", norm_name, 12, 768, 12, MASK_NONE, linears)}}
#define VIT(norm_name, eps, new_layer, ...) \
    VIT_STACK(norm_name, eps, "encoder.layer.#.", NAMES_VIT, __VA_ARGS__), \
    VIT_STACK(norm_name, eps, new_layer, NAMES_PROJ("o_proj"), __VA_ARGS__)
/* Vision and text towers; version 5 leaves out the path where there is one tower only. */
#define STACK_TOWER(name, section_name, path, h, w, n, mask_of) \
    {.part = name, .section = section_name, .layer = path "encoder.layers.#.", \
     .module = "self_attn.", .names = NAMES_PROJ("out_proj"), .norm = "layer_norm1", \
     KEYS_COMMON, SIZES(h, w, n), .mask = mask_of}
#define STACK_TEXT(name, section_name, h, w, n, mask_of) \
    STACK_TOWER(name, section_name, "text_model.", h, w, n, mask_of)
#define STACK_VISION(name, section_name, h, w, n) \
    STACK_TOWER(name, section_name, "vision_model.", h, w, n, MASK_NONE)
#define TOWER(eps, ...) \
    .types = {__VA_ARGS__}, BIASED, LAYER_NORM("layer_norm_eps", eps)
/* Text and images; what differs is the mask of the text, and eps. */
#define TWO_TOWERS(eps, h, w, mask_of, ...) { \
    TOWER(eps, __VA_ARGS__), .stacks = {STACK_TEXT("text.", "text_config", h, w, 12, \
        mask_of), STACK_VISION("vision.", "vision_config", 12, 768, 12)}}
#define ONE_TOWER(type_name, eps, path, h, w, mask_of) \
    {TOWER(eps, type_name), .stacks = {STACK_TOWER("", NULL, path, h, w, 12, mask_of)}}, \
    {TOWER(eps, type_name), .stacks = {STACK_TOWER("", NULL, "", h, w, 12, mask_of)}}

const struct family families_images[] = {
    VIT("layernorm_before", 1e-12, "layers.#.", "vit", "deit", "vit_mae", "ijepa",
        "yolos", "audio-spectrogram-transformer"),
    VIT("layernorm_before", 1e-6, "layers.#.", "vit_msn"),
    VIT("norm1", 1e-6, "encoder.layer.#.", "dinov2", "dinov2_with_registers"),
    {   .types = {"dinov3_vit"}, LAYER_NORM("layer_norm_eps", 1e-5),
        .biases.as_stored = "qkvo", .rotation.adjust = read_grid,
        BASE_OF("rope_theta", 100), .stacks = {STACK(KEYS_COMMON, "layer.#.",
        "attention.", "norm1", 6, 384, 12, MASK_NONE, NAMES_PROJ("o_proj"))}},
    {   .types = {"videomae"}, .biases.always = "o", .biases.if_set = "qv",
        .biases.keys = "qkv_bias qv_bias=true", .adjust = name_videomae_biases,
        LAYER_NORM("layer_norm_eps", 1e-12), .stacks = {STACK(KEYS_COMMON,
        "encoder.layer.#.", "attention.", "layernorm_before", 12, 768, 12, MASK_NONE,
        NAMES_VIT)}},
    {   .types = {"aimv2_vision_model"}, RMS(1e-5), BIASES_IF("qkvo", "qkv_bias"),
        .stacks = {STACK(KEYS_COMMON, "encoder.layers.#.", "attention.", "rms_norm1", 8,
        1024, 24, MASK_NONE, NAMES_PROJ("out_proj"))}},
    {   TOWER(1e-5, "blip"), .weights.split = SPLIT_BLOCKS,
        .stacks = {{.part = "vision.", .section = "vision_config",
                    .layer = "vision_model.encoder.layers.#.", .module = "self_attn.",
                    .names = PACKED("qkv", "projection"), .norm = "layer_norm1",
                    KEYS_COMMON, SIZES(12, 768, 12)}}},
    TWO_TOWERS(1e-5, 8, 512, MASK_CAUSAL, "clip", "metaclip_2", "owlv2", "owlvit"),
    TWO_TOWERS(1e-6, 12, 768, MASK_NONE, "siglip", "siglip2"),
    {   TOWER(1e-5, "chinese_clip"),
        .weights.ignored = "output.LayerNorm.weight output.LayerNorm.bias",
        .stacks = {{.part = "text.", .section = "text_config",
                    .layer = "text_model.encoder.layer.#.", .module = "attention.",
                    .names = {"self.query", "self.key", "self.value", "output.dense"},
                    KEYS_COMMON, SIZES(12, 768, 12)},
                   STACK_VISION("vision.", "vision_config", 12, 768, 12)}},
    ONE_TOWER("clip_text_model", 1e-5, "text_model.", 8, 512, MASK_CAUSAL),
    ONE_TOWER("clip_vision_model", 1e-5, "vision_model.", 12, 768, MASK_NONE),
    ONE_TOWER("siglip_text_model", 1e-6, "text_model.", 12, 768, MASK_NONE),
    ONE_TOWER("siglip_vision_model", 1e-6, "vision_model.", 12, 768, MASK_NONE),
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
