/* SPDX-License-Identifier: Apache-2.0 */
/* frequencies.h: the frequencies of rotary positions, exact in float64. */
#pragma once

#include "math/model.h"
#include "weights/layer/layer.h"

/* Returns the word of config.json for the type; a constant. */
const char *rotation_type_name(enum layer_rotation_type type);

/* Returns what the scale of scores is multiplied by where yarn has mscale_all_dim; else
 * 1. */
double rotation_score_factor(const struct layer_rotation *rotation);

/* Fills in the rotation of a model whose arrays are those of `rotation`. Error, with one
 * line: ATTN_E_VALUE when a frequency is not finite. */
attn_status frequencies_fill(const struct layer_rotation *rotation,
                             struct model_rotation *ret_rotation, attn_error *ret_error);

/* Fills in the axis of each pair, [dims / 2], of a rotation with sections
 * or a grid. */
void rotation_fill_axes(const struct layer_rotation *rotation,
                        unsigned char *ret_axis_of);

/* Moves the rows of each head, [num_heads * head_size, columns], so that numbers which
 * are a pair are half of rotation->dims apart. A pair that turns backward is swapped,
 * which is the same as the negative angle. Returns ATTN_OK or ATTN_E_NOMEM. */
attn_status rotation_separate_pairs(const struct layer_rotation *rotation, float *rows,
                                    size_t num_heads, size_t head_size, size_t columns);
