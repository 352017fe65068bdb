/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c: files of transformers 4 have keys of each family at the top, and rope_scaling;
 * those of version 5 have rope_parameters, which may hold one object for each type of
 * layer. */
#include "weights/families/rope.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where rotary parameters are looked up. */
struct rope_source {
    const struct family *family;
    const struct config_section *section; /* the keys beside the object */
    struct config_section inside;         /* the object; empty when there is none */
    bool sliding;
    attn_error *ret_error;
};

/* Returns the object of this type of layer, or NULL; an empty one counts as none. */
static const json_t *find_rope_object(const struct rope_source *source) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const json_t *found = NULL;
    bool by_type = false;

    if (source->family->rope_plain)
        return NULL;
    for (size_t i = 0; i < 2 && found == NULL; i++) {
        const json_t *value = json_object_get(source->section->override, names[i]);
        if (value == NULL)
            value = json_object_get(source->section->object, names[i]);
        if (json_is_object(value) && json_object_size(value) > 0)
            found = value;
    }

    const json_t *full = json_object_get(found, "full_attention");
    const json_t *sliding = json_object_get(found, "sliding_attention");
    by_type = full != NULL || sliding != NULL;
    if (by_type)
        return source->sliding ? sliding : full;
    /* an object for all layers does not scale those that have a base of their own */
    bool own = source->sliding && source->family->rope_local_base > 0;
    return own && !source->family->rope_local_scaled ? NULL : found;
}

/* Reads a number of the object alone; 0 when it is absent or null. */
static attn_status read_inside(const struct rope_source *source, const char *key,
                               double otherwise, double *ret_number) {
    return config_get_number(&source->inside, key, otherwise, otherwise, ret_number,
                             source->ret_error);
}

/* Reads a number of the object that its type cannot do without. */
static attn_status read_needed(const struct rope_source *source, const char *key,
                               double *ret_number) {
    attn_status status = read_inside(source, key, 0, ret_number);
    if (status != ATTN_OK || *ret_number > 0)
        return status;
    return error_set(source->ret_error, ATTN_E_VALUE,
                     "%s is missing, but this rope_type needs it", key);
}

/* Reads a number of the object, else one beside it, else the default. */
static attn_status read_either(const struct rope_source *source, const char *key,
                               const char *beside, double otherwise, double *ret_number) {
    attn_status status = read_inside(source, key, 0, ret_number);
    if (status != ATTN_OK || *ret_number > 0)
        return status;
    *ret_number = otherwise;
    if (beside == NULL)
        return ATTN_OK;
    return config_get_number(source->section, beside, otherwise, otherwise, ret_number,
                             source->ret_error);
}

/* Reads R, how many numbers of a head are rotated. */
static attn_status read_rope_dims(const struct rope_source *source, size_t head_size,
                                  struct layer_rope *rope) {
    const struct family *family = source->family;
    double part = 1;
    attn_status status;

    if (family->rope_dims_keys != NULL) {
        status =
            config_get_count(source->section, family->rope_dims_keys, family->rope_dims,
                             head_size, &rope->dims, source->ret_error);
    } else {
        const char *beside = family->rope_part_keys;
        status = read_either(source, "partial_rotary_factor",
                             beside != NULL ? beside : "partial_rotary_factor",
                             beside != NULL ? family->rope_part : 1, &part);
        if (status == ATTN_OK && beside == NULL && part != 1)
            return error_set(source->ret_error, ATTN_E_UNSUPPORTED,
                             "partial_rotary_factor is %g, but this family rotates "
                             "whole heads",
                             part);
        rope->dims = part <= 1 ? (size_t)((double)head_size * part) : 0;
    }

    if (status == ATTN_OK &&
        (rope->dims == 0 || rope->dims > head_size || rope->dims % 2 != 0))
        return error_set(
            source->ret_error, ATTN_E_VALUE,
            "the rotated part of a head of size %zu would be %zu numbers, but "
            "must be even and within the head",
            head_size, rope->dims);
    return status;
}

/* Finds the type; the words of older files mean what they meant there. */
static attn_status read_rope_type(const struct rope_source *source,
                                  struct layer_rope *rope) {
    static const char *const names[] = {
        [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear",
        [ROPE_DYNAMIC] = "dynamic", [ROPE_LLAMA3] = "llama3",
        [ROPE_YARN] = "yarn",       [ROPE_LONGROPE] = "longrope",
    };
    const char *type;
    attn_status status = config_get_text(&source->inside, "rope_type,type", "default",
                                         &type, source->ret_error);
    if (status != ATTN_OK)
        return status;

    if (family_words_have(source->family->longrope_alias, type))
        type = "longrope";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], type) != 0)
            continue;
        rope->type = (enum layer_rope_type)i;
        return ATTN_OK;
    }
    return error_set(source->ret_error, ATTN_E_UNSUPPORTED,
                     "rope_type '%.40s' is unknown; known are default, linear, dynamic, "
                     "llama3, yarn and longrope",
                     type);
}

/* Reads the lengths that the scaling depends on. */
static attn_status read_rope_lengths(const struct rope_source *source,
                                     struct layer_rope *rope) {
    attn_status status =
        config_get_count(source->section, "max_position_embeddings n_positions", 0, 0,
                         &rope->max_positions, source->ret_error);
    if (status == ATTN_OK)
        status = config_get_count(source->section, "original_max_position_embeddings", 0,
                                  0, &rope->original_positions, source->ret_error);
    if (status == ATTN_OK && rope->original_positions == 0)
        status = config_get_count(&source->inside, "original_max_position_embeddings",
                                  rope->max_positions, rope->max_positions,
                                  &rope->original_positions, source->ret_error);
    if (status != ATTN_OK)
        return status;

    if (rope->type == ROPE_DYNAMIC ? rope->max_positions == 0
                                   : rope->original_positions == 0)
        return error_set(
            source->ret_error, ATTN_E_VALUE,
            "max_position_embeddings is missing, but this rope_type needs it");
    return ATTN_OK;
}

/* Reads a list of R/2 numbers. */
static attn_status read_factors(const struct rope_source *source, const char *key,
                                size_t count, const json_t **ret_factors) {
    const json_t *list = json_object_get(source->inside.object, key);
    bool good = json_array_size(list) == count;

    for (size_t i = 0; good && i < count; i++) {
        double number = json_number_value(json_array_get(list, i));
        good = number > 0 && isfinite(number);
    }
    if (!good)
        return error_set(source->ret_error, ATTN_E_VALUE,
                         "%s must be a list of %zu numbers larger than 0: half of the "
                         "rotated part of a head",
                         key, count);
    *ret_factors = list;
    return ATTN_OK;
}

static attn_status read_llama3(const struct rope_source *source,
                               struct layer_rope *rope) {
    attn_status status = read_needed(source, "factor", &rope->factor);
    if (status == ATTN_OK)
        status = read_needed(source, "low_freq_factor", &rope->low_freq_factor);
    if (status == ATTN_OK)
        status = read_needed(source, "high_freq_factor", &rope->high_freq_factor);
    if (status == ATTN_OK && rope->high_freq_factor <= rope->low_freq_factor)
        return error_set(
            source->ret_error, ATTN_E_VALUE,
            "high_freq_factor is %g, but must be larger than low_freq_factor",
            rope->high_freq_factor);
    return status;
}

/* Reads how much longer sequences may be; or else the lengths tell. */
static attn_status read_extension(const struct rope_source *source,
                                  struct layer_rope *rope) {
    attn_status status = read_inside(source, "factor", 0, &rope->factor);
    if (status == ATTN_OK && rope->factor == 0 && rope->max_positions == 0)
        return error_set(source->ret_error, ATTN_E_VALUE,
                         "factor and max_position_embeddings are missing, but this "
                         "rope_type needs one of them");
    return status;
}

static attn_status read_yarn(const struct rope_source *source, struct layer_rope *rope) {
    attn_status status = read_extension(source, rope);
    if (status == ATTN_OK)
        status = read_inside(source, "beta_fast", 32, &rope->beta_fast);
    if (status == ATTN_OK)
        status = read_inside(source, "beta_slow", 1, &rope->beta_slow);
    if (status == ATTN_OK)
        status = config_get_bool(&source->inside, "truncate", true, &rope->truncate,
                                 source->ret_error);
    if (status == ATTN_OK)
        status = read_inside(source, "attention_factor", 0, &rope->attention_factor);
    if (status == ATTN_OK)
        status = read_inside(source, "mscale", 0, &rope->mscale);
    if (status == ATTN_OK)
        status = read_inside(source, "mscale_all_dim", 0, &rope->mscale_all_dim);
    return status;
}

static attn_status read_longrope(const struct rope_source *source,
                                 struct layer_rope *rope) {
    attn_status status = read_extension(source, rope);
    if (status == ATTN_OK)
        status = read_inside(source, "attention_factor", 0, &rope->attention_factor);
    if (status == ATTN_OK)
        status =
            read_factors(source, "short_factor", rope->dims / 2, &rope->short_factors);
    if (status == ATTN_OK)
        status = read_factors(source, "long_factor", rope->dims / 2, &rope->long_factors);
    return status;
}

/* Reads the parameters of the type. */
static attn_status read_rope_scaling(const struct rope_source *source,
                                     struct layer_rope *rope) {
    attn_status status = ATTN_OK;

    if (rope->type == ROPE_DEFAULT)
        return ATTN_OK;
    if (rope->type != ROPE_LINEAR)
        status = read_rope_lengths(source, rope);
    if (status != ATTN_OK)
        return status;
    switch (rope->type) {
    case ROPE_LLAMA3:
        return read_llama3(source, rope);
    case ROPE_YARN:
        return read_yarn(source, rope);
    case ROPE_LONGROPE:
        return read_longrope(source, rope);
    case ROPE_DEFAULT:
    case ROPE_LINEAR:
    case ROPE_DYNAMIC:
        break;
    }
    return read_needed(source, "factor", &rope->factor);
}

/* Returns whether KEY=VALUE of the family holds, or there is no such condition. */
static attn_status is_rotated(const struct family *family,
                              const struct config_section *section, bool *ret_rotated,
                              attn_error *ret_error) {
    const char *condition = family->rope_if;
    const json_t *value = NULL;
    char key[64];

    *ret_rotated = family->rotates;
    if (!family->rotates || condition == NULL)
        return ATTN_OK;
    size_t size = strcspn(condition, "=");
    snprintf(key, sizeof key, "%.*s", (int)size, condition);
    attn_status status = config_find(section, key, &value, NULL, ret_error);
    if (status != ATTN_OK)
        return status;
    /* absent, a flag is false, and a word is another one */
    const char *wanted = condition + size + 1;
    if (strcmp(wanted, "false") == 0)
        *ret_rotated = !json_is_true(value);
    else
        *ret_rotated =
            json_is_string(value) && strcmp(json_string_value(value), wanted) == 0;
    return ATTN_OK;
}

attn_status rope_read(const struct family *family, const struct config_section *section,
                      size_t head_size, bool sliding, struct layer_rope *ret_rope,
                      attn_error *ret_error) {
    struct layer_rope rope = {.interleaved = family->rope_interleaved};
    struct rope_source source = {
        .family = family, .section = section, .sliding = sliding, .ret_error = ret_error};
    bool rotated, local = sliding && family->rope_local_base > 0;

    attn_status status = is_rotated(family, section, &rotated, ret_error);
    if (status != ATTN_OK || !rotated) {
        *ret_rope = (struct layer_rope){.dims = 0};
        return status;
    }
    if (local && json_is_null(json_object_get(section->object, family->rope_local_keys)))
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s is null; versions of transformers disagree on what that is: "
                         "give it a number",
                         family->rope_local_keys);
    source.inside.object = find_rope_object(&source);
    if (source.inside.object == NULL && family->rope_unset != NULL)
        rope = *family->rope_unset;

    status = read_either(&source, "rope_theta",
                         local ? family->rope_local_keys : family->rope_base_keys,
                         local ? family->rope_local_base : family->rope_base, &rope.base);
    if (status == ATTN_OK)
        status = read_rope_dims(&source, head_size, &rope);
    if (status == ATTN_OK && source.inside.object != NULL)
        status = read_rope_type(&source, &rope);
    if (status == ATTN_OK && source.inside.object != NULL)
        status = read_rope_scaling(&source, &rope);
    if (status == ATTN_OK)
        *ret_rope = rope;
    return status;
}
