/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c: files of transformers 4 have keys of each family at the top, and rope_scaling;
 * those of version 5 have rope_parameters, which may hold one object for each type of
 * layer. */
#include "weights/families/rope.h"

#include "base/error.h"
#include "weights/families/model/rotation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where rotary parameters are looked up. */
struct rope_source {
    const struct family *family;
    const struct config_section *section; /* the keys beside the object */
    struct config_section inside;         /* the object; empty when there is none */
    bool sliding;
    attn_error *error; /* that of `section` */
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

/* Returns a number of the object that its type cannot do without. */
static double read_needed(const struct rope_source *source, const char *key) {
    double number = config_get_number(&source->inside, key, 0, 0);

    if (number == 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "%s is missing, but this rope_type needs it", key);
    return number;
}

/* Returns a number of the object, else one beside it, else the default. */
static double read_either(const struct rope_source *source, const char *key,
                          const char *beside, double otherwise) {
    double number = config_get_number(&source->inside, key, 0, 0);

    return number > 0 ? number
                      : config_get_number(source->section, beside, otherwise, otherwise);
}

/* Returns R, how many numbers of a head are rotated. */
static size_t read_rope_dims(const struct rope_source *source, size_t head_size) {
    const struct family *family = source->family;
    size_t dims;

    if (family->rope_dims_keys != NULL) {
        dims = config_get_count(source->section, family->rope_dims_keys,
                                family->rope_dims, head_size);
    } else {
        const char *beside = family->rope_part_keys;
        double part = read_either(source, "partial_rotary_factor",
                                  beside != NULL ? beside : "partial_rotary_factor",
                                  beside != NULL ? family->rope_part : 1);
        if (beside == NULL && part != 1)
            error_keep(source->error, ATTN_E_UNSUPPORTED,
                       "partial_rotary_factor is %g, but this family rotates whole heads",
                       part);
        dims = part <= 1 ? (size_t)((double)head_size * part) : 0;
    }

    if (dims == 0 || dims > head_size || dims % 2 != 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "the rotated part of a head of size %zu would be %zu numbers, but "
                   "must be even and within the head",
                   head_size, dims);
    return dims;
}

/* Finds the type; the words of older files mean what they meant there. */
static enum layer_rope_type read_rope_type(const struct rope_source *source) {
    const char *type = config_get_text(&source->inside, "rope_type,type", "default");

    if (family_words_have(source->family->longrope_alias, type))
        type = "longrope";
    for (size_t i = ROPE_DEFAULT; i <= ROPE_LONGROPE; i++) {
        if (strcmp(rotation_type_name((enum layer_rope_type)i), type) == 0)
            return (enum layer_rope_type)i;
    }
    error_keep(source->error, ATTN_E_UNSUPPORTED,
               "rope_type '%.40s' is unknown; known are default, linear, dynamic, "
               "llama3, yarn and longrope",
               type);
    return ROPE_DEFAULT;
}

/* Reads the lengths that the scaling depends on. */
static void read_rope_lengths(const struct rope_source *source, struct layer_rope *rope) {
    static const char original[] = "original_max_position_embeddings";

    rope->max_positions =
        config_get_count(source->section, "max_position_embeddings n_positions", 0, 0);
    rope->original_positions = config_get_count(source->section, original, 0, 0);
    if (rope->original_positions == 0)
        rope->original_positions = config_get_count(
            &source->inside, original, rope->max_positions, rope->max_positions);

    if (rope->type == ROPE_DYNAMIC ? rope->max_positions == 0
                                   : rope->original_positions == 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "max_position_embeddings is missing, but this rope_type needs it");
}

/* Returns a list of `count` numbers, borrowed. */
static const json_t *read_factors(const struct rope_source *source, const char *key,
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

static void read_llama3(const struct rope_source *source, struct layer_rope *rope) {
    rope->factor = read_needed(source, "factor");
    rope->low_freq_factor = read_needed(source, "low_freq_factor");
    rope->high_freq_factor = read_needed(source, "high_freq_factor");
    if (rope->high_freq_factor <= rope->low_freq_factor)
        error_keep(source->error, ATTN_E_VALUE,
                   "high_freq_factor is %g, but must be larger than low_freq_factor",
                   rope->high_freq_factor);
}

/* Reads how much longer sequences may be; or else the lengths tell. */
static void read_extension(const struct rope_source *source, struct layer_rope *rope) {
    rope->factor = config_get_number(&source->inside, "factor", 0, 0);
    if (rope->factor == 0 && rope->max_positions == 0)
        error_keep(source->error, ATTN_E_VALUE,
                   "factor and max_position_embeddings are missing, but this rope_type "
                   "needs one of them");
}

static void read_yarn(const struct rope_source *source, struct layer_rope *rope) {
    const struct config_section *inside = &source->inside;

    read_extension(source, rope);
    rope->beta_fast = config_get_number(inside, "beta_fast", 32, 32);
    rope->beta_slow = config_get_number(inside, "beta_slow", 1, 1);
    rope->truncate = config_get_bool(inside, "truncate", true);
    rope->attention_factor = config_get_number(inside, "attention_factor", 0, 0);
    rope->mscale = config_get_number(inside, "mscale", 0, 0);
    rope->mscale_all_dim = config_get_number(inside, "mscale_all_dim", 0, 0);
}

static void read_longrope(const struct rope_source *source, struct layer_rope *rope) {
    read_extension(source, rope);
    rope->attention_factor = config_get_number(&source->inside, "attention_factor", 0, 0);
    rope->short_factors = read_factors(source, "short_factor", rope->dims / 2);
    rope->long_factors = read_factors(source, "long_factor", rope->dims / 2);
}

/* Reads the parameters of the type. */
static void read_rope_scaling(const struct rope_source *source, struct layer_rope *rope) {
    if (rope->type != ROPE_DEFAULT && rope->type != ROPE_LINEAR)
        read_rope_lengths(source, rope);

    switch (rope->type) {
    case ROPE_DEFAULT:
        break;
    case ROPE_LINEAR:
    case ROPE_DYNAMIC:
        rope->factor = read_needed(source, "factor");
        break;
    case ROPE_LLAMA3:
        read_llama3(source, rope);
        break;
    case ROPE_YARN:
        read_yarn(source, rope);
        break;
    case ROPE_LONGROPE:
        read_longrope(source, rope);
        break;
    }
}

/* Returns whether KEY=VALUE of the family holds, or there is no such condition. */
static bool is_rotated(const struct family *family,
                       const struct config_section *section) {
    const char *condition = family->rope_if;
    char key[64];

    if (!family->rotates || condition == NULL)
        return family->rotates;
    size_t size = strcspn(condition, "=");
    snprintf(key, sizeof key, "%.*s", (int)size, condition);
    const json_t *value = config_find(section, key, NULL);
    /* absent, a flag is false, and a word is another one */
    const char *wanted = condition + size + 1;
    if (strcmp(wanted, "false") == 0)
        return !json_is_true(value);
    return json_is_string(value) && strcmp(json_string_value(value), wanted) == 0;
}

void rope_read(const struct family *family, const struct config_section *section,
               size_t head_size, bool sliding, struct layer_rope *ret_rope) {
    struct rope_source source = {.family = family,
                                 .section = section,
                                 .inside = {.error = section->error},
                                 .sliding = sliding,
                                 .error = section->error};
    bool local = sliding && family->rope_local_base > 0;

    *ret_rope = (struct layer_rope){.dims = 0};
    if (!is_rotated(family, section))
        return;
    if (local && json_is_null(json_object_get(section->object, family->rope_local_keys)))
        error_keep(section->error, ATTN_E_VALUE,
                   "%s is null; versions of transformers disagree on what that is: "
                   "give it a number",
                   family->rope_local_keys);

    source.inside.object = find_rope_object(&source);
    if (source.inside.object == NULL && family->rope_unset != NULL)
        *ret_rope = *family->rope_unset;
    else
        ret_rope->interleaved = family->rope_interleaved;
    ret_rope->base = read_either(&source, "rope_theta",
                                 local ? family->rope_local_keys : family->rope_base_keys,
                                 local ? family->rope_local_base : family->rope_base);
    ret_rope->dims = read_rope_dims(&source, head_size);
    if (source.inside.object != NULL) {
        ret_rope->type = read_rope_type(&source);
        read_rope_scaling(&source, ret_rope);
    }
}
