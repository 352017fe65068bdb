/* SPDX-License-Identifier: Apache-2.0 */
/* distance.h: what is added to scores by the distance of a key from the query. */
#pragma once

#include "math/model.h"
#include "weights/layer/layer.h"

/* Computes the slope of each head, [num_heads] (Press et al. 2022), rounded to bfloat16
 * where the family does. */
void distance_fill_slopes(attn_bias bias, size_t num_heads, float *ret_slopes);

/* Returns the bucket of a key that is `distance` after the query (Raffel et al. 2020). */
size_t distance_find_bucket(const struct layer_bias *bias, ptrdiff_t distance);

/* Reads the numbers of each head by distance, [num_heads, 2 * max_distance + 1]. Errors:
 * ATTN_E_NOMEM, those of safetensors_read(). */
attn_status distance_read_biases(const struct layer_bias *bias, size_t num_heads,
                                 float *ret_biases, attn_error *ret_error);

/* Returns the row of content for a key that is `distance` after the query, with distances
 * in buckets as He et al. (2021) have them. */
size_t distance_find_row(const struct layer_bias *bias, ptrdiff_t distance);

/* Makes the positional keys and queries of a model, and the rows of distances. Errors:
 * ATTN_E_NOMEM, those of safetensors_read(). */
attn_status distance_read_content(const struct layer *layer, attn_model *model,
                                  attn_error *ret_error);
