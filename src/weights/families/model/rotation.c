/* SPDX-License-Identifier: Apache-2.0 */
/* rotation.c: how each type of scaling changes the frequencies base^(-2a/R). */
#include "weights/families/model/rotation.h"

#include "base/error.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

const char *rotation_type_name(enum layer_rope_type type) {
    static const char *const names[] = {
        [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear",
        [ROPE_DYNAMIC] = "dynamic", [ROPE_LLAMA3] = "llama3",
        [ROPE_YARN] = "yarn",       [ROPE_LONGROPE] = "longrope"};
    return names[type];
}

/* Stretches waves that are long beside the original length, leaves short ones, and goes
 * smoothly from one to the other (Llama 3.1, 2024). */
static double scale_llama3(const struct layer_rope *rope, double frequency) {
    double waves = (double)rope->original_positions * frequency / (2 * pi);
    double smooth = (waves - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);

    smooth = fmin(fmax(smooth, 0), 1);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Returns how often the longest context of yarn is longer than the original one. */
static double extension_of(const struct layer_rope *rope) {
    if (rope->factor > 0)
        return rope->factor;
    return (double)rope->max_positions / (double)rope->original_positions;
}

/* Returns the pair, not a whole number, that turns `turns` times in the original
 * length. */
static double pair_of_turns(const struct layer_rope *rope, double turns) {
    double length = (double)rope->original_positions;
    return (double)rope->dims * log(length / (turns * 2 * pi)) / (2 * log(rope->base));
}

/* Stretches the waves of pairs from `high` on, leaves those up to `low`, and goes
 * linearly from one to the other (Peng et al. 2023, section 3.2). */
static double scale_yarn(const struct layer_rope *rope, size_t pair, double frequency) {
    double low = pair_of_turns(rope, rope->beta_fast);
    double high = pair_of_turns(rope, rope->beta_slow);

    low = fmax(rope->truncate ? floor(low) : low, 0);
    high = fmin(rope->truncate ? ceil(high) : high, (double)rope->dims - 1);
    if (high == low)
        high += 0.001; /* as transformers does */
    double share = fmin(fmax(((double)pair - low) / (high - low), 0), 1);
    return frequency / extension_of(rope) * share + frequency * (1 - share);
}

static double yarn_magnitude(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Returns what cosine and sine are multiplied by. */
static double find_magnitude(const struct layer_rope *rope) {
    if (rope->type != ROPE_YARN && rope->type != ROPE_LONGROPE)
        return 1;
    if (rope->attention_factor > 0)
        return rope->attention_factor;

    double factor = extension_of(rope);
    if (rope->type == ROPE_LONGROPE)
        return factor <= 1
                   ? 1
                   : sqrt(1 + log(factor) / log((double)rope->original_positions));
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return yarn_magnitude(factor, rope->mscale) /
               yarn_magnitude(factor, rope->mscale_all_dim);
    return yarn_magnitude(factor, 1);
}

/* Returns frequency `pair` of sequences that are not longer than max_length. */
static double find_frequency(const struct layer_rope *rope, size_t pair) {
    double plain = pow(rope->base, -2 * (double)pair / (double)rope->dims);

    switch (rope->type) {
    case ROPE_DEFAULT:
    case ROPE_DYNAMIC:
        break;
    case ROPE_LINEAR:
        return plain / rope->factor;
    case ROPE_LLAMA3:
        return scale_llama3(rope, plain);
    case ROPE_YARN:
        return scale_yarn(rope, pair, plain);
    case ROPE_LONGROPE:
        return plain / json_number_value(json_array_get(rope->short_factors, pair));
    }
    return plain;
}

attn_status rotation_fill(const struct layer_rope *rope, struct model_rotation *rotation,
                          attn_error *ret_error) {
    rotation->magnitude = find_magnitude(rope);
    bool finite = isfinite(rotation->magnitude);

    for (size_t a = 0; a < rope->dims / 2; a++) {
        rotation->frequencies[a] = find_frequency(rope, a);
        finite = finite && isfinite(rotation->frequencies[a]);
        if (rope->type != ROPE_LONGROPE)
            continue;
        rotation->long_frequencies[a] =
            pow(rope->base, -2 * (double)a / (double)rope->dims) /
            json_number_value(json_array_get(rope->long_factors, a));
        finite = finite && isfinite(rotation->long_frequencies[a]);
    }
    if (rope->type == ROPE_DYNAMIC) {
        rotation->max_length = rope->max_positions;
        rotation->base = rope->base;
        rotation->factor = rope->factor;
    } else if (rope->type == ROPE_LONGROPE) {
        rotation->max_length = rope->original_positions;
    }
    if (finite)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "the rotary frequencies of base %g and rope_type %s are not finite",
                     rope->base, rotation_type_name(rope->type));
}

attn_status rotation_separate_pairs(float *rows, size_t num_heads, size_t head_size,
                                    size_t columns, size_t dims) {
    size_t half = dims / 2, bytes = columns * sizeof *rows;
    float *moved = calloc(dims, bytes);
    if (moved == NULL)
        return ATTN_E_NOMEM;

    for (size_t h = 0; h < num_heads; h++) {
        float *head = rows + h * head_size * columns;
        for (size_t a = 0; a < half; a++) {
            memcpy(moved + a * columns, head + 2 * a * columns, bytes);
            memcpy(moved + (a + half) * columns, head + (2 * a + 1) * columns, bytes);
        }
        memcpy(head, moved, dims * bytes);
    }
    free(moved);
    return ATTN_OK;
}
