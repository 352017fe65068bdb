/* SPDX-License-Identifier: Apache-2.0 */
/* bert.c: encoders of text and sound. */
#include "weights/families/table/words.h"

#include <math.h>

static void rotate_values(const struct layer_source *source, struct layer *layer) {
    layer->info.rotation.values = config_get_bool(source->section, "rotary_value");
}

/* Half of local_attention, or sliding_window, which is already half of it. */
static size_t halve_window(const struct layer_source *layer) {
    size_t half = config_get_count(layer->section, "sliding_window", 0);
    return half > 0 ? half : layer->window / 2;
}

/* The first layer has an identity in place of the norm before. */
static void drop_first_norm(const struct layer_source *source, struct layer *layer) {
    if (source->index > 0)
        return;
    layer->info.pre_norm.kind = ATTN_NORM_NONE;
    layer->norm_before.bare = true;
}

/* Its only scaling, ntk, is that of a larger base and shorter steps. */
static void stretch_rotation(const struct layer_source *source, struct layer *layer) {
    double factor = layer->rotation.factor;
    (void)source;

    if (layer->rotation.type != ROTATION_LINEAR)
        return;
    layer->rotation.base *= factor;
    layer->rotation.factor = pow(factor, 2 / (double)layer->rotation.dims);
}

/* Returns a count, where one below 1 stands for another. */
static size_t count_unless_negative(const struct config_section *section, const char *key,
                                    size_t otherwise) {
    const json_t *value = config_find(section, key, NULL);

    if (json_is_number(value) && json_number_value(value) < 1)
        return otherwise;
    return config_get_count(section, key, otherwise);
}

/* Returns whether pos_att_type, a text such as "p2c|c2p" or a list, has a term. */
static bool has_term(const struct config_section *section, const char *term) {
    const json_t *types = config_find(section, "pos_att_type", NULL);
    bool has = wordlist_has(json_string_value(types), term);

    for (size_t i = 0; i < json_array_size(types); i++)
        has |= wordlist_has(json_string_value(json_array_get(types, i)), term);
    return has;
}

/* Adds the terms of content and position. Where keys and queries share projections with
 * the positions, those are the layer's own. */
static void add_content(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;
    struct layer_bias *bias = &layer->bias;
    bool keys = has_term(section, "c2p"), queries = has_term(section, "p2c");
    bool own = config_get_bool(section, "share_att_key");
    bool relative = config_get_bool(section, "relative_attention");
    size_t longest = count_unless_negative(
        section, "max_relative_positions",
        config_get_count(section, "max_position_embeddings=512", 512));
    size_t span = count_unless_negative(section, "position_buckets", longest);

    layer->info.score.scale /= sqrt(1 + keys + queries); /* also without positions */
    layer->info.score.bias = ATTN_BIAS_NONE;
    if (!relative || !(keys || queries))
        return;
    bias->num_buckets = count_unless_negative(section, "position_buckets", 0);
    bias->max_distance = longest;
    if (bias->num_buckets % 2 != 0 || bias->num_buckets == 2 ||
        (bias->num_buckets > 0 && longest < bias->num_buckets / 2 + 2))
        error_keep(section->error, ATTN_E_VALUE,
                   "%zu buckets up to distance %zu are not possible", span, longest);
    bias->table_rows = layer->info.score.position_rows = 2 * span;
    bias->table_columns = config_get_count(section, "hidden_size=1536", 1536);
    bias->own_row = span;
    bias->descending = true;
    if (keys)
        bias->projections[0] = own ? "self.key_proj" : "self.pos_key_proj";
    if (queries)
        bias->projections[1] = own ? "self.query_proj" : "self.pos_query_proj";
    if (wordlist_has(config_get_text(section, "norm_rel_ebd", NULL), "layer_norm"))
        bias->norm.name = "/encoder.LayerNorm";
    bias->norm_eps = config_get_number(section, "layer_norm_eps", 1e-7);
    layer->info.score.bias = ATTN_BIAS_CONTENT;
    layer->info.score.bias_distance = longest;
    layer->info.score.position_keys = keys;
    layer->info.score.position_queries = queries;
}

/* Adds the positional keys that all heads share. */
static void add_relative_keys(const struct layer_source *source, struct layer *layer) {
    const struct config_section *section = source->section;
    size_t before = config_get_index(section, "left_max_position_embeddings=64");
    size_t after = config_get_index(section, "right_max_position_embeddings=8");

    if (config_is_null(section, "position_embeddings_type"))
        return;
    layer->bias.table_rows = layer->info.score.position_rows = before + after + 1;
    layer->bias.table_columns = layer->info.width.score;
    layer->bias.table_layer = source->index;
    layer->bias.own_row = before;
    layer->info.score.bias = ATTN_BIAS_CONTENT;
    layer->info.score.bias_distance = before > after ? before : after;
    layer->info.score.position_keys = true;
}

/* clang-format off */
/* NOLINTBEGIN(bugprone-macro-parentheses): texts are joined, members named */
#define NORM_BEHIND "LayerNorm.weight LayerNorm.bias LayerNorm.gamma LayerNorm.beta"
#define NAMES_BERT  {"self.query", "self.key", "self.value", "output.dense"}
#define BEHIND_OUTPUT "output.LayerNorm.weight output.LayerNorm.bias " \
                      "output.LayerNorm.gamma output.LayerNorm.beta"
/* The two stacks of BERT; the second exists in decoders. */
#define STACKS_BERT(mask_of, first_norm, second_norm, if_cross, h, w, n) { \
    STACK_ENCODER(first_norm, h, w, n, mask_of, NAMES_BERT), \
    {.part = "", .layer = "encoder.layer.#.", .module = "crossattention.", \
     .names = NAMES_BERT, .norm = second_norm, KEYS_COMMON, SIZES(h, w, n), \
     .present = if_cross, .cross = true}}
#define BERT(h, w, n, ...) { \
    .types = {__VA_ARGS__}, BIASED, .weights.ignored = BEHIND_OUTPUT, \
    .stacks = STACKS_BERT(MASK_IF_DECODER, NULL, NULL, "add_cross_attention", h, w, n), \
    .demands = "position_embedding_type=absolute"}
/* With a norm before, inside the module. */
#define BERT_NORM(type_name, name, eps, h, w, n) { \
    .types = {type_name}, BIASED, LAYER_NORM("layer_norm_eps", eps), \
    .stacks = STACKS_BERT(MASK_IF_DECODER, "attention." name, "crossattention." name, \
        "add_cross_attention", h, w, n), .demands = "position_embedding_type=absolute"}
/* With one weight of queries, keys and values, and rotated. */
#define BERT_ROTATED(type_name, path, inside, qkv, output, value, ...) \
    .types = {type_name}, .weights.split = SPLIT_BLOCKS, .biases.as_stored = "qkvo", \
    .stacks = {STACK(KEYS_GPT, path, inside, NULL, __VA_ARGS__, MASK_NONE, \
        PACKED(qkv, output))}, BASE_OF("rotary_emb_base rope_theta", value)
#define MODERNBERT \
    .biases.if_set = "qkvo", .biases.keys = "attention_bias", \
    LAYER_NORM("norm_eps", 1e-5), .adjust = drop_first_norm, \
    BASE_OF("global_rope_theta", 160000), LOCAL_BASE("local_rope_theta", 10000), \
    .rotation.local_scaled = true, .windows.slides = kind_slides_in_period, \
    .windows.keys = "local_attention=128", .windows.length = halve_window, \
    .windows.first = true, .windows.period_keys = "global_attn_every_n_layers=3"

const struct family families_bert[] = {
    BERT(12, 768, 12, "bert", "roberta", "xlm-roberta", "camembert", "layoutlm",
         "data2vec-text", "ernie", "splinter"),
    BERT(4, 256, 12, "electra"),
    BERT(18, 1152, 32, "rembert"),
    BERT_NORM("megatron-bert", "ln", 1e-12, 16, 1024, 24),
    BERT_NORM("roberta-prelayernorm", "LayerNorm", 1e-12, 12, 768, 12),
    BERT_NORM("xlm-roberta-xl", "self_attn_layer_norm", 1e-5, 32, 2560, 36),
    {   /* in decoders each layer also attends to an image */
        .types = {"blip_text_model"}, BIASED, .weights.ignored = BEHIND_OUTPUT,
        .stacks = STACKS_BERT(MASK_UNLESS_ENCODER, NULL, NULL, "is_decoder=true", 8, 768,
                              12)},
    {   BERT_ROTATED("nomic_bert", "encoder.layers.#.", "attn.", "Wqkv", "out_proj",
        1000, 12, 768, 12),
        .demands = "rotary_emb_interleaved=false prenorm=false rotary_emb_fraction=1 "
                   "rotary_emb_scale_base=null"},
    {   BERT_ROTATED("gte", "encoder.layer.#.", "attention.", "qkv_proj", "o_proj",
        160000, 12, 768, 12)},
    {   /* the code of gte-v1.5, whose scaling differs from that of gte */
        BERT_ROTATED("new", "encoder.layer.#.", "attention.", "qkv_proj", "o_proj", 10000,
        12, 768, 12), .rotation.words = "ntk=linear", .adjust = stretch_rotation,
        .demands = "position_embedding_type=rope logn_attention_scale=false "
                   "rope_scaling.type=ntk rope_scaling.mixed_b=null "
                   "rope_parameters.rope_type=ntk|default"},
    {   BERT_ROTATED("jina_embeddings_v3", "encoder.layers.#.", "mixer.", "Wqkv",
        "out_proj", 20000, 16, 1024, 24)},
    {   .types = {"eurobert"}, .stacks = {STACK_DECODER(MASK_NONE, 12, 768, 12)},
        .sizes.kv_keys = "num_key_value_heads", .sizes.head_keys = "head_dim", BIASES,
        RMS(1e-5), ROTATION},
    {   .types = {"albert"}, .stacks = {STACK(KEYS("num_attention_heads", "hidden_size",
        "num_hidden_groups"), "encoder.albert_layer_groups.#.albert_layers.0.",
        "attention.", NULL, 64, 4096, 1, MASK_NONE, {"query", "key", "value", "dense"})},
        .demands = "inner_group_num=1 position_embedding_type=absolute",
        BIASED, .weights.ignored = NORM_BEHIND},
    {   .types = {"distilbert"}, .stacks = {STACK(KEYS("n_heads num_attention_heads",
        "dim hidden_size", "n_layers num_hidden_layers"), "transformer.layer.#.",
        "attention.", NULL, 12, 768, 6, MASK_NONE,
        {"q_lin", "k_lin", "v_lin", "out_lin"})}, BIASED},
    {   .types = {"esm"}, .stacks = {STACK_ENCODER("attention.LayerNorm", 12, 768, 12,
        MASK_IF_DECODER, NAMES_BERT)},
        .demands = "position_embedding_type=absolute|rotary add_cross_attention=false",
        BIASED, .weights.ignored = NORM_BEHIND
        " self.rotary_embeddings.inv_freq", LAYER_NORM("layer_norm_eps", 1e-12), ROTATION,
        .rotation.plain = true, .rotation.only_type = "rotary"},
    {   .types = {"roformer"}, BIASED, .demands = "add_cross_attention=false",
        .stacks = {STACK_ENCODER(NULL, 12, 768, 12, MASK_IF_DECODER, NAMES_BERT)},
        .weights.ignored = BEHIND_OUTPUT, ROTATION, .rotation.plain = true, NEIGHBOURS,
        .adjust = rotate_values},
    {   .types = {"modernbert"}, .stacks = {STACK(KEYS_COMMON, "layers.#.", "attn.",
        "attn_norm", 12, 768, 22, MASK_NONE, PACKED("Wqkv", "Wo"))},
        .weights.split = SPLIT_BLOCKS, MODERNBERT},
    {   .types = {"modernbert-decoder"}, .stacks = {STACK(KEYS_COMMON, "layers.#.",
        "attn.", "attn_norm", 12, 768, 22, MASK_CAUSAL, NAMES_PROJ("Wo"))}, MODERNBERT},
    {   .types = {"mpnet"}, .stacks = {STACK_ENCODER(NULL, 12, 768, 12, MASK_NONE,
        {"attn.q", "attn.k", "attn.v", "attn.o"})}, BIASED,
        .weights.ignored = NORM_BEHIND, .distance.kind = ATTN_BIAS_BUCKETS,
        .distance.table = "/encoder.relative_attention_bias.weight"},
    {   .types = {"deberta-v2"}, .stacks = {STACK_ENCODER(NULL, 24, 1536, 24, MASK_NONE,
        {"self.query_proj", "self.key_proj", "self.value_proj", "output.dense"})},
        .biases.always = "qkvorR", .weights.ignored = BEHIND_OUTPUT,
        .adjust = add_content, .distance.table = "/encoder.rel_embeddings.weight"},
    {   .types = {"wav2vec2-bert"}, .stacks = {STACK(KEYS_COMMON, "encoder.layers.#.",
        "self_attn.", "self_attn_layer_norm", 16, 1024, 24, MASK_NONE, {"linear_q",
        "linear_k", "linear_v", "linear_out"})}, BIASED,
        LAYER_NORM("layer_norm_eps", 1e-5), .adjust = add_relative_keys,
        .demands = "position_embeddings_type=relative_key",
        .distance.table = "distance_embedding.weight"},
    {   .types = {"wav2vec2", "hubert", "unispeech", "data2vec-audio"},
        .stacks = {STACK(KEYS_COMMON, "encoder.layers.#.", "attention.", "layer_norm", 12,
        768, 12, MASK_NONE, NAMES_PROJ("out_proj"))}, BIASED,
        LAYER_NORM("layer_norm_eps", 1e-5), .norms.before_if = "do_stable_layer_norm"},
    {.types = {NULL}},
};
/* NOLINTEND(bugprone-macro-parentheses) */
/* clang-format on */
