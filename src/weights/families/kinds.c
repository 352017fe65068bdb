/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.c: reads kinds of layers from lists and periods of config.json. */
#include "weights/families/kinds.h"

#include "base/error.h"

#include <string.h>

static const char *types_keys(const struct family *family) {
    return family->layers.types_keys != NULL ? family->layers.types_keys : "layer_types";
}

static bool is_given(const json_t *value) {
    return value != NULL && !json_is_null(value);
}

size_t kind_count_layers(const struct family *family,
                         const struct config_section *section) {
    return family->layers.without == NULL
               ? 0
               : json_array_size(config_find(section, types_keys(family), NULL));
}

/* Returns the word of a list of types for the layer; "" after an error. */
static const char *read_type(const struct layer_source *layer, const json_t *types) {
    const char *type = json_string_value(json_array_get(types, layer->index));

    if (json_array_size(types) >= layer->num_layers && type != NULL)
        return type;
    error_keep(layer->section->error, ATTN_E_VALUE,
               "%s must be a list of a text for each of %zu layers",
               types_keys(layer->family), layer->num_layers);
    return "";
}

/* Returns whether the layer is in a list of numbers; after an error it is. */
static bool has_number(const struct layer_source *layer, const json_t *list) {
    size_t i;
    json_t *item;

    if (!json_is_array(list) || json_array_size(list) > layer->num_layers) {
        error_keep(layer->section->error, ATTN_E_VALUE,
                   "%s must be a list of numbers, at most one for each of %zu layers",
                   layer->family->layers.list_keys, layer->num_layers);
        return true;
    }
    json_array_foreach(list, i, item) {
        if (json_is_integer(item) && json_integer_value(item) == (json_int_t)layer->index)
            return true;
    }
    return false;
}

bool kind_attends(const struct layer_source *layer) {
    const struct family_layers *layers = &layer->family->layers;
    const json_t *list = config_find(layer->section, layers->list_keys, NULL);
    const json_t *types = NULL;

    if (layers->without != NULL)
        types = config_find(layer->section, types_keys(layer->family), NULL);
    if (is_given(types))
        return !wordlist_has(layers->without, read_type(layer, types));
    if (is_given(list))
        return has_number(layer, list);
    if (layers->attends != NULL)
        return layers->attends(layer);
    if (layers->period_keys == NULL)
        return true;
    size_t period = config_get_count(layer->section, layers->period_keys,
                                     config_default(layers->period_keys, 1));
    return layer->index % period ==
           (layers->last ? period - 1
                         : config_get_index(layer->section, layers->offset_keys));
}

bool kind_is_listed(const struct layer_source *layer, const char *wanted, bool *ret_is) {
    const json_t *types = config_find(layer->section, types_keys(layer->family), NULL);

    if (!is_given(types))
        return false;
    const char *type = read_type(layer, types);
    *ret_is = strcmp(type, wanted) == 0;
    if (!*ret_is && type[0] != '\0' && !wordlist_has("full_attention attention", type))
        error_keep(layer->section->error, ATTN_E_UNSUPPORTED,
                   "layer_types has '%.40s' for layer %zu; attnd computes "
                   "full_attention and %s",
                   type, layer->index, wanted);
    return true;
}

bool kind_slides(const struct layer_source *layer) {
    const struct family_windows *windows = &layer->family->windows;
    bool slides;

    if (windows->slides == NULL)
        return layer->window > 0;
    return kind_is_listed(layer, "sliding_attention", &slides) ? slides
                                                               : windows->slides(layer);
}

bool kind_slides_in_period(const struct layer_source *layer) {
    const char *keys = layer->family->windows.period_keys;
    size_t begin = layer->family->windows.first ? 0 : 1; /* the number of layer 0 */
    const char *text = json_string_value(config_find(layer->section, keys, NULL));

    if (text != NULL && text[0] != '\0')
        return text[layer->index % strlen(text)] == 'L';
    size_t period = config_get_count(layer->section, keys, config_default(keys, 1));
    return (layer->index + begin) % period != 0;
}
