/* SPDX-License-Identifier: Apache-2.0 */
/* rotation.c: reads the rotary parameters of a layer from config.json. Transformers 4
 * writes top-level keys that differ by family, and an object rope_scaling. Transformers 5
 * writes an object rope_parameters, which may hold one object for each type of layer. */
#include "weights/families/rotation.h"

#include "base/error.h"
#include "weights/layer/frequencies.h"

#include <math.h>
#include <string.h>

/* Where rotary parameters are looked up. */
struct rotation_source {
    const struct family_rotation *family;
    const struct config_section *section; /* which may have an object of parameters */
    struct config_section inside;         /* that object; empty when there is none */
    bool sliding;
};

/* Refuses what is not an object, in which a type of layer may have one of its own. */
static void check_object(const struct rotation_source *source, const char *name,
                         const json_t *value) {
    const json_t *const values[] = {value, json_object_get(value, "full_attention"),
                                    json_object_get(value, "sliding_attention")};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i] != NULL && !json_is_object(values[i]) && !json_is_null(values[i]))
            error_keep(
                source->inside.error, ATTN_E_VALUE,
                "%s must be an object, such as {\"rope_type\": \"default\"}, and so "
                "must those of layer types in it",
                name);
    }
}

/* Returns rope_scaling or rope_parameters for this type of layer. Returns NULL when both
 * are absent or empty. */
static const json_t *find_rotation_object(const struct rotation_source *source) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const json_t *found = NULL;

    if (source->family->plain)
        return NULL;
    for (size_t i = 0; i < 2 && found == NULL; i++) {
        const json_t *value = json_object_get(source->section->override, names[i]);
        if (value == NULL)
            value = json_object_get(source->section->object, names[i]);
        check_object(source, names[i], value);
        if (json_is_object(value) && json_object_size(value) > 0)
            found = value;
    }

    const json_t *full = json_object_get(found, "full_attention");
    const json_t *sliding = json_object_get(found, "sliding_attention");
    if (full != NULL || sliding != NULL)
        return source->sliding ? sliding : full;
    /* the family says if an object for all layers scales those with their own base */
    bool own = source->sliding && source->family->local_base > 0;
    return own && !source->family->local_scaled ? NULL : found;
}

/* Returns a number of the object that the rope_type requires. */
static double read_needed(const struct rotation_source *source, const char *key) {
    double number = config_get_number(&source->inside, key, 0);

    if (number == 0)
        error_keep(source->inside.error, ATTN_E_VALUE,
                   "%s is missing, but this rope_type needs it", key);
    return number;
}

/* Returns `key` of the object, else `beside` of the section, else the default. */
static double read_either(const struct rotation_source *source, const char *key,
                          const char *beside, double otherwise) {
    double number = config_get_number(&source->inside, key, 0);

    return number > 0 ? number : config_get_number(source->section, beside, otherwise);
}

/* Returns R, how many numbers of a head are rotated. */
static size_t read_rotation_dims(const struct rotation_source *source, size_t head_size) {
    const struct family_rotation *family = source->family;
    const char *dims_keys = family->dims_keys, *beside = family->part_keys;
    size_t dims = config_get_count(source->section, dims_keys, 0);
    double part = read_either(source, "partial_rotary_factor",
                              beside != NULL ? beside : "partial_rotary_factor", 0);

    if (dims_keys != NULL && (beside == NULL || (part == 0 && dims > 0)))
        return dims > 0 ? dims : head_size;
    part = part > 0 ? part : beside != NULL ? family->part : 1;
    if (beside == NULL && part != 1)
        error_keep(source->inside.error, ATTN_E_UNSUPPORTED,
                   "partial_rotary_factor is %g, but this family rotates whole heads",
                   part);
    return part <= 1 ? (size_t)((double)head_size * part) : 0;
}

/* Reads how many pairs have their position from each axis. */
static void read_sections(const struct rotation_source *source,
                          struct layer_rotation *rotation) {
    const struct family_rotation *family = source->family;
    const json_t *list = json_object_get(source->inside.object, "mrope_section");
    bool listed = list != NULL && !json_is_null(list);
    bool good = !listed || json_array_size(list) == ATTN_AXES;
    size_t pairs = rotation->dims / 2, sum = 0;

    rotation->sections = family->sections;
    for (size_t axis = 0; good && axis < ATTN_AXES; axis++) {
        const json_t *item = json_array_get(list, axis);
        json_int_t size = listed ? json_integer_value(item) : family->section_sizes[axis];
        good = (!listed || json_is_integer(item)) && size >= 0 &&
               size <= (json_int_t)CONFIG_COUNT_MAX;
        rotation->section_sizes[axis] = good ? (size_t)size : 0;
        sum += rotation->section_sizes[axis];
    }
    /* Turns of the family's own lengths end with the pairs. */
    bool fits = sum == pairs || (!listed && family->sections == SECTIONS_INTERLEAVED);
    if (!good || !fits)
        error_keep(
            source->inside.error, ATTN_E_VALUE,
            "mrope_section%s must be a list of 3 numbers whose sum is %zu: half of "
            "the rotated part of a head",
            listed ? "" : " is missing, and", pairs);
}

/* Returns the rope_type. Older files of some families use other words for it. */
static enum layer_rotation_type read_rotation_type(const struct rotation_source *source) {
    const char *type = config_get_text(&source->inside, "rope_type,type", "default");
    const char *word = source->family->words;
    size_t size = strlen(type);

    while (word != NULL && (strncmp(word, type, size) != 0 || word[size] != '='))
        word = strchr(word, ' ') != NULL ? strchr(word, ' ') + 1 : NULL;
    const char *meant = word != NULL ? word + size + 1 : type;
    for (size_t i = ROTATION_DEFAULT; i <= ROTATION_PROPORTIONAL; i++) {
        const char *name = rotation_type_name((enum layer_rotation_type)i);
        size_t end = word != NULL ? strcspn(meant, " ") : size;
        if (strlen(name) == end && strncmp(name, meant, end) == 0)
            return (enum layer_rotation_type)i;
    }
    error_keep(source->inside.error, ATTN_E_UNSUPPORTED,
               "rope_type '%.40s' is unknown; known are default, linear, dynamic, "
               "llama3, yarn, longrope and proportional",
               type);
    return ROTATION_DEFAULT;
}

/* Reads how many positions the model has, and how many it had before scaling. */
static void read_rotation_lengths(const struct rotation_source *source,
                                  struct layer_rotation *rotation) {
    static const char original[] = "original_max_position_embeddings";

    rotation->max_positions = config_get_count(
        source->section, "max_position_embeddings n_positions,max_seq_len", 0);
    if (config_is_null(source->section, original))
        rotation->original_positions = 0;
    rotation->original_positions =
        config_get_count(source->section, original, rotation->original_positions);
    if (rotation->original_positions == 0)
        rotation->original_positions =
            config_get_count(&source->inside, original, rotation->max_positions);

    if (rotation->type == ROTATION_DYNAMIC ? rotation->max_positions == 0
                                           : rotation->original_positions == 0)
        error_keep(source->inside.error, ATTN_E_VALUE,
                   "max_position_embeddings is missing, but this rope_type needs it");
}

/* Returns a list of `count` numbers, borrowed. */
static const json_t *read_factors(const struct rotation_source *source, const char *key,
                                  size_t count) {
    const json_t *list = json_object_get(source->inside.object, key);
    bool good = json_array_size(list) == count;

    for (size_t i = 0; good && i < count; i++) {
        double number = json_number_value(json_array_get(list, i));
        good = number > 0 && isfinite(number);
    }
    if (!good)
        error_keep(source->inside.error, ATTN_E_VALUE,
                   "%s must be a list of %zu numbers larger than 0: half of the rotated "
                   "part of a head",
                   key, count);
    return list;
}

/* Returns a number of the object, or 0 where it is absent or 0. */
static double read_if_set(const struct config_section *inside, const char *key) {
    const json_t *value = config_find(inside, key, NULL);
    bool zero = json_is_number(value) && json_number_value(value) == 0;

    return zero ? 0 : config_get_number(inside, key, 0);
}

/* Reads the factor of queries, whose length is that before scaling. */
static void read_query_beta(const struct rotation_source *source,
                            struct layer_rotation *rotation) {
    static const char beta[] = "llama_4_scaling_beta";
    static const char original[] = "original_max_position_embeddings";
    const struct config_section *inside = &source->inside;

    rotation->query_beta = read_if_set(inside, beta);
    if (rotation->original_positions == 0)
        rotation->original_positions = config_get_count(inside, original, 0);
    if (config_find(inside, beta, NULL) == NULL ||
        (rotation->query_beta > 0 && rotation->original_positions == 0))
        error_keep(source->inside.error, ATTN_E_VALUE,
                   "%s or %s is missing beside rope_type, but this family needs both",
                   beta, original);
}

static void read_llama3(const struct rotation_source *source,
                        struct layer_rotation *rotation) {
    rotation->low_freq_factor = read_needed(source, "low_freq_factor");
    rotation->high_freq_factor = read_needed(source, "high_freq_factor");
    if (rotation->high_freq_factor < rotation->low_freq_factor)
        error_keep(source->inside.error, ATTN_E_VALUE,
                   "high_freq_factor is %g, but must not be less than low_freq_factor",
                   rotation->high_freq_factor);
}

static void read_yarn(const struct config_section *inside,
                      struct layer_rotation *rotation) {
    rotation->beta_fast = config_get_number(inside, "beta_fast", 32);
    rotation->beta_slow = config_get_number(inside, "beta_slow", 1);
    rotation->truncate = config_get_bool(inside, "truncate=true");
    rotation->mscale = read_if_set(inside, "mscale");
    rotation->mscale_all_dim = read_if_set(inside, "mscale_all_dim");
}

/* Reads the parameters that the rope_type has. Where yarn and longrope have no factor, it
 * follows from the numbers of positions. */
static void read_scaling(const struct rotation_source *source,
                         struct layer_rotation *rotation) {
    const struct config_section *inside = &source->inside;
    enum layer_rotation_type type = rotation->type;
    bool extends = type == ROTATION_YARN || type == ROTATION_LONGROPE;

    if (type == ROTATION_DEFAULT)
        return;
    if (extends || type == ROTATION_DYNAMIC || type == ROTATION_LLAMA3)
        read_rotation_lengths(source, rotation);
    if (extends || type == ROTATION_PROPORTIONAL)
        rotation->factor = config_get_number(inside, "factor", extends ? 0 : 1);
    else
        rotation->factor = read_needed(source, "factor");
    if (rotation->factor == 0 && rotation->max_positions == 0)
        error_keep(inside->error, ATTN_E_VALUE,
                   "factor and max_position_embeddings are missing, but this rope_type "
                   "needs one of them");

    if (type == ROTATION_LLAMA3)
        read_llama3(source, rotation);
    if (type == ROTATION_YARN)
        read_yarn(inside, rotation);
    if (extends)
        rotation->attention_factor = config_get_number(inside, "attention_factor", 0);
    if (type != ROTATION_LONGROPE)
        return;
    rotation->short_factors = read_factors(source, "short_factor", rotation->dims / 2);
    rotation->long_factors = read_factors(source, "long_factor", rotation->dims / 2);
}

/* Reads which pairs of a whole head turn: the first ones, by their share. */
static void read_turning(const struct rotation_source *source, size_t head_size,
                         struct layer_rotation *rotation) {
    static const char key[] = "partial_rotary_factor";
    bool own = source->family->part > 0 && !config_is_null(&source->inside, key);
    double part = config_get_number(&source->inside, key, own ? source->family->part : 1);

    if (part > 1 || head_size % 2 != 0)
        error_keep(source->inside.error, ATTN_E_VALUE,
                   "partial_rotary_factor is %g of a head of size %zu, but must be at "
                   "most 1, and the size even",
                   part, head_size);
    rotation->dims = head_size;
    rotation->turning = (size_t)(fmin(part, 1) * (double)head_size / 2);
}

void rotation_read(const struct layer_source *layer, size_t head_size,
                   struct layer_rotation *ret_rotation) {
    const struct family_rotation *family = &layer->family->rotation;
    const struct config_section *section = layer->section;
    struct rotation_source source = {
        .family = family,
        .section = section,
        .inside = {.error = section->error, .asked = section->asked},
        .sliding = layer->window > 0};
    bool local = source.sliding && family->local_base > 0;

    *ret_rotation = (struct layer_rotation){.dims = 0};
    if (family->base == 0)
        return;
    /* known to the family, also where this layer does not rotate by them */
    config_find(section, family->base_keys, NULL);
    config_find(section, family->local_keys, NULL);
    if (local && json_is_null(json_object_get(section->object, family->local_keys)))
        error_keep(section->error, ATTN_E_VALUE,
                   "%s is null; versions of transformers disagree on what that is: "
                   "give it a number",
                   family->local_keys);

    source.inside.object = find_rotation_object(&source);
    if (source.inside.object == NULL && family->unset != NULL && !local)
        *ret_rotation = *family->unset;
    ret_rotation->interleaved = config_get_bool(section, family->interleaved);
    if (ret_rotation->base == 0)
        ret_rotation->base = read_either(&source, "rope_theta",
                                         local ? family->local_keys : family->base_keys,
                                         local ? family->local_base : family->base);
    if (source.inside.object != NULL)
        ret_rotation->type = read_rotation_type(&source);
    if (ret_rotation->type == ROTATION_PROPORTIONAL)
        read_turning(&source, head_size, ret_rotation);
    else
        ret_rotation->dims = read_rotation_dims(&source, head_size);
    if (family->original_positions > 0)
        ret_rotation->original_positions = family->original_positions;
    if (family->adjust != NULL)
        family->adjust(layer, &source.inside, ret_rotation);
    size_t dims = ret_rotation->dims;
    if (ret_rotation->type != ROTATION_PROPORTIONAL &&
        (dims == 0 || dims > head_size || dims % 2 != 0))
        error_keep(section->error, ATTN_E_VALUE,
                   "the rotated part of a head of size %zu would be %zu numbers, but "
                   "must be even and within the head",
                   head_size, dims);
    if (family->sections != SECTIONS_NONE)
        read_sections(&source, ret_rotation);
    if (source.inside.object != NULL)
        read_scaling(&source, ret_rotation);
    if (source.inside.object != NULL && family->query_beta)
        read_query_beta(&source, ret_rotation);
}
