/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.c: reads kinds of layers from lists, patterns and periods of config.json. */
#include "weights/families/kinds.h"

#include "base/error.h"

#include <string.h>

/* Returns whether layers of the family differ by the words of layer_types. */
static bool has_types(const struct family *family) {
    enum family_window rule = family->windows.rule;
    return family->layers.without != NULL || family->windows.chunk_keys != NULL ||
           (rule != WINDOW_NONE && rule != WINDOW_ALL && rule != WINDOW_GPT_NEO);
}

/* Looks up the words; others than has_types() are not known to have asked for them. */
static const json_t *find_types(const struct family *family,
                                const struct config_section *section) {
    const char *keys = family->layers.types_keys;
    struct config_section source = *section;

    if (!has_types(family))
        source.asked = NULL;
    return config_find(&source, keys != NULL ? keys : "layer_types", NULL);
}

static bool is_given(const json_t *value) {
    return value != NULL && !json_is_null(value);
}

size_t kind_count_layers(const struct family *family,
                         const struct config_section *section) {
    return json_array_size(find_types(family, section));
}

/* Returns the word of a list of types for the layer; "" after an error. */
static const char *read_type(const struct kind_source *layer, const json_t *types) {
    const char *type = json_string_value(json_array_get(types, layer->index));
    const char *keys = layer->family->layers.types_keys;

    if (json_array_size(types) >= layer->num_layers && type != NULL)
        return type;
    error_keep(layer->section->error, ATTN_E_VALUE,
               "%s must be a list of a text for each of %zu layers",
               keys != NULL ? keys : "layer_types", layer->num_layers);
    return "";
}

/* Returns whether `index` is in a list of numbers. */
static bool has_number(const json_t *list, size_t index) {
    size_t i;
    json_t *item;

    json_array_foreach(list, i, item) {
        if (json_is_integer(item) && json_integer_value(item) == (json_int_t)index)
            return true;
    }
    return false;
}

static size_t get_period(const struct kind_source *layer, const char *keys) {
    return config_get_count(layer->section, keys, config_default(keys, 1));
}

bool kind_attends(const struct kind_source *layer) {
    const struct family_layers *layers = &layer->family->layers;
    const json_t *types = find_types(layer->family, layer->section);
    const json_t *list = config_find(layer->section, layers->list_keys, NULL);
    const char *pattern = config_get_text(layer->section, layers->pattern_keys, NULL);

    if (is_given(types) && layers->without != NULL)
        return !wordlist_has(layers->without, read_type(layer, types));
    if (is_given(list)) {
        if (!json_is_array(list) || json_array_size(list) > layer->num_layers)
            error_keep(layer->section->error, ATTN_E_VALUE,
                       "%s must be a list of numbers, at most one for each of %zu layers",
                       layers->list_keys, layer->num_layers);
        else
            return has_number(list, layer->index);
        return true; /* looks no further */
    }
    if (pattern != NULL)
        return strnlen(pattern, layer->index + 1) > layer->index &&
               pattern[layer->index] == '*';
    if (layers->period_keys == NULL)
        return true;
    size_t period = get_period(layer, layers->period_keys), offset = layers->offset;
    if (layers->offset_keys != NULL)
        offset = config_get_index(layer->section, layers->offset_keys);
    if (layers->last)
        offset = period - 1;
    return layer->index % period == offset;
}

/* Returns whether the word of layer_types is `wanted`; else it must be a full layer. */
static bool is_type(const struct kind_source *layer, const json_t *types,
                    const char *wanted) {
    const char *type = read_type(layer, types);
    bool is_wanted = strcmp(type, wanted) == 0;

    if (!is_wanted && type[0] != '\0' && !wordlist_has("full_attention attention", type))
        error_keep(layer->section->error, ATTN_E_UNSUPPORTED,
                   "layer_types has '%.40s' for layer %zu; attnd computes "
                   "full_attention and %s",
                   type, layer->index, wanted);
    return is_wanted;
}

/* Returns whether the layer is local by attention_types, [[["global", "local"], 12]]:
 * kinds, and how often they are repeated. */
static bool is_gpt_neo_local(const struct kind_source *layer) {
    const json_t *groups = config_find(layer->section, "attention_types", NULL);
    size_t first = 0, i;
    json_t *group;

    if (!is_given(groups))
        return layer->index % 2 == 1;
    json_array_foreach(groups, i, group) {
        const json_t *kinds = json_array_get(group, 0);
        json_int_t times = json_integer_value(json_array_get(group, 1));
        size_t count = json_array_size(kinds);
        if (count == 0 || times < 1 || times > (json_int_t)CONFIG_COUNT_MAX)
            break;
        if (layer->index - first >= count * (size_t)times) {
            first += count * (size_t)times;
            continue;
        }

        const char *kind =
            json_string_value(json_array_get(kinds, (layer->index - first) % count));
        if (kind != NULL && (strcmp(kind, "local") == 0 || strcmp(kind, "global") == 0))
            return strcmp(kind, "local") == 0;
        break;
    }
    error_keep(layer->section->error, ATTN_E_VALUE,
               "attention_types must say global or local for layer %zu, as in "
               "[[[\"global\", \"local\"], 12]]",
               layer->index);
    return false;
}

/* Returns whether the layer slides by its number: every period-th does not. A text such
 * as "LLLG" has L for layers that do. */
static bool slides_by_number(const struct kind_source *layer) {
    const struct family_windows *windows = &layer->family->windows;
    const char *text =
        json_string_value(config_find(layer->section, windows->period_keys, NULL));

    if (text != NULL && text[0] != '\0')
        return text[layer->index % strlen(text)] == 'L';
    size_t period = get_period(layer, windows->period_keys);
    return (layer->index + (windows->rule == WINDOW_UNLESS_NTH)) % period != 0 &&
           !(windows->skips_first && layer->index == 0);
}

bool kind_is_sliding(const struct kind_source *layer, size_t window) {
    const struct family_windows *windows = &layer->family->windows;
    const json_t *types = find_types(layer->family, layer->section);
    size_t index = layer->index;

    if (windows->rule == WINDOW_ALL)
        return window > 0;
    if (windows->skips_last && index + 1 == layer->num_layers)
        return false;
    if (windows->rule == WINDOW_GPT_NEO)
        return is_gpt_neo_local(layer);
    if (is_given(types))
        return is_type(layer, types, "sliding_attention");

    size_t number = config_get_index(layer->section, windows->from_keys);
    switch (windows->rule) {
    case WINDOW_QWEN:
        return window > 0 && index >= number;
    case WINDOW_QWEN2_MOE:
        return window > 0 && index < number && index % 2 == 0;
    case WINDOW_BY_TYPE:
        return window > 0;
    case WINDOW_UNLESS_ROTATED:
        return window > 0 && !kind_is_rotated(layer, false);
    default:
        /* a null window means full layers only where that is how the family says so */
        return (window > 0 || layer->family->rotation.layers != ROTATED_UNLESS_FULL) &&
               slides_by_number(layer);
    }
}

bool kind_is_chunked(const struct kind_source *layer, bool rotated) {
    const json_t *types = find_types(layer->family, layer->section);

    if (layer->family->windows.chunk_keys == NULL)
        return false;
    return is_given(types) ? is_type(layer, types, "chunked_attention") : rotated;
}

/* Returns whether a list has 1 for the layer; without a list, every period-th has 0. */
static bool is_rotated_by_list(const struct kind_source *layer) {
    const json_t *list = config_find(layer->section, "no_rope_layers", NULL);
    const json_t *item = json_array_get(list, layer->index);

    if (!is_given(list) || (json_is_array(list) && json_array_size(list) == 0)) {
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

bool kind_is_rotated(const struct kind_source *layer, bool sliding) {
    const struct family_windows *windows = &layer->family->windows;

    switch (layer->family->rotation.layers) {
    case ROTATED_ALL:
        break;
    case ROTATED_SLIDING:
        return sliding;
    case ROTATED_UNLESS_FULL:
        return sliding || config_get_count(layer->section, windows->keys, 0) == 0;
    case ROTATED_LISTED:
        return is_rotated_by_list(layer);
    }
    return true;
}

size_t kind_find_lender(const struct kind_source *layer, bool sliding, size_t window,
                        bool *ret_borrows) {
    const struct family_borrowing *borrowing = &layer->family->borrowing;
    const struct config_section *section = layer->section;
    struct kind_source lender = *layer;

    *ret_borrows = false;
    if (borrowing->count_keys == NULL)
        return layer->index;
    size_t count = config_get_index(section, borrowing->count_keys);
    if (count >= layer->num_layers) {
        error_keep(section->error, ATTN_E_VALUE,
                   "%.*s is %zu, but must be less than %zu, the number of layers",
                   (int)strcspn(borrowing->count_keys, "="), borrowing->count_keys, count,
                   layer->num_layers);
        return layer->index;
    }

    *ret_borrows = layer->index >= layer->num_layers - count;
    if (!*ret_borrows)
        return layer->index;
    for (lender.index = layer->num_layers - count; lender.index-- > 0;) {
        if (kind_is_sliding(&lender, window) == sliding)
            return lender.index;
    }
    error_keep(section->error, ATTN_E_VALUE,
               "layer %zu takes keys of an earlier layer of its kind, but there is none "
               "before the last %zu; correct %.*s or layer_types",
               layer->index, count, (int)strcspn(borrowing->count_keys, "="),
               borrowing->count_keys);
    return 0;
}
