/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c: decoders with the names of Llama. */
#include "weights/families/table/words.h"

#include <math.h>
#include <string.h>

/* Layers from max_window_layers on. */
static bool slides_from(const struct layer_source *layer) {
    size_t from = config_get_index(layer->section, layer->family->windows.from_keys);
    return layer->window > 0 && layer->index >= from;
}

/* Even layers before max_window_layers. */
static bool slides_before(const struct layer_source *layer) {
    return layer->window > 0 && !slides_from(layer) && layer->index % 2 == 0;
}

static bool has_window(const struct layer_source *layer) {
    return layer->window > 0;
}

/* A null window means full layers only. */
static bool exaone_slides(const struct layer_source *layer) {
    return layer->window > 0 && kind_slides_in_period(layer);
}

static bool exaone_rotates(const struct layer_source *layer) {
    return layer->window > 0 ||
           config_get_count(layer->section, layer->family->windows.keys, 0) == 0;
}

/* Returns whether a list has 1 for the layer; without a list, every period-th has 0. */
static bool is_rotated_by_list(const struct layer_source *layer) {
    const json_t *list = config_find(layer->section, "no_rope_layers", NULL);
    const json_t *item = json_array_get(list, layer->index);
    bool empty = json_is_array(list) && json_array_size(list) == 0;

    if (list == NULL || json_is_null(list) || empty) {
        size_t period = config_get_count(layer->section, "no_rope_layer_interval", 4);
        return (layer->index + 1) % period != 0;
    }
    if (!json_is_integer(item) || json_integer_value(item) < 0 ||
        json_integer_value(item) > 1)
        error_keep(layer->section->error, ATTN_E_VALUE,
                   "no_rope_layers must be a list of 0 or 1 for each of %zu layers",
                   layer->num_layers);
    return json_integer_value(item) == 1;
}

/* Layers that do not rotate. */
static bool smollm_slides(const struct layer_source *layer) {
    return config_get_bool(layer->section, "use_sliding_window") && layer->window > 0 &&
           !is_rotated_by_list(layer);
}

/* A base of null means no rotation. */
static bool olmo_rotates(const struct layer_source *layer) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const struct config_section *section = layer->section;
    const json_t *base = config_find(section, "rope_theta", NULL);
    bool found = false;

    for (size_t i = 0; i < 2 && !found; i++) {
        const json_t *object = config_find(section, names[i], NULL);
        const json_t *inside = json_object_get(object, "rope_theta");
        found = json_object_size(object) > 0;
        base = inside != NULL ? inside : base;
        if (json_object_get(object, "full_attention") != NULL ||
            json_object_get(object, "sliding_attention") != NULL)
            error_keep(section->error, ATTN_E_UNSUPPORTED,
                       "rotary parameters by type of layer make this family's class "
                       "rotate nothing; give rope_theta directly in rope_parameters");
    }
    return !json_is_null(base);
}

/* Norms queries and keys after the rotation, without weight. */
static void add_bare_norms(const struct layer_source *source, struct layer *layer) {
    config_find(source->section, "qk_norm", NULL);
    config_find(source->section, "use_qk_norm", NULL);
    layer->query_norm = layer->key_norm = (struct layer_norm){.bare = true};
    layer->info.head_norm.kind = ATTN_NORM_RMS;
    layer->info.head_norm.eps = layer->info.pre_norm.eps;
    layer->info.head_norm.last = true;
}

/* Reads the chunk of keys, which layers have as layer_types says, or those that rotate. A
 * size of null is none. */
static void read_chunk(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;
    size_t chunk = config_get_count(section, "attention_chunk_size=8192", 0);
    bool chunked = layer->rotation.dims > 0;
    bool listed = kind_is_listed(source, "chunked_attention", &chunked);

    if (!chunked)
        return;
    layer->info.mask.chunk = chunk;
    layer->info.mask.causal = true; /* whatever is_causal says */
    if (chunk == 0 && listed)
        error_keep(section->error, ATTN_E_VALUE,
                   "layer %zu has chunked attention, but attention_chunk_size is not set",
                   source->index);
}

/* Layers that rotate have norms, others a factor of queries. */
static void adjust_llama4(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;
    const json_t *tuned = config_find(section, "attn_temperature_tuning", NULL);
    const json_t *beta = config_find(section, "attn_scale", NULL);
    /* older files have a number */
    bool on = json_is_integer(tuned)
                  ? json_integer_value(tuned) != 0
                  : config_get_bool(section, "attn_temperature_tuning=true");
    bool zero = json_is_number(beta) && json_number_value(beta) == 0;

    read_chunk(source, layer);
    if (config_get_bool(section, "use_qk_norm=true") && layer->rotation.dims > 0)
        add_bare_norms(source, layer);
    if (!on || zero || layer->rotation.dims > 0)
        return;
    layer->info.query_factor.beta = config_get_number(section, "attn_scale", 0.1);
    layer->info.query_factor.length = config_get_count(section, "floor_scale", 8192);
    layer->info.query_factor.offset = 1;
}

/* With "alpha" the base of a dynamic rotation is the same for all lengths. */
static void fix_base(const struct layer_source *source,
                     const struct config_section *inside,
                     struct layer_rotation *rotation) {
    double size = (double)rotation->dims, alpha;
    (void)source;

    if (rotation->type != ROTATION_DYNAMIC)
        return;
    alpha = config_get_number(inside, "alpha", 0);
    if (alpha == 0 || rotation->dims <= 2)
        return;
    rotation->type = ROTATION_DEFAULT;
    rotation->base *= pow(alpha, size / (size - 2));
}

/* It rotates by the negative angle. */
static void adjust_nanochat(const struct layer_source *source, struct layer *layer) {
    layer->rotation.backward = true;
    add_bare_norms(source, layer);
}

static void norm_bitnet_outputs(const struct layer_source *source, struct layer *layer) {
    (void)source;
    layer->out_norm.name = "attn_sub_norm";
    layer->info.out_norm.kind = ATTN_NORM_RMS;
    layer->info.out_norm.eps = layer->info.pre_norm.eps;
}

static void scale_falcon_keys(const struct layer_source *source, struct layer *layer) {
    layer->info.score.scale *= config_get_number(source->section, "key_multiplier", 1);
}

/* Each layer may have a base of its own, which is 0 where it does not rotate. */
static const json_t *find_base(const struct layer_source *layer) {
    const json_t *list = config_find(layer->section, "layer_rope_theta", NULL);
    const json_t *base = json_array_get(list, layer->index);

    if (json_array_size(list) > 0 &&
        (json_array_size(list) != layer->num_layers || json_number_value(base) < 0))
        error_keep(layer->section->error, ATTN_E_VALUE,
                   "layer_rope_theta must be a list of a number for each of %zu layers",
                   layer->num_layers);
    return base;
}

static bool has_base(const struct layer_source *layer) {
    const json_t *base = find_base(layer);
    return base == NULL || json_number_value(base) != 0;
}

static void set_base(const struct layer_source *source,
                     const struct config_section *inside,
                     struct layer_rotation *rotation) {
    const json_t *base = find_base(source);
    (void)inside;
    rotation->base = base != NULL ? json_number_value(base) : rotation->base;
}

/* The first layers may be dense, and rotate then, unless they have a period. */
static bool cohere_rotates(const struct layer_source *layer) {
    const struct config_section *section = layer->section;
    const json_t *types = config_find(section, "mlp_layer_types", NULL);
    const char *type = json_string_value(json_array_get(types, layer->index));

    return has_window(layer) ||
           (type != NULL && strcmp(type, "dense") == 0 &&
            config_get_count(section, "prefix_dense_sliding_window_pattern=1", 1) == 1);
}

static void choose_cohere_norm(const struct layer_source *source, struct layer *layer) {
    if (json_is_number(config_find(source->section, "rms_norm_eps", NULL)))
        layer->info.pre_norm.kind = ATTN_NORM_RMS;
}

static void read_seed_bias(const struct layer_source *source, struct layer *layer) {
    layer->linears[ATTN_OUTPUT].has_bias =
        config_get_bool(source->section, "attention_out_bias");
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
static const struct layer_rotation gpt_oss_rotation = {
    .type = ROTATION_YARN, .factor = 32, .beta_fast = 32, .beta_slow = 1,
    .original_positions = 4096};
/* Layers that predict more tokens lie behind the others. */
#define MORE_LAYERS .stacks[0].more_keys = "num_nextn_predict_layers"
/* The name of a rotation of neighbours in files of Cohere. */
#define ROPE_GPTJ .demands = "position_embedding_type=rope_gptj"
#define QWEN_WINDOW(which, from) \
    .windows.slides = which, .windows.only_if = "use_sliding_window", \
    .windows.keys = "sliding_window=4096", .windows.from_keys = "max_window_layers=" #from
#define PHI3(type_name, kv) { \
    .types = {type_name}, .stacks = {STACK_SELF("input_layernorm", 32, 3072, 32, \
        MASK_CAUSAL, PACKED("qkv_proj", "o_proj"))}, \
    .weights.split = SPLIT_BLOCKS, HEADS(kv, 0), RMS(1e-5), ROTATION, PART(1), \
    .rotation.words = "su=longrope yarn=longrope", .rotation.original_positions = 4096, \
    WINDOW(0)}
#define QWEN3(type_name, stack, kv, d, which) { \
    .types = {type_name}, .stacks = {stack}, HEADS(kv, d), BIASES, RMS(1e-6), \
    HEAD_NORMS, ROTATION, QWEN_WINDOW(which, 28)}

/* Without a norm before. */
#define STACK_NO_NORM(h, w, n) \
    STACK_SELF(NULL, h, w, n, MASK_CAUSAL, NAMES_PROJ("o_proj"))
#define OLMO2(type_name, value, h, w) \
    .types = {type_name}, .stacks = {STACK_NO_NORM(h, w, 32)}, HEADS(0, 0), BIASES, \
    .norms.eps_keys = "rms_norm_eps", .norms.eps = value, HEAD_NORMS, \
    .norms.heads_whole = true
#define EXAONE4(type_name, stack) \
    .types = {type_name}, .stacks = {stack}, HEADS(32, 0), RMS(1e-5), HEAD_NORMS, \
    ROTATION, WINDOWS(exaone_slides, 4096), \
    .windows.period_keys = "sliding_window_pattern=4", \
    .rotation.only_if = exaone_rotates
#define ERNIE45(type_name, h, w, n, kv, d) { \
    LLAMA(type_name, h, w, n, kv, d), BIASES_IF("qkvo", "use_bias"), RMS(1e-5), \
    BASE(500000), NEIGHBOURS}
#define GRANITE(otherwise, ...) { \
    LLAMAS(32, 4096, 32, 0, 0, __VA_ARGS__), BIASES, RMS(1e-6), ROTATION, \
    .scores.scale_keys = "attention_multiplier", .scores.scale = otherwise}
/* Texts of models with images, whose positions have three axes. */
#define SECTIONS(order) .rotation.sections = order, .rotation.words = "mrope=default"
#define QWEN3_VL(type_name, h, w, n, d) { \
    LLAMA(type_name, h, w, n, h, d), .ignored = "sliding_window", BIASES, RMS(1e-6), \
    HEAD_NORMS, BASE(500000), SECTIONS(SECTIONS_INTERLEAVED), \
    .rotation.section_sizes = {24, 20, 20}}
#define LLAMA3_UNSET(name, theta, times, original) \
    static const struct layer_rotation name = { \
        .type = ROTATION_LLAMA3, .base = theta, .factor = times, .low_freq_factor = 1, \
        .high_freq_factor = 4, .original_positions = original}
static const struct layer_rotation ministral3_rotation = {
    .type = ROTATION_YARN, .base = 1e6, .factor = 16, .beta_fast = 32, .beta_slow = 1,
    .truncate = true, .mscale = 1, .mscale_all_dim = 1, .original_positions = 16384,
    .query_beta = 0.1};
LLAMA3_UNSET(apertus_rotation, 12e6, 8, 8192);
LLAMA3_UNSET(cwm_rotation, 1e6, 16, 8192);

const struct family families_llama[] = {
    {   LLAMA("llama", 32, 4096, 32, 0, 0), BIASES, RMS(1e-6), ROTATION},
    {   LLAMA("voxtral_text", 32, 3072, 30, 8, 128), BIASES, RMS(1e-5), BASE(1e8),
        .demands = "model_type=llama"},
    {   LLAMA("mistral", 32, 4096, 32, 8, 0), RMS(1e-6), ROTATION, WINDOW(4096)},
    {   LLAMA("mixtral", 32, 4096, 32, 8, 0), RMS(1e-5), BASE(1e6), WINDOW(0)},
    {   LLAMAS(32, 4096, 32, 32, 0, "qwen2", "mimo"), .biases.always = "qkv", RMS(1e-6),
        ROTATION, QWEN_WINDOW(slides_from, 28)},
    {   LLAMA("qwen2_moe", 16, 2048, 24, 16, 0), BIASES_IF("qkv", "qkv_bias=true"),
        RMS(1e-6), ROTATION, QWEN_WINDOW(slides_before, 28)},
    QWEN3("qwen3", STACK_DECODER(MASK_UNLESS_BIDIRECTIONAL, 32, 4096, 32), 32, 128,
          slides_from), /* voyage-4-nano has its key, which transformers does not read */
    QWEN3("qwen3_moe", STACK_LLAMA(32, 2048, 24), 4, 0, NULL),
    {   LLAMAS(64, 8192, 80, 8, 0, "qwen2_vl_text", "qwen2_5_vl_text"),
        .biases.always = "qkv", RMS(1e-5), BASE(1e6), SECTIONS(SECTIONS_BLOCKS),
        .rotation.section_sizes = {16, 24, 24}, QWEN_WINDOW(slides_from, 80)},
    QWEN3_VL("qwen3_vl_text", 32, 4096, 32, 128),
    QWEN3_VL("qwen3_vl_moe_text", 16, 2048, 24, 0),
    {   .types = {"phi"}, .stacks = {STACK_SELF("input_layernorm", 32, 2048, 24,
        MASK_CAUSAL, NAMES_PROJ("dense"))}, BIASED, HEADS(0, 0),
        LAYER_NORM("layer_norm_eps", 1e-5),
        NORMS_OF_HEADS("q_layernorm", "k_layernorm", ATTN_NORM_LAYER),
        .norms.heads_if = "qk_layernorm", ROTATION, PART(0.5)},
    PHI3("phi3", 0),
    PHI3("phi4_multimodal_text", 8),
    {   LLAMA("starcoder2", 24, 3072, 30, 2, 0), BIASES_IF("qkvo", "use_bias=true"),
        LAYER_NORM("norm_epsilon", 1e-5), ROTATION, WINDOW(0)},
    {   LLAMA("cohere", 64, 8192, 40, 0, 0), BIASES, LAYER_NORM("layer_norm_eps", 1e-5),
        NORMS_OF_HEADS("q_norm", "k_norm", ATTN_NORM_LAYER),
        .norms.heads_if = "use_qk_norm", .norms.heads_each = true, BASE(500000),
        NEIGHBOURS, ROPE_GPTJ},
    {   LLAMA("cohere2", 64, 8192, 40, 0, 0), BIASES, LAYER_NORM("layer_norm_eps", 1e-5),
        ROTATION, NEIGHBOURS, .rotation.only_if = has_window,
        PERIODS(4096, "sliding_window_pattern=4"), ROPE_GPTJ},
    {   LLAMA("cohere2_moe", 64, 8192, 40, 0, 128), BIASES, ROTATION, NEIGHBOURS,
        LAYER_NORM("rms_norm_eps,layer_norm_eps", 1e-5), .adjust = choose_cohere_norm,
        .rotation.only_if = cohere_rotates, PERIODS(4096, "sliding_window_pattern=4"),
        ROPE_GPTJ " first_k_dense_replace=null|0"},
    {   LLAMA("stablelm", 32, 2560, 32, 32, 0), BIASES_IF("qkv", "use_qkv_bias"),
        LAYER_NORM("layer_norm_eps", 1e-5),
        NORMS_OF_HEADS("q_layernorm.norms.#", "k_layernorm.norms.#", ATTN_NORM_LAYER),
        .norms.heads_if = "qk_layernorm", .norms.heads_each = true, ROTATION, PART(0.25)},
    {   .types = {"persimmon"}, .stacks = {STACK_SELF("input_layernorm", 64, 4096, 36,
        MASK_CAUSAL, PACKED("query_key_value", "dense"))}, .weights.split = SPLIT_GROUPS,
        BIASED, LAYER_NORM("layer_norm_eps", 1e-5),
        NORMS_OF_HEADS("q_layernorm", "k_layernorm", ATTN_NORM_LAYER),
        .norms.heads_if = "qk_layernorm=true", ROTATION, PART(0.5)},
    {   LLAMAS(32, 4096, 32, 0, 0, "hunyuan_v1_dense", "hunyuan_v1_moe"), BIASES,
        RMS(1e-5), NORMS_OF_HEADS("query_layernorm", "key_layernorm", ATTN_NORM_RMS),
        ROTATION, .rotation.adjust = fix_base, .norms.heads_last = true},
    {   LLAMA("llama4_text", 40, 5120, 48, 8, 128), BIASES, RMS(1e-5), BASE(500000),
        NEIGHBOURS, .rotation.only_if = is_rotated_by_list, .adjust = adjust_llama4},
    {   /* no norm has a weight */
        .types = {"nanochat"}, .stacks = {STACK_NO_NORM(6, 768, 12)}, HEADS(0, 0),
        BIASES, RMS(1e-6), .norms.bare = true, ROTATION, .adjust = adjust_nanochat},
    {   LLAMA("olmoe", 16, 2048, 16, 0, 0), BIASES, RMS(1e-5), HEAD_NORMS,
        .norms.heads_whole = true, ROTATION, .scores.clip_keys = "clip_qkv"},
    {   LLAMA("ministral3", 32, 4096, 34, 8, 128), RMS(1e-5), ROTATION,
        .rotation.unset = &ministral3_rotation, WINDOW(0), .rotation.query_beta = true},
    {   OLMO2("olmo2", 1e-5, 32, 4096), ROTATION},
    {   OLMO2("flex_olmo", 1e-6, 32, 4096), BASE(500000)},
    {   OLMO2("olmo3", 1e-5, 32, 4096), BASE(500000),
        /* the same base, but unscaled, in layers with a window */
        LOCAL_BASE("rope_theta", 500000), PERIODS(4096, "=4")},
    {   OLMO2("olmo_hybrid", 1e-6, 30, 3840), ROTATION, .rotation.only_if = olmo_rotates,
        .layers.without = "linear_attention", .layers.period_keys = "=4",
        .layers.last = true},
    {   /* the norm before it has neither weight nor bias */
        .types = {"olmo"}, .stacks = {STACK_NO_NORM(32, 4096, 32)}, HEADS(0, 0),
        BIASES, LAYER_NORM(NULL, 1e-5), .norms.bare = true, ROTATION,
        .scores.clip_keys = "clip_qkv"},
    {   LLAMA("gpt_oss", 64, 2880, 36, 8, 64), BIASES_IF("qkvo", "attention_bias=true"),
        RMS(1e-5), BASE(150000), .rotation.unset = &gpt_oss_rotation, PERIODS(128, "=2"),
        .scores.sinks = "sinks"},
    {   .types = {"apertus"}, .stacks = {STACK_SELF("attention_layernorm", 32, 4096, 32,
        MASK_CAUSAL, NAMES_PROJ("o_proj"))}, HEADS(0, 0), BIASES, RMS(1e-5), HEAD_NORMS,
        BASE(12e6), .rotation.unset = &apertus_rotation},
    {   .types = {"afmoe"}, .stacks = {STACK_SELF("input_layernorm", 16, 2048, 32,
        MASK_CAUSAL, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"})},
        HEADS(0, 128), BIASES, RMS(1e-5), HEAD_NORMS, ROTATION,
        .rotation.only_if = has_window, PERIODS(1024, "global_attn_every_n_layers=4")},
    {   /* with one of its own, transformers rounds rows and weights, too */
        LLAMA("bitnet", 20, 2560, 30, 5, 0),
        .demands = "quantization_config.quant_method=fp8|fbgemm_fp8|mxfp8|modelopt|"
                   "compressed-tensors",
        BIASES, RMS(1e-5), .adjust = norm_bitnet_outputs, BASE(500000)},
    {   LLAMA("arcee", 32, 2560, 32, 0, 0), BIASES, RMS(1e-5), ROTATION},
    {   LLAMA("cwm", 48, 6144, 64, 8, 128), RMS(1e-5), BASE(1e6),
        .rotation.unset = &cwm_rotation, PERIODS(8192, "=4"), .windows.first = true},
    {   LLAMA("dots1", 32, 4608, 62, 32, 0), BIASES, RMS(1e-6), HEAD_NORMS, ROTATION,
        WINDOWS(slides_from, 4096), .windows.from_keys = "max_window_layers=62"},
    ERNIE45("ernie4_5", 16, 1024, 18, 2, 128),
    ERNIE45("ernie4_5_moe", 20, 2560, 28, 4, 0),
    {   EXAONE4("exaone4", STACK_NO_NORM(32, 4096, 32))},
    {   EXAONE4("exaone_moe", STACK_LLAMA(32, 4096, 32))},
    {   /* another mixer gets the norm's output besides, so the norm stays outside */
        .types = {"falcon_h1"}, .stacks = {STACK_NO_NORM(32, 4096, 32)}, HEADS(8, 0),
        BIASES, ROTATION, .adjust = scale_falcon_keys},
    {   LLAMAS(32, 4096, 40, 2, 128, "glm", "glm4"), ROTATION, PART(0.5), NEIGHBOURS,
        BIASES_IF("qkv", "attention_bias=true"), RMS(1.5625e-07)},
    {   LLAMA("glm4_moe", 96, 4096, 46, 8, 0), BIASES_IF("qkv", "attention_bias"),
        RMS(1e-5), HEAD_NORMS, .norms.heads_if = "use_qk_norm", ROTATION, PART(0.5),
        MORE_LAYERS},
    {   LLAMA("glm4v_text", 32, 4096, 40, 2, 0), .biases.always = "qkv", RMS(1e-5),
        ROTATION, PART(1), NEIGHBOURS, SECTIONS(SECTIONS_BLOCKS),
        .rotation.section_sizes = {8, 12, 12}},
    {   LLAMA("glm4v_moe_text", 96, 4096, 46, 8, 0),
        BIASES_IF("qkv", "attention_bias=true"), RMS(1e-5), ROTATION, PART(0.5),
        SECTIONS(SECTIONS_BLOCKS), .rotation.section_sizes = {8, 12, 12}, MORE_LAYERS},
    GRANITE(1, "granite", "granitemoe", "granitemoeshared"),
    {   LLAMA("granite_swa", 20, 2560, 24, 4, 0), BIASES, RMS(1e-5), ROTATION,
        .scores.scale_keys = "attention_multiplier", .scores.scale = 1,
        .scores.sinks = "sinks", PERIODS(128, "=4"), .windows.first = true,
        .rotation.only_if = has_base, .rotation.adjust = set_base},
    GRANITE(0, "hyperclovax"),
    {   LLAMA("helium", 20, 2560, 24, 20, 128), BIASES_IF("qkv", "attention_bias"),
        RMS(1e-8), BASE(100000), NEIGHBOURS},
    {   LLAMA("hy_v3", 64, 4096, 80, 8, 128), BIASES, RMS(1e-5), HEAD_NORMS,
        BASE(11158840)},
    {   LLAMA("jais2", 26, 3328, 32, 0, 0), BIASES_IF("qkvo", "attention_bias=true"),
        LAYER_NORM("layer_norm_eps", 1e-5), ROTATION},
    {   LLAMA("minimax_m2", 48, 3072, 62, 8, 128), RMS(1e-6), HEAD_NORMS,
        .norms.heads_whole = true, BASE(5e6), PART(1),
        .rotation.dims_keys = "rotary_dim"},
    {   LLAMA("ministral", 32, 4096, 32, 8, 0), RMS(1e-6), ROTATION,
        WINDOWS(has_window, 4096)},
    {   LLAMA("nemotron", 48, 6144, 32, 0, 0), BIASES, LAYER_NORM("norm_eps", 1e-5),
        .norms.plus_one = true, ROTATION, PART(0.5)},
    {   LLAMA("phimoe", 32, 4096, 32, 8, 0), BIASES, LAYER_NORM("rms_norm_eps", 1e-5),
        BASE(1e6), WINDOW(0),
        .demands = "rope_scaling.short_mscale=null rope_parameters.short_mscale=null"},
    {   LLAMA("seed_oss", 80, 4096, 64, 8, 128), BIASES_IF("qkv", "attention_bias=true"),
        .adjust = read_seed_bias, RMS(1e-6), ROTATION},
    {   LLAMA("smollm3", 16, 2048, 36, 4, 0), BIASES, RMS(1e-6), BASE(2e6),
        .rotation.only_if = is_rotated_by_list, WINDOWS(smollm_slides, 0)},
    {   LLAMA("solar_open", 64, 4096, 48, 8, 128), BIASES_IF("qkv", "attention_bias"),
        RMS(1e-5), BASE(1e6)},
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
