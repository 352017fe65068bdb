/* SPDX-License-Identifier: Apache-2.0 */
/* distance.c: slopes and buckets of biases by distance. */
#include "weights/layer/distance.h"

#include "base/dtype.h"
#include "base/error.h"

#include <math.h>
#include <stdlib.h>

void distance_fill_slopes(attn_bias bias, size_t num_heads, float *ret_slopes) {
    size_t power = 1;

    while (2 * power <= num_heads)
        power *= 2;
    /* Heads above the last power of two take every second slope of twice as many. */
    for (size_t h = 0; h < num_heads; h++) {
        double step = h < power ? (double)(h + 1) / (double)power
                                : (double)(2 * (h - power) + 1) / (double)(2 * power);
        double slope = exp2(-8 * step);
        ret_slopes[h] = bias == ATTN_BIAS_ALIBI_ROUNDED ? dtype_round_bf16((float)slope)
                                                        : (float)slope;
    }
}

size_t distance_find_bucket(const struct layer_bias *bias, ptrdiff_t distance) {
    size_t count = bias->num_buckets / (bias->both_sides ? 2 : 1), first = 0;
    size_t exact = count / 2, before = distance < 0 ? (size_t)-distance : 0;

    if (bias->both_sides && distance > 0) {
        before = (size_t)distance;
        first = count;
    }
    if (before < exact)
        return first + before;
    double share = log((double)before / (double)exact) /
                   log((double)bias->max_distance / (double)exact);
    size_t bucket = exact + (size_t)(share * (double)(count - exact));
    return first + (bucket < count ? bucket : count - 1);
}

attn_status distance_read_biases(const struct layer_bias *bias, size_t num_heads,
                                 float *ret_biases, attn_error *ret_error) {
    size_t farthest = bias->max_distance, width = 2 * farthest + 1;
    const struct safetensors_tensor *stored = bias->table;
    float *table = calloc(bias->num_buckets, num_heads * sizeof *table);
    if (table == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read '%.80s'",
                         stored->name);

    attn_status status =
        safetensors_read(stored, 0, bias->num_buckets * num_heads, table, ret_error);
    for (size_t i = 0; status == ATTN_OK && i < width; i++) {
        size_t bucket = distance_find_bucket(bias, (ptrdiff_t)i - (ptrdiff_t)farthest);
        for (size_t h = 0; h < num_heads; h++)
            ret_biases[h * width + i] = table[bucket * num_heads + h];
    }
    free(table);
    return status;
}
