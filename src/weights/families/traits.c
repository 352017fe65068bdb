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

#define LATENT_EPS 1e-6 /* of the norms of latent rows, whatever config.json has */

/* What all functions here read from. */
struct traits {
    const struct match *match;
    const struct family *family;
    const struct match_stack *stack;
    const struct config_section *section;
    size_t index;
    struct kind_source kind; /* of the same */
};

/* Returns Falcon's number: of its own in the new architecture, else all or one. */
static size_t read_multi_query(const struct traits *traits, size_t num_heads) {
    bool is_new = config_get_bool(traits->section, "new_decoder_architecture", false);
    bool multi_query = config_get_bool(traits->section, "multi_query", true);

    if (is_new)
        return config_get_count(traits->section, traits->family->sizes.kv_keys, num_heads,
                                num_heads);
    return multi_query ? 1 : num_heads;
}

/* Reads the sizes of latent attention, where each query head has a key head. */
static void read_latent_sizes(const struct traits *traits, struct layer *layer) {
    const struct config_section *section = traits->section;
    const struct family_latent *absent = &traits->family->latent;
    size_t plain =
        config_get_count(section, "qk_nope_head_dim", absent->plain, absent->plain);

    layer->latent.query = config_get_count(section, "q_lora_rank", absent->query, 0);
    layer->latent.key =
        config_get_count(section, "kv_lora_rank", absent->key, absent->key);
    layer->latent.shared = config_get_count(section, traits->family->rotation.dims_keys,
                                            absent->rotating, absent->rotating);
    layer->value_size =
        config_get_count(section, "v_head_dim", absent->value, absent->value);
    layer->head_size = plain + layer->latent.shared;
    if (layer->latent.shared % 2 != 0)
        error_keep(section->error, ATTN_E_VALUE,
                   "qk_rope_head_dim is %zu, but rotated numbers come in pairs",
                   layer->latent.shared);
    if (layer->num_kv_heads != layer->num_heads)
        error_keep(section->error, ATTN_E_VALUE,
                   "%s is %zu, but with latent attention it must be the number of "
                   "heads, %zu",
                   traits->family->sizes.kv_keys, layer->num_kv_heads, layer->num_heads);
}

static void check_shared_heads(const struct traits *traits, const struct layer *layer) {
    size_t heads = layer->num_heads;

    if (heads % layer->num_kv_heads != 0)
        error_keep(traits->section->error, ATTN_E_VALUE,
                   "%zu query heads cannot share %zu key heads: their number must "
                   "divide that of query heads",
                   heads, layer->num_kv_heads);
}

static void read_head_sizes(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    const char *own_keys = traits->stack->stack->kv_keys;
    size_t heads = traits->stack->num_heads, width = traits->stack->width;

    layer->num_heads = heads;
    if (family->sizes.kv_rule == HEADS_MULTI_QUERY)
        layer->num_kv_heads = read_multi_query(traits, heads);
    else
        layer->num_kv_heads = config_get_count(
            traits->section, own_keys != NULL ? own_keys : family->sizes.kv_keys,
            family->sizes.kv_heads > 0 ? family->sizes.kv_heads : heads, heads);
    check_shared_heads(traits, layer);

    if (family->weights.split == SPLIT_LATENT) {
        read_latent_sizes(traits, layer);
        return;
    }
    layer->head_size =
        config_get_count(traits->section, family->sizes.head_keys, family->sizes.head, 0);
    if (layer->head_size == 0 && width % heads != 0)
        error_keep(traits->section->error, ATTN_E_VALUE,
                   "%zu heads do not divide the width, which is %zu", heads, width);
    if (layer->head_size == 0)
        layer->head_size = width / heads;
}

/* Reads the size of values, unless latent attention has done so. */
static void read_value_size(const struct traits *traits, struct layer *layer) {
    const struct family_sizes *sizes = &traits->family->sizes;

    if (layer->value_size == 0)
        layer->value_size = config_get_count(traits->section, sizes->value_keys,
                                             sizes->value, layer->head_size);
    if (layer->value_size == 0)
        layer->value_size = layer->head_size;
}

/* Reads sizes of this layer that differ from those of others: from its object in
 * per_layer_config, or by its kind. `sliding` says if it has a window. */
static void read_own_sizes(const struct traits *traits, bool sliding,
                           struct layer *layer) {
    const struct family_sizes *sizes = &traits->family->sizes;
    const struct config_section *section = traits->section;
    const json_t *all = config_find(section, "per_layer_config", NULL);
    struct config_section own = {.error = section->error};
    char number[24];

    if (sizes->full_head_keys == NULL)
        return;
    if (all != NULL && !json_is_null(all)) {
        for (int digits = 1; digits < 6 && own.object == NULL; digits++) {
            snprintf(number, sizeof number, "%0*zu", digits, traits->index);
            own.object = json_object_get(all, number); /* "5", as well as "05" */
        }
        if (!json_is_object(all) || (own.object != NULL && !json_is_object(own.object)))
            error_keep(section->error, ATTN_E_VALUE,
                       "per_layer_config must be an object, with an object for each "
                       "layer that differs");
        layer->num_kv_heads = config_get_count(&own, sizes->kv_keys, layer->num_kv_heads,
                                               layer->num_kv_heads);
        layer->head_size =
            config_get_count(&own, sizes->head_keys, layer->head_size, layer->head_size);
    } else if (!sliding) {
        layer->head_size = config_get_count(section, sizes->full_head_keys,
                                            sizes->full_head, layer->head_size);
        if (layer->keys_are_values)
            layer->num_kv_heads = config_get_count(
                section, sizes->full_kv_keys, layer->num_kv_heads, layer->num_kv_heads);
    }
    check_shared_heads(traits, layer);
}

static double read_scale(const struct traits *traits, size_t head_size) {
    const struct config_section *section = traits->section;
    const struct family_scores *scores = &traits->family->scores;
    double plain = 1 / sqrt((double)head_size), scale = plain;

    switch (scores->scale) {
    case SCALE_HEAD_SIZE:
    case SCALE_YARN: /* depends on the rotation, too */
        break;
    case SCALE_ONE:
        return 1;
    case SCALE_UNLESS_OFF:
    case SCALE_GPT2:
        if (!config_get_bool(section, "scale_attn_weights", true))
            scale = 1;
        if (scores->scale == SCALE_GPT2 &&
            config_get_bool(section, "scale_attn_by_inverse_layer_idx", false))
            scale /= (double)(traits->index + 1);
        break;
    case SCALE_SCALAR:
        return 1 / sqrt(config_get_number(section, "query_pre_attn_scalar", 256, 256));
    case SCALE_KEY:
        scale = scores->scale_otherwise > 0 ? scores->scale_otherwise : plain;
        scale = config_get_number(section, scores->scale_keys, scale, scale);
        break;
    }
    return scale * config_get_number(section, scores->factor_keys, 1, 1);
}

/* Returns whether the layer is causal. */
static bool read_mask(const struct traits *traits) {
    const struct config_section *section = traits->section;
    const struct match *match = traits->match;
    const struct stack *stack = traits->stack->stack;
    bool causal = stack->mask != MASK_NONE;

    if (match->causal != NULL)
        return !stack->cross && strcmp(match->causal, "true") == 0;
    if (stack->mask == MASK_IF_DECODER)
        causal = config_get_bool(section, "is_decoder", traits->family->decodes);
    if (stack->mask == MASK_UNLESS_BIDIRECTIONAL)
        causal = !config_get_bool(section, "use_bidirectional_attention", false);
    if (!causal || stack->mask == MASK_ALWAYS_CAUSAL)
        return causal;
    return config_get_bool(section, "is_causal", match->bidirectional == NULL);
}

/* Reads the window; returns whether the layer has one. */
static bool read_window(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    const char *keys = family->windows.keys, *only_if = family->windows.only_if;
    size_t window = 0, earlier, half;

    if (family->windows.rule == WINDOW_NONE || layer->cross)
        return false;
    const json_t *set = config_find(traits->section, keys, NULL);
    bool listed = family->windows.rule == WINDOW_UNLESS_ROTATED &&
                  kind_count_layers(family, traits->section) > 0;
    bool on = config_get_bool(traits->section, only_if, only_if == NULL) || listed;
    bool zero = on && json_is_number(set) && json_number_value(set) == 0;
    if (on && !zero)
        window = config_get_count(traits->section, keys, family->windows.size, 0);
    earlier = config_get_count(traits->section, family->windows.earlier_keys, 0, 0);
    if (earlier > 0)
        window = earlier + 1;
    half = config_get_count(traits->section, family->windows.half_keys, 0, 0);
    if (half > 0)
        window = 2 * half;
    if (!kind_is_sliding(&traits->kind, zero ? 1 : window))
        return false; /* then a window of 0 hides nothing */

    if (window == 0)
        error_keep(traits->section->error, ATTN_E_VALUE,
                   "layer %zu has sliding attention, but %s is %s", traits->index,
                   on ? keys : only_if,
                   !on    ? "not true"
                   : zero ? "0"
                          : "not set");
    bool by_key = config_get_bool(traits->section, family->windows.halved_if, false);
    layer->window = family->windows.halved || by_key ? window / 2 : window;
    /* half and one, of which the mask by that key alone leaves out the farthest */
    if (by_key)
        layer->window +=
            layer->causal || !config_get_bool(traits->section, "is_causal", true);
    /* a window of half a key on each side is the key itself, which 0 does not mean */
    if (layer->window == 0)
        error_keep(traits->section->error, ATTN_E_VALUE,
                   "%s is %zu, but must be at least 2, since half of it counts", keys,
                   window);
    return true;
}

/* Reads the chunk of keys; a size of null is none. `layer` has its rotation. */
static void read_chunk(const struct traits *traits, struct layer *layer) {
    const struct family_windows *windows = &traits->family->windows;
    size_t chunk =
        config_get_count(traits->section, windows->chunk_keys, windows->chunk, 0);

    if (!kind_is_chunked(&traits->kind, layer->rotation.dims > 0))
        return;
    layer->chunk = chunk;
    if (traits->match->causal == NULL)
        layer->causal = true; /* whatever is_causal says */
    if (chunk == 0 && kind_count_layers(traits->family, traits->section) > 0)
        error_keep(traits->section->error, ATTN_E_VALUE,
                   "layer %zu has chunked attention, but %s is not set", traits->index,
                   windows->chunk_keys);
}

/* Refuses what says another mask, or too little of it, unless that is known. */
static void check_mask(const struct traits *traits, const struct layer *layer) {
    const struct match *match = traits->match;
    const char *causal = "use_bidirectional_attention=false|vision bidirectional=false "
                         "causal=true causal_attention=true use_causal_mask=true";
    const char *others = "bidirectional=true causal=false causal_attention=false "
                         "use_causal_mask=false";
    const char *remedy = "set causal=true or causal=false, whichever it is";

    if (match->causal != NULL || layer->cross)
        return;
    if (match->bidirectional != NULL && layer->window + layer->chunk > 0)
        error_keep(traits->section->error, ATTN_E_UNSUPPORTED,
                   "class %.60s is not causal, but does not say where its window is; set "
                   "causal=false for one on each side",
                   match->bidirectional);
    if (match->text == NULL || !match->text->any_mask)
        config_check_demands(traits->section, layer->causal ? causal : others, remedy);
    if (match->text != NULL)
        config_check_demands(traits->section, match->text->demands, remedy);
}

/* Refuses the eps of another kind of norm, where that of the family is absent and has
 * another default. */
static void check_eps(const struct traits *traits) {
    static const char *const others[] = {"rms_norm_eps", "layer_norm_eps",
                                         "layer_norm_epsilon", "norm_eps"};
    const char *keys = traits->family->norms.eps_keys;

    if (keys == NULL || config_find(traits->section, keys, NULL) != NULL)
        return;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const json_t *other = config_find(traits->section, others[i], NULL);
        if (other != NULL && json_number_value(other) != traits->family->norms.eps)
            error_keep(traits->section->error, ATTN_E_UNSUPPORTED,
                       "config.json has %s, but family %s has %s "
                       "(docs/checkpoints.md#unknown-keys)%s",
                       others[i], traits->family->type, keys, REFUSAL_REMEDY);
    }
}

/* Reads kind and eps of the norms. */
static void read_norms(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    const struct config_section *section = traits->section;
    bool before = traits->stack->stack->norm != NULL || family->norms.bare;
    bool on_heads = family->norms.query != NULL || family->norms.heads_bare;
    bool left_out = family->norms.heads_rotated && layer->rotation.dims == 0;
    check_eps(traits);
    double eps = config_get_number(section, family->norms.eps_keys, family->norms.eps,
                                   family->norms.eps);

    struct layer_norm norm = {.plus_one = family->norms.plus_one, .eps = eps};
    const struct layer_norm of_latents = {.kind = ATTN_NORM_RMS, .eps = LATENT_EPS};

    if (layer->latent.query > 0)
        layer->latent.query_norm = of_latents;
    if (layer->latent.key > 0)
        layer->latent.key_norm = of_latents;
    if (family->norms.before_if != NULL)
        before = config_get_bool(section, family->norms.before_if,
                                 family->norms.before_otherwise);
    norm.kind = family->norms.before;
    norm.bare = family->norms.bare;
    if (before && !(family->norms.before_skips_first && traits->index == 0))
        layer->norm_before = norm;
    layer->value_norm = (struct layer_norm){.kind = family->norms.values, .eps = eps};
    norm.bare = family->norms.heads_bare;

    if (family->norms.heads_if != NULL)
        on_heads = config_get_bool(section, family->norms.heads_if,
                                   family->norms.heads_otherwise);

    norm.kind = ATTN_NORM_RMS;
    if (family->norms.out != NULL)
        layer->out_norm = norm;

    norm.kind = family->norms.heads;
    if (!on_heads || left_out)
        return;
    /* where a family always has them, files may say so by a key of other families */
    config_find(section, "qk_norm", NULL);
    config_find(section, "use_qk_norm", NULL);
    layer->query_norm = layer->key_norm = norm;
    layer->head_norm_whole = family->norms.heads_whole;
    layer->head_norm_each = family->norms.heads_each;
    layer->head_norm_last = family->norms.heads_last;
}

/* Reads what is added by distance. Cross attention has none. */
static void read_distance_bias(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    const struct config_section *section = traits->section;
    struct layer_bias *bias = &layer->bias;

    if (family->distance.kind == ATTN_BIAS_NONE || layer->cross ||
        !config_get_bool(section, family->distance.only_if,
                         family->distance.only_if == NULL))
        return;
    bias->kind = family->distance.kind;
    if (bias->kind != ATTN_BIAS_BUCKETS)
        return;

    bias->both_sides = traits->stack->stack->mask == MASK_NONE;
    bias->table_rows =
        config_get_count(section, "relative_attention_num_buckets",
                         family->distance.buckets, family->distance.buckets);
    bias->max_distance =
        config_get_count(section, family->distance.max_keys, family->distance.farthest,
                         family->distance.farthest);
    bias->num_buckets =
        family->distance.fixed ? family->distance.buckets : bias->table_rows;
    size_t exact = bias->num_buckets / (bias->both_sides ? 4 : 2);
    if (exact == 0 || bias->max_distance <= exact || bias->num_buckets > bias->table_rows)
        error_keep(section->error, ATTN_E_VALUE,
                   "%zu buckets up to distance %zu are not possible", bias->table_rows,
                   bias->max_distance);
}

/* Reads the factor of queries by their position. */
static void read_query_factor(const struct traits *traits, struct layer *layer) {
    const struct family_factor *factor = &traits->family->factor;
    const struct config_section *section = traits->section;

    /* older files of Llama 4 have a number */
    const json_t *set = config_find(section, factor->only_if, NULL);
    bool on = json_is_integer(set) ? json_integer_value(set) != 0
                                   : config_get_bool(section, factor->only_if, true);

    if (factor->rotary) {
        layer->query_factor.beta = layer->rotation.query_beta;
        if (layer->rotation.query_beta > 0)
            layer->query_factor.length = layer->rotation.original_positions;
        return;
    }
    if (factor->beta_keys == NULL || !on ||
        (factor->unrotated && layer->rotation.dims > 0))
        return;
    const json_t *beta = config_find(section, factor->beta_keys, NULL);
    if (json_is_number(beta) && json_number_value(beta) == 0)
        return; /* a factor of 1 */
    layer->query_factor.beta =
        config_get_number(section, factor->beta_keys, factor->beta, factor->beta);
    layer->query_factor.length =
        config_get_count(section, factor->length_keys, factor->length, factor->length);
    layer->query_factor.offset = factor->offset;
}

static bool has_letter(const char *letters, char letter) {
    return letters != NULL && strchr(letters, letter) != NULL;
}

static void read_biases(const struct traits *traits, struct layer_biases *ret_biases) {
    static const char letters[] = "qkvogQK";
    const struct family *family = traits->family;
    bool conditional =
        config_get_bool(traits->section, family->biases.keys,
                        family->biases.keys != NULL && family->biases.otherwise);

    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++) {
        ret_biases->has[i] =
            has_letter(family->biases.always, letters[i]) ||
            (conditional && has_letter(family->biases.if_set, letters[i]));
        ret_biases->optional[i] = has_letter(family->biases.as_stored, letters[i]);
    }
    if (family->biases.output_keys != NULL)
        ret_biases->has[ATTN_OUTPUT] =
            config_get_bool(traits->section, family->biases.output_keys, false);
}

void traits_name(const struct match_stack *stack, size_t index,
                 char ret_part[LAYER_PART_SIZE]) {
    snprintf(ret_part, LAYER_PART_SIZE, "%s%zu%s", stack->part, index,
             stack->stack->cross ? ".cross" : "");
}

attn_status traits_read(const struct match *match, const struct match_stack *stack,
                        size_t index, struct layer *ret_layer,
                        struct layer_biases *ret_biases) {
    const struct family *family = match->family;
    const struct config_section *section = &stack->section;
    const struct traits traits = {match, family,
                                  stack, section,
                                  index, {family, section, stack->num_layers, index}};
    struct layer layer = {
        .family = family->type, .index = index, .cross = stack->stack->cross};

    traits_name(stack, index, layer.part);
    config_check_demands(section, family->demands, "attnd computes nothing else here");
    read_head_sizes(&traits, &layer);
    layer.causal = read_mask(&traits);
    bool sliding = read_window(&traits, &layer);
    if (sliding && family->sizes.kv_sliding > 0) {
        layer.num_kv_heads *= family->sizes.kv_sliding;
        check_shared_heads(&traits, &layer);
    }
    layer.keys_are_values =
        !sliding && config_get_bool(section, family->weights.keys_are_values, false);
    read_own_sizes(&traits, sliding, &layer);
    read_value_size(&traits, &layer);
    layer.scale = read_scale(&traits, layer.head_size);
    layer.lender = kind_find_lender(&traits.kind, sliding, layer.window, &layer.borrows);
    if (!layer.cross && kind_is_rotated(&traits.kind, sliding))
        rotation_read(family, section, layer.head_size, sliding, &layer.rotation);
    if (match->text != NULL && match->text->any_mask &&
        layer.rotation.type == ROTATION_DYNAMIC)
        error_keep(section->error, ATTN_E_UNSUPPORTED,
                   "rope_type is dynamic, but the lengths of this model count from 1, "
                   "which attnd does not do" REFUSAL_REMEDY);
    read_chunk(&traits, &layer);
    check_mask(&traits, &layer);
    if (family->scores.scale == SCALE_YARN)
        layer.scale *= rotation_score_factor(&layer.rotation);
    read_norms(&traits, &layer);
    read_query_factor(&traits, &layer);
    read_distance_bias(&traits, &layer);
    layer.softcap = config_get_number(section, family->scores.softcap_keys,
                                      family->scores.softcap, 0);
    double factor = family->scores.value_factor;
    layer.value_factor = config_get_number(section, family->scores.value_factor_keys,
                                           factor > 0 ? factor : 1, 1);
    layer.clip = config_get_number(section, family->scores.clip_keys, 0, 0);
    layer.clip_last = layer.clip > 0 && family->scores.clip_last;
    read_biases(&traits, ret_biases);
    if (section->error->status == ATTN_OK)
        *ret_layer = layer;
    return section->error->status;
}
