/* SPDX-License-Identifier: Apache-2.0 */
/* traits.c: applies the table of families to config.json. */
#include "weights/families/traits.h"

#include "base/error.h"
#include "weights/families/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What all functions here read from. */
struct traits {
    const struct family *family;
    const struct match_stack *stack;
    const struct config_section *section;
    size_t index;
    attn_error *ret_error;
};

/* Falcon's: key heads of their own in the new architecture, else one or all. */
static attn_status read_multi_query(const struct traits *traits, size_t num_heads,
                                    size_t *ret_kv_heads) {
    bool is_new, multi_query;
    attn_status status = config_get_bool(traits->section, "new_decoder_architecture",
                                         false, &is_new, traits->ret_error);
    if (status == ATTN_OK)
        status = config_get_bool(traits->section, "multi_query", true, &multi_query,
                                 traits->ret_error);
    if (status != ATTN_OK)
        return status;
    if (is_new)
        return config_get_count(traits->section, traits->family->kv_keys, num_heads,
                                num_heads, ret_kv_heads, traits->ret_error);
    *ret_kv_heads = multi_query ? 1 : num_heads;
    return ATTN_OK;
}

static attn_status read_head_sizes(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    size_t heads = traits->stack->num_heads, width = traits->stack->width;
    attn_status status = ATTN_OK;

    layer->num_heads = layer->num_kv_heads = heads;
    if (family->kv_rule == HEADS_MULTI_QUERY)
        status = read_multi_query(traits, heads, &layer->num_kv_heads);
    else if (family->kv_keys != NULL)
        status = config_get_count(traits->section, family->kv_keys,
                                  family->kv_heads > 0 ? family->kv_heads : heads, heads,
                                  &layer->num_kv_heads, traits->ret_error);
    if (status != ATTN_OK)
        return status;
    if (heads % layer->num_kv_heads != 0)
        return error_set(traits->ret_error, ATTN_E_VALUE,
                         "%zu query heads cannot share %zu key heads: their number must "
                         "divide that of query heads",
                         heads, layer->num_kv_heads);

    layer->head_size = family->head_size;
    if (family->head_size_keys != NULL)
        status =
            config_get_count(traits->section, family->head_size_keys, family->head_size,
                             0, &layer->head_size, traits->ret_error);
    if (status != ATTN_OK || layer->head_size > 0)
        return status;
    if (width % heads != 0)
        return error_set(traits->ret_error, ATTN_E_VALUE,
                         "%zu heads do not divide the width, which is %zu", heads, width);
    layer->head_size = width / heads;
    return ATTN_OK;
}

static attn_status read_gpt2_scale(const struct traits *traits, struct layer *layer) {
    bool scaled, by_index;
    attn_status status = config_get_bool(traits->section, "scale_attn_weights", true,
                                         &scaled, traits->ret_error);
    if (status == ATTN_OK)
        status = config_get_bool(traits->section, "scale_attn_by_inverse_layer_idx",
                                 false, &by_index, traits->ret_error);
    if (status != ATTN_OK)
        return status;
    if (!scaled)
        layer->scale = 1;
    if (by_index)
        layer->scale /= (double)(traits->index + 1);
    return ATTN_OK;
}

static attn_status read_scale(const struct traits *traits, struct layer *layer) {
    double plain = 1 / sqrt((double)layer->head_size), scalar;
    attn_status status;

    layer->scale = plain;
    switch (traits->family->scale) {
    case SCALE_HEAD_SIZE:
        break;
    case SCALE_ONE:
        layer->scale = 1;
        break;
    case SCALE_GPT2:
        return read_gpt2_scale(traits, layer);
    case SCALE_SCALAR:
        status = config_get_number(traits->section, "query_pre_attn_scalar", 256, 256,
                                   &scalar, traits->ret_error);
        if (status != ATTN_OK)
            return status;
        layer->scale = 1 / sqrt(scalar);
        break;
    case SCALE_MPT:
        return config_get_number(traits->section, "attn_config.softmax_scale", plain,
                                 plain, &layer->scale, traits->ret_error);
    }
    return ATTN_OK;
}

static attn_status read_mask(const struct traits *traits, struct layer *layer) {
    const char *key = NULL;
    bool flag = false, otherwise = false;

    switch (traits->stack->stack->mask) {
    case MASK_NONE:
        break;
    case MASK_CAUSAL:
        otherwise = true;
        break;
    case MASK_IF_DECODER:
        key = "is_decoder";
        break;
    case MASK_UNLESS_BIDIRECTIONAL:
        key = "use_bidirectional_attention";
        otherwise = true;
        break;
    }
    if (key != NULL) {
        attn_status status =
            config_get_bool(traits->section, key, false, &flag, traits->ret_error);
        if (status != ATTN_OK)
            return status;
    }
    layer->causal = flag != otherwise;
    return ATTN_OK;
}

/* Reads one word of layer_types. */
static attn_status read_layer_type(const struct traits *traits, const json_t *types,
                                   bool *ret_sliding) {
    const char *type = json_string_value(json_array_get(types, traits->index));

    if (json_array_size(types) < traits->stack->num_layers || type == NULL)
        return error_set(traits->ret_error, ATTN_E_VALUE,
                         "layer_types must be a list of a text for each of %zu layers",
                         traits->stack->num_layers);
    *ret_sliding = strcmp(type, "sliding_attention") == 0;
    if (*ret_sliding || strcmp(type, "full_attention") == 0)
        return ATTN_OK;
    return error_set(traits->ret_error, ATTN_E_UNSUPPORTED,
                     "layer_types has '%.40s' for layer %zu; attnd computes "
                     "full_attention and sliding_attention",
                     type, traits->index);
}

/* Reads attention_types, [[["global", "local"], 12]]: kinds, and how often they are
 * repeated. */
static attn_status read_gpt_neo_type(const struct traits *traits, bool *ret_local) {
    const json_t *groups = json_object_get(traits->section->object, "attention_types");
    size_t first = 0, i;
    json_t *group;

    if (groups == NULL || json_is_null(groups)) {
        *ret_local = traits->index % 2 == 1;
        return ATTN_OK;
    }
    json_array_foreach(groups, i, group) {
        const json_t *kinds = json_array_get(group, 0);
        json_int_t times = json_integer_value(json_array_get(group, 1));
        size_t count = json_array_size(kinds);
        if (count == 0 || times < 1 || times > (json_int_t)CONFIG_COUNT_MAX)
            break;
        if (traits->index - first >= count * (size_t)times) {
            first += count * (size_t)times;
            continue;
        }

        const char *kind =
            json_string_value(json_array_get(kinds, (traits->index - first) % count));
        *ret_local = kind != NULL && strcmp(kind, "local") == 0;
        if (*ret_local || (kind != NULL && strcmp(kind, "global") == 0))
            return ATTN_OK;
        break;
    }
    return error_set(traits->ret_error, ATTN_E_VALUE,
                     "attention_types must say global or local for layer %zu, as in "
                     "[[[\"global\", \"local\"], 12]]",
                     traits->index);
}

/* Qwen's rules, which max_window_layers belongs to. `window` is 0 where none is used. */
static attn_status find_qwen_sliding(const struct traits *traits, size_t window,
                                     bool *ret_sliding) {
    size_t number;
    attn_status status = config_get_index(traits->section, "max_window_layers", 28,
                                          &number, traits->ret_error);
    if (status != ATTN_OK)
        return status;
    if (traits->family->window_rule == WINDOW_QWEN)
        *ret_sliding = window > 0 && traits->index >= number;
    else
        *ret_sliding = window > 0 && traits->index < number && traits->index % 2 == 0;
    return ATTN_OK;
}

/* Finds whether the layer has a window, by the rule of its family. `window` is the one
 * that such layers have, or 0. */
static attn_status find_sliding(const struct traits *traits, size_t window,
                                bool *ret_sliding) {
    const struct family *family = traits->family;
    const json_t *types;
    size_t period = family->period;

    if (family->window_rule == WINDOW_ALL) {
        *ret_sliding = window > 0;
        return ATTN_OK;
    }
    if (family->window_rule == WINDOW_GPT_NEO)
        return read_gpt_neo_type(traits, ret_sliding);

    attn_status status =
        config_find(traits->section, "layer_types", &types, NULL, traits->ret_error);
    if (status != ATTN_OK)
        return status;
    if (types != NULL && !json_is_null(types))
        return read_layer_type(traits, types, ret_sliding);
    if (family->window_rule == WINDOW_QWEN || family->window_rule == WINDOW_QWEN2_MOE)
        return find_qwen_sliding(traits, window, ret_sliding);
    if (family->period_keys != NULL)
        status = config_get_count(traits->section, family->period_keys, period, period,
                                  &period, traits->ret_error);
    size_t number = traits->index + (family->window_rule == WINDOW_UNLESS_NTH);
    *ret_sliding = number % period != 0;
    return status;
}

static attn_status read_window(const struct traits *traits, struct layer *layer,
                               bool *ret_sliding) {
    const struct family *family = traits->family;
    size_t window = 0;
    bool used = true;
    attn_status status = ATTN_OK;

    *ret_sliding = false;
    if (family->window_rule == WINDOW_NONE)
        return ATTN_OK;
    if (family->window_if != NULL)
        status = config_get_bool(traits->section, family->window_if, false, &used,
                                 traits->ret_error);
    if (status == ATTN_OK && used)
        status = config_get_count(traits->section, family->window_keys, family->window, 0,
                                  &window, traits->ret_error);
    if (status == ATTN_OK)
        status = find_sliding(traits, window, ret_sliding);
    if (status != ATTN_OK || !*ret_sliding)
        return status;
    if (window == 0)
        return error_set(traits->ret_error, ATTN_E_VALUE,
                         "layer %zu has sliding attention, but %s is not set",
                         traits->index, family->window_keys);
    layer->window = layer->causal ? window : window / 2;
    /* a window of half a key on each side is the key itself, which 0 does not mean */
    if (layer->window == 0)
        return error_set(traits->ret_error, ATTN_E_VALUE,
                         "%s is %zu, but must be at least 2 without a causal mask",
                         family->window_keys, window);
    return ATTN_OK;
}

/* Reads kind and eps of the norms. */
static attn_status read_norms(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    bool before = traits->stack->stack->norm != NULL, on_heads;
    double eps = family->norm_eps;
    attn_status status = ATTN_OK;

    if (family->norm_eps_keys != NULL)
        status = config_get_number(traits->section, family->norm_eps_keys, eps, eps, &eps,
                                   traits->ret_error);
    if (status == ATTN_OK && family->norm_if != NULL)
        status = config_get_bool(traits->section, family->norm_if, family->norm_otherwise,
                                 &before, traits->ret_error);
    if (status != ATTN_OK)
        return status;
    if (before && !(family->norm_skips_first && traits->index == 0))
        layer->norm_before = (struct layer_norm){.kind = family->norm_kind, .eps = eps};

    on_heads = family->query_norm != NULL;
    if (family->head_norm_if != NULL)
        status = config_get_bool(traits->section, family->head_norm_if, false, &on_heads,
                                 traits->ret_error);
    if (status != ATTN_OK || !on_heads)
        return status;
    layer->query_norm = (struct layer_norm){.kind = family->head_norm_kind, .eps = eps};
    layer->key_norm = layer->query_norm;
    layer->head_norm_whole = family->head_norm_whole;
    return ATTN_OK;
}

/* Reads what is added by distance. Cross attention has none. */
static attn_status read_distance_bias(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    struct layer_bias *bias = &layer->bias;
    bool present = family->bias_kind != BIAS_NONE && !layer->cross;
    attn_status status = ATTN_OK;

    if (present && family->bias_kind_if != NULL)
        status = config_get_bool(traits->section, family->bias_kind_if, false, &present,
                                 traits->ret_error);
    if (status != ATTN_OK || !present)
        return status;

    bias->kind = family->bias_kind;
    if (bias->kind != BIAS_BUCKETS)
        return ATTN_OK;
    bias->both_sides = !layer->causal;
    bias->max_distance = family->bias_distance;
    status = config_get_count(traits->section, "relative_attention_num_buckets",
                              family->bias_buckets, family->bias_buckets,
                              &bias->table_rows, traits->ret_error);
    if (status == ATTN_OK && family->bias_max_keys != NULL)
        status = config_get_count(traits->section, family->bias_max_keys,
                                  family->bias_distance, family->bias_distance,
                                  &bias->max_distance, traits->ret_error);
    if (status != ATTN_OK)
        return status;
    bias->num_buckets = family->bias_fixed ? family->bias_buckets : bias->table_rows;
    size_t exact = bias->num_buckets / (bias->both_sides ? 4 : 2);
    if (exact == 0 || bias->max_distance <= exact || bias->num_buckets > bias->table_rows)
        return error_set(traits->ret_error, ATTN_E_VALUE,
                         "%zu buckets up to distance %zu are not possible",
                         bias->table_rows, bias->max_distance);
    return ATTN_OK;
}

static attn_status read_limits(const struct traits *traits, struct layer *layer) {
    const struct family *family = traits->family;
    attn_status status = ATTN_OK;

    if (family->softcap_keys != NULL)
        status = config_get_number(traits->section, family->softcap_keys, family->softcap,
                                   0, &layer->softcap, traits->ret_error);
    if (status == ATTN_OK && family->clip_keys != NULL)
        status = config_get_number(traits->section, family->clip_keys, 0, 0, &layer->clip,
                                   traits->ret_error);
    return status;
}

static attn_status read_biases(const struct traits *traits,
                               struct layer_biases *ret_biases) {
    static const char letters[] = "qkvo";
    const struct family *family = traits->family;
    bool conditional = false;
    attn_status status = ATTN_OK;

    if (family->bias_keys != NULL)
        status = config_get_bool(traits->section, family->bias_keys, family->bias,
                                 &conditional, traits->ret_error);
    for (size_t i = 0; i < NUM_LAYER_LINEARS; i++)
        ret_biases->has[i] =
            (family->bias_always != NULL && strchr(family->bias_always, letters[i])) ||
            (conditional && strchr(family->bias_if, letters[i]) != NULL);
    return status;
}

void traits_name(const struct match_stack *stack, size_t index,
                 char ret_part[LAYER_PART_SIZE]) {
    snprintf(ret_part, LAYER_PART_SIZE, "%s%zu%s", stack->stack->part, index,
             stack->stack->cross ? ".cross" : "");
}

attn_status traits_read(const struct match *match, const struct match_stack *stack,
                        size_t index, struct layer *ret_layer,
                        struct layer_biases *ret_biases, attn_error *ret_error) {
    const struct traits traits = {.family = match->family,
                                  .stack = stack,
                                  .section = &stack->section,
                                  .index = index,
                                  .ret_error = ret_error};
    struct layer layer = {.family = match->family->type, .index = index};
    bool sliding = false;

    layer.cross = stack->stack->cross;
    traits_name(stack, index, layer.part);
    attn_status status =
        config_check_demands(traits.section, match->family->demands, ret_error);
    if (status == ATTN_OK)
        status = read_head_sizes(&traits, &layer);
    if (status == ATTN_OK)
        status = read_scale(&traits, &layer);
    if (status == ATTN_OK)
        status = read_mask(&traits, &layer);
    if (status == ATTN_OK)
        status = read_window(&traits, &layer, &sliding);
    if (status == ATTN_OK)
        status = rope_read(match->family, traits.section, layer.head_size, sliding,
                           &layer.rope, ret_error);
    if (status == ATTN_OK)
        status = read_norms(&traits, &layer);
    if (status == ATTN_OK)
        status = read_distance_bias(&traits, &layer);
    if (status == ATTN_OK)
        status = read_limits(&traits, &layer);
    if (status == ATTN_OK)
        status = read_biases(&traits, ret_biases);
    if (status == ATTN_OK)
        *ret_layer = layer;
    return status;
}
