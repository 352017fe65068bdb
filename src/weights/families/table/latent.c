/* SPDX-License-Identifier: Apache-2.0 */
/* latent.c: decoders whose keys and values differ in size, most with latent attention. */
#include "weights/families/table/words.h"
#include "weights/layer/frequencies.h"

/* Reads the sizes of latent attention, where each query head has a key head. */
static void read_latent_sizes(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;
    const struct latent_sizes *absent = &source->family->sizes.latent;
    const char *shared_keys = source->family->rotation.dims_keys;
    attn_model_info *info = &layer->info;
    size_t width =
        config_get_count(section, "hidden_size", source->family->stacks[0].width);
    size_t value = absent->value > 0 ? absent->value : width / info->num_heads;

    info->width.score = config_get_count(section, "qk_nope_head_dim", absent->plain);
    if (!config_is_null(section, "q_lora_rank"))
        info->latent.query = config_get_count(section, "q_lora_rank", absent->query);
    size_t shared =
        config_get_count(section, shared_keys, config_default(shared_keys, 0));
    info->latent.shared = shared;
    info->latent.key = config_get_count(section, "kv_lora_rank", absent->key) + shared;
    info->width.head = config_get_count(section, "v_head_dim", value);
    info->width.score += shared;
    if (shared % 2 != 0)
        error_keep(section->error, ATTN_E_VALUE,
                   "qk_rope_head_dim is %zu, but rotated numbers come in pairs", shared);
    if (info->num_kv_heads != info->num_heads)
        error_keep(section->error, ATTN_E_VALUE,
                   "num_key_value_heads is %zu, but with latent attention it must be the "
                   "number of heads, %zu",
                   info->num_kv_heads, info->num_heads);
}

/* Layers with a window have twice as many key heads. */
static void read_mimo_sizes(const struct layer_source *source, struct layer *layer) {
    layer->info.num_kv_heads *= layer->info.mask.window > 0 ? 2 : 1;
    layer->info.width.head = config_get_count(source->section, "v_head_dim=128", 0);
}

/* Another key counts the keys before the query's own. */
static size_t read_mimo_window(const struct layer_source *layer) {
    size_t earlier = config_get_count(layer->section, "sliding_window_size", 0);
    return earlier > 0 ? earlier + 1 : layer->window;
}

static bool mimo_slides(const struct layer_source *layer) {
    return layer->index > 0 && kind_slides_in_period(layer);
}

/* Only layers with a window have sinks. */
static void adjust_mimo(const struct layer_source *source, struct layer *layer) {
    const char *factor = "attention_value_scale";

    if (layer->info.mask.window == 0)
        layer->sinks_name = NULL;
    if (!config_is_null(source->section, factor))
        layer->value_factor = config_get_number(source->section, factor, 0.707);
}

static void scale_by_yarn(const struct layer_source *source, struct layer *layer) {
    (void)source;
    layer->info.score.scale *= rotation_score_factor(&layer->rotation);
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
#define LATENT(type_name, h, w, n, eps, shared_keys, ...) \
    .types = {type_name}, .weights.split = SPLIT_LATENT, \
    .stacks = {{.part = "", .layer = "layers.#.", .module = "self_attn.", KEYS_COMMON, \
                .names = PACKED("kv_a_proj_with_mqa", "o_proj"), SIZES(h, w, n), \
                .norm = "input_layernorm", .mask = MASK_CAUSAL, \
                .more_keys = "num_nextn_predict_layers,num_mtp_layers"}}, \
    .biases.if_set = "oQK", .biases.keys = "attention_bias", \
    .sizes.kv_keys = "num_key_value_heads", .sizes.latent = {__VA_ARGS__}, \
    .sizes.adjust = read_latent_sizes, RMS(eps), ROTATION, \
    .rotation.dims_keys = shared_keys, .adjust = scale_by_yarn
#define SHARED "qk_rope_head_dim=64"
#define HALVES .rotation.interleaved = "rope_interleave=true"

static const struct layer_rotation mistral4_rotation = {
    .type = ROTATION_YARN, .base = 1e4, .factor = 128, .beta_fast = 32, .beta_slow = 1,
    .truncate = true, .mscale = 1, .mscale_all_dim = 1,
    .original_positions = 8192, .query_beta = 0.1};

const struct family families_latent[] = {
    {   LATENT("deepseek_v2", 32, 4096, 32, 1e-6, SHARED, 1536, 512, 128, 128),
        NEIGHBOURS},
    {   LATENT("deepseek_v3", 128, 7168, 61, 1e-6, SHARED, 1536, 512, 128, 128), HALVES},
    {   LATENT("glm4_moe_lite", 20, 2048, 47, 1e-5, "qk_rope_head_dim,head_dim=64", 768,
        512, 192, 256), HALVES},
    {   LATENT("youtu", 16, 2048, 32, 1e-6, SHARED, 1536, 512, 128, 128), HALVES},
    {   LATENT("minicpm3", 40, 2560, 62, 1e-5, "qk_rope_head_dim=32", 768, 256, 64, 0)},
    {   LATENT("mistral4", 32, 4096, 36, 1e-6, SHARED, 1024, 256, 64, 128), HALVES,
        .rotation.unset = &mistral4_rotation, .rotation.query_beta = true},
    {   LLAMA("mimo_v2_flash", 64, 4096, 48, 4, 192), .ignored = "attention_chunk_size",
        BIASES_IF("qkv", "attention_bias"), .sizes.adjust = read_mimo_sizes, RMS(1e-5),
        BASE(5e6), LOCAL_BASE("swa_rope_theta", 10000), PART(0.334),
        .windows.slides = mimo_slides, .windows.keys = "sliding_window=129",
        .windows.length = read_mimo_window, .windows.period_keys = "=6",
        .scores.sinks = "attention_sink_bias", .adjust = adjust_mimo},
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
