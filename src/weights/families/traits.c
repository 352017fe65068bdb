/* SPDX-License-Identifier: Apache-2.0 */
/* traits.c: applies the table of families to config.json. */
#include "weights/families/traits.h"

#include "base/error.h"
#include "weights/families/kinds.h"
#include "weights/families/rotation.h"
#include "weights/layer/frequencies.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of biases by distance: how many buckets there are when config.json does not say, and
 * which distance is the farthest. */
#define BUCKETS  32
#define FARTHEST 128

#define LATENT_EPS 1e-6 /* of the norms of latent rows, whatever config.json has */

static void check_shared_heads(const struct layer_source *source,
                               const struct layer *layer) {
    size_t heads = layer->info.num_heads;

    if (heads % layer->info.num_kv_heads != 0)
        error_keep(source->section->error, ATTN_E_VALUE,
                   "%zu query heads cannot share %zu key heads: their number must "
                   "divide that of query heads",
                   heads, layer->info.num_kv_heads);
}

static void read_head_sizes(const struct layer_source *source, struct layer *layer) {
    const struct family_sizes *sizes = &source->family->sizes;
    const char *own_keys = source->stack->stack->kv_keys;
    size_t heads = source->stack->num_heads, width = source->stack->width;

    layer->info.num_heads = heads;
    layer->info.num_kv_heads = config_get_count(
        source->section, own_keys != NULL ? own_keys : sizes->kv_keys, heads);
    if (layer->info.num_kv_heads == 0)
        layer->info.num_kv_heads = heads;
    check_shared_heads(source, layer);

    layer->info.width.score = config_get_count(source->section, sizes->head_keys, 0);
    if (source->family->weights.split == SPLIT_LATENT || layer->info.width.score > 0)
        return;
    layer->info.width.score = width / heads;
    if (width % heads != 0)
        error_keep(source->section->error, ATTN_E_VALUE,
                   "%zu heads do not divide the width, which is %zu", heads, width);
}

static double read_scale(const struct layer_source *source, size_t head_size) {
    const struct config_section *section = source->section;
    const struct family_scores *scores = &source->family->scores;
    double scale = scores->scale > 0 ? scores->scale : 1 / sqrt((double)head_size);

    if (scores->root_keys == NULL)
        return config_get_number(section, scores->scale_keys, scale);
    double root = (double)config_default(scores->root_keys, 1);
    return 1 / sqrt(config_get_number(section, scores->root_keys, root));
}

/* Returns whether the layer is causal. */
static bool read_mask(const struct layer_source *source) {
    const struct config_section *section = source->section;
    const struct match *match = source->match;
    const struct stack *stack = source->stack->stack;
    bool causal = stack->mask != MASK_NONE;

    if (match->causal != NULL)
        return !stack->cross && strcmp(match->causal, "true") == 0;
    if (stack->mask == MASK_IF_DECODER)
        causal = config_get_bool(section, "is_decoder");
    if (stack->mask == MASK_UNLESS_ENCODER)
        causal = config_get_bool(section, "is_decoder=true");
    if (stack->mask == MASK_UNLESS_BIDIRECTIONAL)
        causal = !config_get_bool(section, "use_bidirectional_attention");
    if (!causal || stack->mask == MASK_ALWAYS_CAUSAL)
        return causal;
    return config_get_bool(section,
                           match->bidirectional == NULL ? "is_causal=true" : "is_causal");
}

/* Reads the window, if the layer has one. */
static void read_window(struct layer_source *source, struct layer *layer) {
    const struct family_windows *windows = &source->family->windows;
    const struct config_section *section = source->section;
    const char *keys = windows->keys, *only_if = windows->only_if;

    if (keys == NULL || layer->cross)
        return;
    const json_t *set = config_find(section, keys, NULL);
    bool on = only_if == NULL || config_get_bool(section, only_if);
    bool zero = on && json_is_number(set) && json_number_value(set) == 0;
    size_t window = on && !zero ? config_get_count(section, keys, 0) : 0;
    source->window = window;
    if (windows->length != NULL)
        source->window = windows->length(source);
    layer->info.mask.window = source->window;
    if (zero) /* which hides nothing */
        source->window = 1;
    if (!kind_slides(source)) {
        layer->info.mask.window = 0;
        return;
    }

    if (layer->info.mask.window == 0 && window > 0)
        error_keep(section->error, ATTN_E_VALUE,
                   "%.*s is %zu, but must be at least 2, since half of it counts",
                   (int)strcspn(keys, "="), keys, window);
    if (layer->info.mask.window == 0)
        error_keep(section->error, ATTN_E_VALUE,
                   "layer %zu has sliding attention, but %.*s is %s", source->index,
                   (int)strcspn(on ? keys : only_if, "="), on ? keys : only_if,
                   !on    ? "not true"
                   : zero ? "0"
                          : "not set");
}

/* Refuses what says another mask, or too little of it, unless that is known. */
static void check_mask(const struct layer_source *source, const struct layer *layer) {
    const struct match *match = source->match;
    const char *causal = "use_bidirectional_attention=false|vision bidirectional=false "
                         "causal=true causal_attention=true use_causal_mask=true";
    const char *others = "bidirectional=true causal=false causal_attention=false "
                         "use_causal_mask=false";
    const char *remedy = "set causal=true or causal=false, whichever it is";

    if (match->causal != NULL || layer->cross)
        return;
    if (match->bidirectional != NULL &&
        layer->info.mask.window + layer->info.mask.chunk > 0)
        error_keep(source->section->error, ATTN_E_UNSUPPORTED,
                   "class %.60s is not causal, but does not say where its window is; set "
                   "causal=false for one on each side",
                   match->bidirectional);
    if (match->text == NULL || !match->text->any_mask)
        config_check_demands(source->section, layer->info.mask.causal ? causal : others,
                             remedy);
    if (match->text != NULL)
        config_check_demands(source->section, match->text->demands, remedy);
}

/* Refuses the eps of another kind of norm, where that of the family is absent and has
 * another default. */
static void check_eps(const struct layer_source *source) {
    static const char *const others[] = {"rms_norm_eps", "layer_norm_eps",
                                         "layer_norm_epsilon", "norm_eps"};
    const char *keys = source->family->norms.eps_keys;

    if (keys == NULL || config_find(source->section, keys, NULL) != NULL)
        return;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const json_t *other = config_find(source->section, others[i], NULL);
        if (other != NULL && json_number_value(other) != source->family->norms.eps)
            error_keep(source->section->error, ATTN_E_UNSUPPORTED,
                       "config.json has %s, but family %s has %s "
                       "(docs/checkpoints.md#unknown-keys)%s",
                       others[i], source->match->type, keys, REFUSAL_REMEDY);
    }
}

/* Reads kind and eps of the norms. */
static void read_norms(const struct layer_source *source, struct layer *layer) {
    const struct family *family = source->family;
    const struct config_section *section = source->section;
    bool before = source->stack->stack->norm != NULL || family->norms.bare;
    bool on_heads = family->norms.query != NULL;
    check_eps(source);
    double eps = config_get_number(section, family->norms.eps_keys, family->norms.eps);

    if (layer->info.latent.key > 0)
        layer->info.latent.eps = LATENT_EPS;
    if (family->norms.before_if != NULL)
        before = config_get_bool(section, family->norms.before_if);
    if (before) {
        layer->norm_before.plus_one = family->norms.plus_one;
        layer->norm_before.bare = family->norms.bare;
        layer->info.pre_norm.kind = family->norms.before;
        layer->info.pre_norm.eps = eps;
    }
    layer->info.value_norm.eps = eps;

    if (family->norms.heads_if != NULL)
        on_heads = config_get_bool(section, family->norms.heads_if);
    if (!on_heads)
        return;
    /* where a family always has them, files may say so by a key of other families */
    config_find(section, "qk_norm", NULL);
    config_find(section, "use_qk_norm", NULL);
    layer->query_norm.name = family->norms.query;
    layer->key_norm.name = family->norms.key;
    layer->query_norm.plus_one = layer->key_norm.plus_one = family->norms.plus_one;
    layer->info.head_norm.kind = family->norms.heads;
    layer->info.head_norm.eps = eps;
    layer->info.head_norm.whole = family->norms.heads_whole;
    layer->info.head_norm.last = family->norms.heads_last;
    layer->info.head_norm.per_head = family->norms.heads_each;
}

/* Reads what is added by distance. Cross attention has none. */
static void read_distance_bias(const struct layer_source *source, struct layer *layer) {
    const struct family *family = source->family;
    const struct config_section *section = source->section;
    struct layer_bias *bias = &layer->bias;

    if (layer->cross)
        return;
    layer->info.score.bias = family->distance.kind;
    if (layer->info.score.bias != ATTN_BIAS_BUCKETS)
        return;

    bias->table_columns = layer->info.num_heads;
    bias->table_layer = family->distance.each ? source->index : 0;
    bias->both_sides = source->stack->stack->mask == MASK_NONE;
    bias->table_rows =
        config_get_count(section, "relative_attention_num_buckets", BUCKETS);
    bias->max_distance = config_get_count(section, family->distance.max_keys, FARTHEST);
    layer->info.score.bias_distance = bias->max_distance;
    bias->num_buckets = family->distance.max_keys == NULL ? BUCKETS : bias->table_rows;
    size_t exact = bias->num_buckets / (bias->both_sides ? 4 : 2);
    if (exact == 0 || bias->max_distance <= exact || bias->num_buckets > bias->table_rows)
        error_keep(section->error, ATTN_E_VALUE,
                   "%zu buckets up to distance %zu are not possible", bias->table_rows,
                   bias->max_distance);
}

static bool has_letter(const char *letters, char letter) {
    return letters != NULL && strchr(letters, letter) != NULL;
}

static void read_biases(const struct layer_source *source, struct layer *layer) {
    static const char letters[] = "qkvogQKrR";
    const struct family *family = source->family;
    bool conditional = config_get_bool(source->section, family->biases.keys);

    for (size_t i = 0; i < LAYER_NUM_LINEARS; i++) {
        layer->linears[i].has_bias =
            has_letter(family->biases.always, letters[i]) ||
            (conditional && has_letter(family->biases.if_set, letters[i]));
        layer->linears[i].may_have_bias =
            has_letter(family->biases.as_stored, letters[i]);
    }
}

void traits_name(const struct match_stack *stack, size_t index,
                 char ret_part[LAYER_PART_SIZE]) {
    snprintf(ret_part, LAYER_PART_SIZE, "%s%zu%s", stack->part, index,
             stack->stack->cross ? ".cross" : "");
}

/* Reads positions, and what scales by them. */
static void read_rotation(const struct layer_source *source, struct layer *layer) {
    const struct match *match = source->match;
    const struct family_rotation *rotation = &source->family->rotation;
    bool rotates =
        !layer->cross && (rotation->only_if == NULL || rotation->only_if(source));

    if (rotates && rotation->only_type != NULL)
        rotates = wordlist_has_value(
            rotation->only_type,
            config_find(source->section, "position_embedding_type", NULL));
    if (rotates)
        rotation_read(source, layer->info.width.score, &layer->rotation);
    if (match->text != NULL && match->text->any_mask &&
        layer->rotation.type == ROTATION_DYNAMIC)
        error_keep(source->section->error, ATTN_E_UNSUPPORTED,
                   "rope_type is dynamic, but the lengths of this model count from 1, "
                   "which attnd does not do" REFUSAL_REMEDY);
    layer->info.query_factor.beta = layer->rotation.query_beta;
    if (layer->rotation.query_beta > 0)
        layer->info.query_factor.length = layer->rotation.original_positions;
}

/* Reads what bounds scores. */
static void read_bounds(const struct layer_source *source, struct layer *layer) {
    const struct family_scores *scores = &source->family->scores;
    const struct config_section *section = source->section;

    if (scores->softcap_keys != NULL && !config_is_null(section, scores->softcap_keys))
        layer->info.score.softcap = config_get_number(section, scores->softcap_keys, 50);
    layer->info.projection.clip = config_get_number(section, scores->clip_keys, 0);
    layer->info.projection.clip_last =
        layer->info.projection.clip > 0 && layer->info.head_norm.kind != ATTN_NORM_NONE;
    layer->sinks_name = scores->sinks;
}

/* Describes the rotation, and where keys are from, once a family has adjusted both. */
static void complete_traits(struct layer *layer) {
    const struct layer_rotation *rotation = &layer->rotation;
    attn_model_info *info = &layer->info;

    info->kind = layer->cross ? "cross" : layer->borrows ? "borrowed" : "self";
    if (rotation->dims == 0)
        return;
    info->rotation.size = rotation->dims;
    info->rotation.type = rotation_type_name(rotation->type);
    info->rotation.base = rotation->base;
    info->rotation.axes = rotation->sections != SECTIONS_NONE ? ATTN_AXES : 1;
    info->rotation.grid = rotation->grid;
    info->rotation.grid_first = rotation->grid_first;
}

attn_status traits_read(const struct match *match, const struct match_stack *stack,
                        size_t index, struct layer *ret_layer) {
    const struct family *family = match->family;
    const struct config_section *section = &stack->section;
    struct layer_source source = match_source(match, stack, index);
    struct layer layer = {.info = {.layout = match->type, .layer = index},
                          .lender = index,
                          .cross = stack->stack->cross,
                          .value_factor = 1};

    traits_name(stack, index, layer.part);
    config_check_demands(section, family->demands, "attnd computes nothing else here");
    read_head_sizes(&source, &layer);
    layer.info.mask.causal = source.causal = read_mask(&source);
    read_window(&source, &layer);
    if (family->sizes.adjust != NULL) /* which may ask for the window, and drop it */
        family->sizes.adjust(&source, &layer);
    check_shared_heads(&source, &layer);
    if (layer.info.width.head == 0)
        layer.info.width.head = layer.info.width.score;
    source.window = layer.info.mask.window;
    layer.info.score.scale = read_scale(&source, layer.info.width.score);
    read_rotation(&source, &layer);
    read_norms(&source, &layer);
    read_distance_bias(&source, &layer);
    read_bounds(&source, &layer);
    read_biases(&source, &layer);
    if (family->adjust != NULL)
        family->adjust(&source, &layer);
    complete_traits(&layer);
    if (match->causal != NULL)
        layer.info.mask.causal = read_mask(&source);
    check_mask(&source, &layer);
    if (section->error->status == ATTN_OK)
        *ret_layer = layer;
    return section->error->status;
}
