/* SPDX-License-Identifier: Apache-2.0 */
/* rotation.c: reads the rotary parameters of a layer from config.json. Transformers 4
 * writes top-level keys that differ by family, and an object rope_scaling. Transformers 5
 * writes an object rope_parameters, which may hold one object for each type of layer. */
#include "weights/families/rotation.h"

#include "base/error.h"
#include "weights/layer/frequencies.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where rotary parameters are looked up. */
struct rotation_source {
    const struct family *family;
    const struct config_section *section; /* which may have an object of parameters */
    struct config_section inside;         /* that object; empty when there is none */
    bool sliding;
    attn_error *error; /* section->error */
};

/* Refuses what is not an object, in which a type of layer may have one of its own. */
static void check_object(const struct rotation_source *source, const char *name,
                         const json_t *value) {
    const json_t *const values[] = {value, json_object_get(value, "full_attention"),
                                    json_object_get(value, "sliding_attention")};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i] != NULL && !json_is_object(values[i]) && !json_is_null(values[i]))
            error_keep(
                source->error, ATTN_E_VALUE,
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
    bool by_type = false;

    if (source->family->rotation.plain)
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
    by_type = full != NULL || sliding != NULL;
    if (by_type && source->family->rotation.null_base)
        error_keep(source->error, ATTN_E_UNSUPPORTED,
                   "rotary parameters by type of layer make this family's class rotate "
                   "nothing; give rope_theta directly in rope_parameters");
    if (by_type)
        return source->sliding ? sliding : full;
    /* the family says if an object for all layers scales those with their own base */
    bool own = source->sliding && source->family->rotation.local_base > 0;
    return own && !source->family->rotation.local_scaled ? NULL : found;
}

/* Returns a number of the object that the rope_type requires. */
static double read_needed(const struct rotation_source *source, const char *key) {
    double number = config_get_number(&source->inside, key, 0, 0);

    if (number == 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "%s is missing, but this rope_type needs it", key);
    return number;
}

/* Returns `key` of the object, else `beside` of the section, else the default. */
static double read_either(const struct rotation_source *source, const char *key,
                          const char *beside, double otherwise) {
    double number = config_get_number(&source->inside, key, 0, 0);

    return number > 0 ? number
                      : config_get_number(source->section, beside, otherwise, otherwise);
}

/* Returns R, how many numbers of a head are rotated. */
static size_t read_rotation_dims(const struct rotation_source *source, size_t head_size) {
    const struct family_rotation *family = &source->family->rotation;
    const char *dims_keys = family->dims_keys, *beside = family->part_keys;
    size_t dims = config_get_count(source->section, dims_keys, family->dims, 0);
    double part = read_either(source, "partial_rotary_factor",
                              beside != NULL ? beside : "partial_rotary_factor", 0);

    if (dims_keys != NULL && (beside == NULL || (part == 0 && dims > 0))) {
        dims = dims > 0 ? dims : head_size;
    } else {
        part = part > 0 ? part : beside != NULL ? family->part : 1;
        if (beside == NULL && part != 1)
            error_keep(source->error, ATTN_E_UNSUPPORTED,
                       "partial_rotary_factor is %g, but this family rotates whole heads",
                       part);
        dims = part <= 1 ? (size_t)((double)head_size * part) : 0;
        dims -= family->rounds_part ? dims % 2 : 0;
    }

    if (dims == 0 || dims > head_size || dims % 2 != 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "the rotated part of a head of size %zu would be %zu numbers, but "
                   "must be even and within the head",
                   head_size, dims);
    return dims;
}

/* Reads how many pairs have their position from each axis. */
static void read_sections(const struct rotation_source *source,
                          struct layer_rotation *rotation) {
    const struct family_rotation *family = &source->family->rotation;
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
            source->error, ATTN_E_VALUE,
            "mrope_section%s must be a list of 3 numbers whose sum is %zu: half of "
            "the rotated part of a head",
            listed ? "" : " is missing, and", pairs);
}

/* Reads the grid of patches. The class token comes first, then the registers. */
static void read_grid(const struct rotation_source *source,
                      struct layer_rotation *rotation) {
    const struct config_section *section = source->section;
    size_t image = config_get_count(section, "image_size", 224, 224);
    size_t patch = config_get_count(section, "patch_size", 16, 16);

    rotation->grid = image / patch;
    rotation->grid_first = 1 + config_get_index(section, "num_register_tokens", 0);
    if (rotation->grid == 0 || rotation->dims % 4 != 0)
        error_keep(
            source->error, ATTN_E_VALUE,
            "patch_size %zu must be within image_size %zu, and heads of size %zu a "
            "multiple of 4",
            patch, image, rotation->dims);
}

/* Returns the rope_type. Older files of some families use another name for longrope. */
static enum layer_rotation_type read_rotation_type(const struct rotation_source *source) {
    const char *type = config_get_text(&source->inside, "rope_type,type", "default");

    if (wordlist_has(source->family->rotation.longrope_alias, type))
        type = "longrope";
    if (source->family->rotation.sections != SECTIONS_NONE && strcmp(type, "mrope") == 0)
        type = "default"; /* an older word for sections alone */
    for (size_t i = ROTATION_DEFAULT; i <= ROTATION_PROPORTIONAL; i++) {
        if (strcmp(rotation_type_name((enum layer_rotation_type)i), type) == 0)
            return (enum layer_rotation_type)i;
    }
    error_keep(source->error, ATTN_E_UNSUPPORTED,
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
        source->section, "max_position_embeddings n_positions,max_seq_len", 0, 0);
    rotation->original_positions =
        config_get_count(source->section, original, source->family->rotation.original, 0);
    if (rotation->original_positions == 0)
        rotation->original_positions = config_get_count(
            &source->inside, original, rotation->max_positions, rotation->max_positions);

    if (rotation->type == ROTATION_DYNAMIC ? rotation->max_positions == 0
                                           : rotation->original_positions == 0)
        error_keep(source->error, ATTN_E_VALUE,
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
        error_keep(source->error, ATTN_E_VALUE,
                   "%s must be a list of %zu numbers larger than 0: half of the rotated "
                   "part of a head",
                   key, count);
    return list;
}

static void read_llama3(const struct rotation_source *source,
                        struct layer_rotation *rotation) {
    rotation->factor = read_needed(source, "factor");
    rotation->low_freq_factor = read_needed(source, "low_freq_factor");
    rotation->high_freq_factor = read_needed(source, "high_freq_factor");
    if (rotation->high_freq_factor < rotation->low_freq_factor)
        error_keep(source->error, ATTN_E_VALUE,
                   "high_freq_factor is %g, but must not be less than low_freq_factor",
                   rotation->high_freq_factor);
}

/* Reads the factor by which scaling extends sequences. When it is absent, the factor
 * follows from the numbers of positions. */
static void read_extension(const struct rotation_source *source,
                           struct layer_rotation *rotation) {
    rotation->factor = config_get_number(&source->inside, "factor", 0, 0);
    if (rotation->factor == 0 && rotation->max_positions == 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "factor and max_position_embeddings are missing, but this rope_type "
                   "needs one of them");
}

/* Returns a number of the object, or 0 where it is absent or 0. */
static double read_if_set(const struct config_section *inside, const char *key) {
    const json_t *value = config_find(inside, key, NULL);
    bool zero = json_is_number(value) && json_number_value(value) == 0;

    return zero ? 0 : config_get_number(inside, key, 0, 0);
}

/* Reads the factor of queries, whose length is that before scaling. */
static void read_query_beta(const struct rotation_source *source,
                            struct layer_rotation *rotation) {
    static const char beta[] = "llama_4_scaling_beta";
    static const char original[] = "original_max_position_embeddings";
    const struct config_section *inside = &source->inside;

    rotation->query_beta = read_if_set(inside, beta);
    if (rotation->original_positions == 0)
        rotation->original_positions = config_get_count(inside, original, 0, 0);
    if (config_find(inside, beta, NULL) == NULL ||
        (rotation->query_beta > 0 && rotation->original_positions == 0))
        error_keep(source->error, ATTN_E_VALUE,
                   "%s or %s is missing beside rope_type, but this family needs both",
                   beta, original);
}

static void read_yarn(const struct rotation_source *source,
                      struct layer_rotation *rotation) {
    const struct config_section *inside = &source->inside;

    read_extension(source, rotation);
    rotation->beta_fast = config_get_number(inside, "beta_fast", 32, 32);
    rotation->beta_slow = config_get_number(inside, "beta_slow", 1, 1);
    rotation->truncate = config_get_bool(inside, "truncate", true);
    rotation->attention_factor = config_get_number(inside, "attention_factor", 0, 0);
    rotation->mscale = read_if_set(inside, "mscale");
    rotation->mscale_all_dim = read_if_set(inside, "mscale_all_dim");
}

static void read_longrope(const struct rotation_source *source,
                          struct layer_rotation *rotation) {
    read_extension(source, rotation);
    rotation->attention_factor =
        config_get_number(&source->inside, "attention_factor", 0, 0);
    rotation->short_factors = read_factors(source, "short_factor", rotation->dims / 2);
    rotation->long_factors = read_factors(source, "long_factor", rotation->dims / 2);
}

/* Reads the parameters that the rope_type has. */
static void read_rotation_scaling(const struct rotation_source *source,
                                  struct layer_rotation *rotation) {
    bool of_lengths = rotation->type != ROTATION_DEFAULT &&
                      rotation->type != ROTATION_LINEAR &&
                      rotation->type != ROTATION_PROPORTIONAL;

    if (of_lengths)
        read_rotation_lengths(source, rotation);

    switch (rotation->type) {
    case ROTATION_DEFAULT:
        break;
    case ROTATION_LINEAR:
    case ROTATION_DYNAMIC:
        rotation->factor = read_needed(source, "factor");
        break;
    case ROTATION_PROPORTIONAL:
        rotation->factor = config_get_number(&source->inside, "factor", 1, 1);
        break;
    case ROTATION_LLAMA3:
        read_llama3(source, rotation);
        break;
    case ROTATION_YARN:
        read_yarn(source, rotation);
        break;
    case ROTATION_LONGROPE:
        read_longrope(source, rotation);
        break;
    }
}

/* Reads which pairs of a whole head turn: the first ones, by their share. */
static void read_turning(const struct rotation_source *source, size_t head_size,
                         struct layer_rotation *rotation) {
    double part = config_get_number(&source->inside, "partial_rotary_factor",
                                    source->family->rotation.part_turning, 1);

    if (part > 1 || head_size % 2 != 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "partial_rotary_factor is %g of a head of size %zu, but must be at "
                   "most 1, and the size even",
                   part, head_size);
    rotation->dims = head_size;
    rotation->turning = (size_t)(fmin(part, 1) * (double)head_size / 2);
}

/* With "alpha" the base of a dynamic rotation is the same for all lengths. */
static void read_alpha(const struct rotation_source *source,
                       struct layer_rotation *rotation) {
    double size = (double)rotation->dims;

    if (!source->family->rotation.alpha || rotation->type != ROTATION_DYNAMIC)
        return;
    double alpha = config_get_number(&source->inside, "alpha", 0, 0);
    if (alpha == 0 || rotation->dims <= 2)
        return;
    rotation->type = ROTATION_DEFAULT;
    rotation->base *= pow(alpha, size / (size - 2));
}

/* Returns whether the family rotates, and its condition KEY=VALUE, if any, holds. */
static bool is_rotated(const struct family *family,
                       const struct config_section *section) {
    const char *condition = family->rotation.only_if;
    char key[64];

    if (!family->rotation.rotates || condition == NULL)
        return family->rotation.rotates;
    size_t size = strcspn(condition, "=");
    snprintf(key, sizeof key, "%.*s", (int)size, condition);
    const json_t *value = config_find(section, key, NULL);
    /* an absent key counts as false, or as a text that differs from the wanted one */
    const char *wanted = condition + size + 1;
    if (strcmp(wanted, "false") == 0)
        return !json_is_true(value);
    return json_is_string(value) && strcmp(json_string_value(value), wanted) == 0;
}

/* Returns whether config.json gives null for the base, in the object or beside it. */
static bool is_base_null(const struct rotation_source *source) {
    const json_t *inside = json_object_get(source->inside.object, "rope_theta");
    const json_t *beside =
        config_find(source->section, source->family->rotation.base_keys, NULL);

    return json_is_null(inside != NULL ? inside : beside);
}

void rotation_read(const struct family *family, const struct config_section *section,
                   size_t head_size, bool sliding, struct layer_rotation *ret_rotation) {
    struct rotation_source source = {
        .family = family,
        .section = section,
        .inside = {.error = section->error, .asked = section->asked},
        .sliding = sliding,
        .error = section->error};
    bool local = sliding && family->rotation.local_base > 0;

    /* known to the family, also where this layer does not rotate by them */
    config_find(section, family->rotation.base_keys, NULL);
    config_find(section, family->rotation.local_keys, NULL);
    *ret_rotation = (struct layer_rotation){.dims = 0};
    if (!is_rotated(family, section))
        return;
    if (local &&
        json_is_null(json_object_get(section->object, family->rotation.local_keys)))
        error_keep(section->error, ATTN_E_VALUE,
                   "%s is null; versions of transformers disagree on what that is: "
                   "give it a number",
                   family->rotation.local_keys);

    source.inside.object = find_rotation_object(&source);
    if (family->rotation.null_base && is_base_null(&source))
        return;
    if (source.inside.object == NULL && family->rotation.unset != NULL && !local)
        *ret_rotation = *family->rotation.unset;
    ret_rotation->interleaved = config_get_bool(
        section, family->rotation.interleaved_keys, family->rotation.interleaved);
    ret_rotation->backward = family->rotation.backward;
    ret_rotation->values = config_get_bool(section, family->rotation.values_if, false);
    if (ret_rotation->base == 0)
        ret_rotation->base =
            read_either(&source, "rope_theta",
                        local ? family->rotation.local_keys : family->rotation.base_keys,
                        local ? family->rotation.local_base : family->rotation.base);
    if (source.inside.object != NULL)
        ret_rotation->type = read_rotation_type(&source);
    if (ret_rotation->type == ROTATION_PROPORTIONAL)
        read_turning(&source, head_size, ret_rotation);
    else
        ret_rotation->dims = read_rotation_dims(&source, head_size);
    if (family->rotation.sections != SECTIONS_NONE)
        read_sections(&source, ret_rotation);
    if (family->rotation.grid)
        read_grid(&source, ret_rotation);
    read_alpha(&source, ret_rotation);
    if (source.inside.object != NULL)
        read_rotation_scaling(&source, ret_rotation);
    if (source.inside.object != NULL && family->factor.rotary)
        read_query_beta(&source, ret_rotation);
}
