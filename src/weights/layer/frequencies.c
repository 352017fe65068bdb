/* SPDX-License-Identifier: Apache-2.0 */
/* frequencies.c: the frequencies of rotary positions, scaled as config.json asks. */
#include "weights/layer/frequencies.h"

#include "base/error.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

const char *rotation_type_name(enum layer_rotation_type type) {
    static const char *const names[] = {[ROTATION_DEFAULT] = "default",
                                        [ROTATION_LINEAR] = "linear",
                                        [ROTATION_DYNAMIC] = "dynamic",
                                        [ROTATION_LLAMA3] = "llama3",
                                        [ROTATION_YARN] = "yarn",
                                        [ROTATION_LONGROPE] = "longrope",
                                        [ROTATION_PROPORTIONAL] = "proportional"};
    return names[type];
}

/* Divides low frequencies by the factor, keeps high ones, and interpolates between them.
 * The original context length tells which are low (Llama 3.1, 2024). */
static double scale_llama3(const struct layer_rotation *rotation, double frequency) {
    double waves = (double)rotation->original_positions * frequency / (2 * pi);
    double above = waves - rotation->low_freq_factor;
    double between = rotation->high_freq_factor - rotation->low_freq_factor;
    /* without anything between them, as in Llama 4 Scout, the one ends at the other */
    double smooth = between > 0 ? fmin(fmax(above / between, 0), 1) : above > 0;

    return (1 - smooth) * frequency / rotation->factor + smooth * frequency;
}

/* Returns how many times longer the extended context is than the original one. */
static double extension_of(const struct layer_rotation *rotation) {
    if (rotation->factor > 0)
        return rotation->factor;
    return (double)rotation->max_positions / (double)rotation->original_positions;
}

/* Returns the index of the pair that makes `turns` full turns over the original length.
 * It is a fraction. */
static double pair_of_turns(const struct layer_rotation *rotation, double turns) {
    double length = (double)rotation->original_positions;
    return (double)rotation->dims * log(length / (turns * 2 * pi)) /
           (2 * log(rotation->base));
}

/* Divides the frequencies of pairs from `high` on by the factor, keeps those up to `low`,
 * and interpolates linearly between them (Peng et al. 2023, section 3.2). */
static double scale_yarn(const struct layer_rotation *rotation, size_t pair,
                         double frequency) {
    double low = pair_of_turns(rotation, rotation->beta_fast);
    double high = pair_of_turns(rotation, rotation->beta_slow);

    low = fmax(rotation->truncate ? floor(low) : low, 0);
    high = fmin(rotation->truncate ? ceil(high) : high, (double)rotation->dims - 1);
    if (high == low)
        high += 0.001; /* avoids 0 / 0, as transformers does */
    double share = fmin(fmax(((double)pair - low) / (high - low), 0), 1);
    return frequency / extension_of(rotation) * share + frequency * (1 - share);
}

static double yarn_magnitude(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double rotation_score_factor(const struct layer_rotation *rotation) {
    double root = 1;

    if (rotation->type == ROTATION_YARN && rotation->mscale_all_dim > 0)
        root = yarn_magnitude(extension_of(rotation), rotation->mscale_all_dim);
    return root * root;
}

/* Returns the factor by which yarn and longrope multiply cosine and sine; else 1. */
static double find_magnitude(const struct layer_rotation *rotation) {
    if (rotation->type != ROTATION_YARN && rotation->type != ROTATION_LONGROPE)
        return 1;
    if (rotation->attention_factor > 0)
        return rotation->attention_factor;

    double factor = extension_of(rotation);
    if (rotation->type == ROTATION_LONGROPE)
        return factor <= 1
                   ? 1
                   : sqrt(1 + log(factor) / log((double)rotation->original_positions));
    if (rotation->mscale > 0 && rotation->mscale_all_dim > 0)
        return yarn_magnitude(factor, rotation->mscale) /
               yarn_magnitude(factor, rotation->mscale_all_dim);
    return yarn_magnitude(factor, 1);
}

/* Returns the frequency of a pair, for sequences of at most max_length positions. */
static double find_frequency(const struct layer_rotation *rotation, size_t pair) {
    double plain = pow(rotation->base, -2 * (double)pair / (double)rotation->dims);

    if (rotation->grid > 0) /* 2 pi from one edge to the middle, which are n apart */
        return 2 * pi / (double)rotation->grid *
               pow(rotation->base,
                   -4 * (double)(pair % (rotation->dims / 4)) / (double)rotation->dims);
    switch (rotation->type) {
    case ROTATION_DEFAULT:
    case ROTATION_DYNAMIC:
        break;
    case ROTATION_LINEAR:
        return plain / rotation->factor;
    case ROTATION_PROPORTIONAL:
        return pair < rotation->turning ? plain / rotation->factor : 0;
    case ROTATION_LLAMA3:
        return scale_llama3(rotation, plain);
    case ROTATION_YARN:
        return scale_yarn(rotation, pair, plain);
    case ROTATION_LONGROPE:
        return plain / json_number_value(json_array_get(rotation->short_factors, pair));
    }
    return plain;
}

attn_status frequencies_fill(const struct layer_rotation *rotation,
                             struct model_rotation *ret_rotation, attn_error *ret_error) {
    ret_rotation->magnitude = find_magnitude(rotation);
    bool finite = isfinite(ret_rotation->magnitude);

    for (size_t a = 0; a < rotation->dims / 2; a++) {
        ret_rotation->frequencies[a] = find_frequency(rotation, a);
        finite = finite && isfinite(ret_rotation->frequencies[a]);
        if (rotation->type != ROTATION_LONGROPE)
            continue;
        ret_rotation->long_frequencies[a] =
            pow(rotation->base, -2 * (double)a / (double)rotation->dims) /
            json_number_value(json_array_get(rotation->long_factors, a));
        finite = finite && isfinite(ret_rotation->long_frequencies[a]);
    }
    if (rotation->type == ROTATION_DYNAMIC) {
        ret_rotation->max_length = rotation->max_positions;
        ret_rotation->base = rotation->base;
        ret_rotation->factor = rotation->factor;
    } else if (rotation->type == ROTATION_LONGROPE) {
        ret_rotation->max_length = rotation->original_positions;
    }
    if (finite)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "the rotary frequencies of base %g and rope_type %s are not finite",
                     rotation->base, rotation_type_name(rotation->type));
}

void rotation_fill_axes(const struct layer_rotation *rotation,
                        unsigned char *ret_axis_of) {
    const size_t *sizes = rotation->section_sizes;
    bool interleaved = rotation->sections == SECTIONS_INTERLEAVED;

    for (size_t a = 0; a < rotation->dims / 2; a++) {
        size_t turn = a % ATTN_AXES;
        if (rotation->grid > 0)
            ret_axis_of[a] = a < rotation->dims / 4 ? 1 : 2;
        else if (interleaved)
            ret_axis_of[a] = (unsigned char)(a < ATTN_AXES * sizes[turn] ? turn : 0);
        else
            ret_axis_of[a] =
                (unsigned char)((a >= sizes[0]) + (a >= sizes[0] + sizes[1]));
    }
}

attn_status rotation_separate_pairs(const struct layer_rotation *rotation, float *rows,
                                    size_t num_heads, size_t head_size, size_t columns) {
    size_t dims = rotation->dims, half = dims / 2, bytes = columns * sizeof *rows;
    size_t step = rotation->interleaved ? 2 : 1, apart = rotation->interleaved ? 1 : half;
    size_t first = rotation->backward ? half : 0, second = half - first;
    float *moved = calloc(dims, bytes);
    if (moved == NULL)
        return ATTN_E_NOMEM;

    for (size_t h = 0; h < num_heads; h++) {
        float *head = rows + h * head_size * columns;
        for (size_t a = 0; a < half; a++) {
            const float *pair = head + step * a * columns;
            memcpy(moved + (a + first) * columns, pair, bytes);
            memcpy(moved + (a + second) * columns, pair + apart * columns, bytes);
        }
        memcpy(head, moved, dims * bytes);
    }
    free(moved);
    return ATTN_OK;
}
