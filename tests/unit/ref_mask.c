/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mask.c: which keys a query attends to, and what their distance adds. */
#include "ref_mask.h"

#include "ref_round.h"

#include <math.h>

size_t ref_position(const size_t *positions, size_t first, size_t i) {
    return positions != NULL ? positions[first + i] : i;
}

bool ref_attends(const attn_request *request, const struct ref_position *at, size_t q,
                 size_t k) {
    size_t i = ref_position(request->positions, at->first_query, q);
    size_t j = ref_position(request->key_positions, at->first_key, k);
    size_t distance = i > j ? i - j : j - i;

    if (request->valid_lens != NULL) {
        size_t row = request->valid_lens_per_query ? at->first_query + q : at->sequence;
        if (k >= request->valid_lens[row])
            return false;
    }
    if (request->causal && j > i &&
        (request->prefix_lens == NULL || k >= request->prefix_lens[at->sequence]))
        return false;
    if (request->chunk > 0 && i / request->chunk != j / request->chunk)
        return false;
    if (request->window == 0)
        return true;
    if (request->causal)
        return j > i || distance < request->window;
    return distance <= request->window;
}

void ref_find_axes(const attn_model_info *info, const size_t *positions,
                   const size_t *axes, size_t first, size_t count, size_t i,
                   size_t ret_axes[ATTN_AXES]) {
    size_t position = ref_position(positions, first, i), grid = info->rotation.grid;

    for (size_t axis = 0; axis < ATTN_AXES; axis++)
        ret_axes[axis] =
            axes != NULL ? axes[ATTN_AXES * first + axis * count + i] : position;
    if (grid == 0)
        return;
    bool patch = position >= info->rotation.grid_first;
    position -= info->rotation.grid_first;
    ret_axes[1] = patch ? 2 * (position / grid) + 1 : grid;
    ret_axes[2] = patch ? 2 * (position % grid) + 1 : grid;
}

size_t ref_length(const attn_request *request, const struct ref_position *at) {
    size_t length = 0;

    for (size_t q = 0; q < request->query_lens[at->sequence]; q++) {
        size_t position = ref_position(request->positions, at->first_query, q);
        length = position >= length ? position + 1 : length;
    }
    for (size_t k = 0; k < request->key_lens[at->sequence]; k++) {
        size_t position = ref_position(request->key_positions, at->first_key, k);
        length = position >= length ? position + 1 : length;
    }
    return length;
}

double ref_given_bias(const attn_request *request, const struct ref_position *at,
                      size_t h, size_t q, size_t k) {
    size_t i = at->sequence * request->bias_sequence_ld + h * request->bias_head_ld +
               q * request->bias_row_ld + k;

    return request->bias != NULL ? (double)request->bias[i] : 0;
}

/* Returns the terms of content and position, given the row of the distance. Keys may be
 * rounded; all else is float32. */
static double ref_content(const attn_model *model, struct ref_rounding *rounding,
                          size_t h, size_t row, const double *query, const double *key) {
    const struct model_array *keys = &model->arrays[MODEL_POSITION_KEYS];
    const struct model_array *queries = &model->arrays[MODEL_POSITION_QUERIES];
    size_t size = model->info.width.score;
    double sum = 0, magnitude = 0;

    for (size_t d = 0; d < size; d++) {
        double c2p = 0, p2c = 0;
        if (keys->numbers != NULL)
            c2p = query[d] * (double)keys->numbers[row * keys->columns + h * size + d];
        if (queries->numbers != NULL)
            p2c = ref_factor(rounding->rows, key[d]) *
                  (double)queries->numbers[row * queries->columns + h * size + d];
        sum += model->info.score.scale * (c2p + p2c);
        magnitude += model->info.score.scale * (fabs(c2p) + fabs(p2c));
    }
    return ref_nudge(rounding, sum, magnitude);
}

double ref_distance_bias(const attn_model *model, const attn_request *request,
                         const struct ref_position *at, size_t h, size_t q, size_t k,
                         const double *query, const double *key) {
    const attn_model_info *info = &model->info;
    double i = (double)ref_position(request->positions, at->first_query, q);
    double j = (double)ref_position(request->key_positions, at->first_key, k);
    double farthest = (double)info->score.bias_distance;
    size_t distance = (size_t)(fmin(fmax(j - i, -farthest), farthest) + farthest);

    switch (info->score.bias) {
    case ATTN_BIAS_ALIBI:
        return (double)model->arrays[MODEL_SLOPES].numbers[h] * (j - i);
    case ATTN_BIAS_BUCKETS:
        return (double)model->arrays[MODEL_DISTANCE_BIAS]
            .numbers[h * (2 * info->score.bias_distance + 1) + distance];
    case ATTN_BIAS_CONTENT:
        return ref_content(model, at->rounding, h,
                           (size_t)model->arrays[MODEL_DISTANCE_BIAS].numbers[distance],
                           query, key);
    case ATTN_BIAS_ALIBI_ROUNDED:
        return info->score.scale *
               (ref_round((double)model->arrays[MODEL_SLOPES].numbers[h] * ref_round(j)) -
                ref_round((double)model->arrays[MODEL_SLOPES].numbers[h] * ref_round(i)));
    case ATTN_BIAS_NONE:
        break;
    }
    return 0;
}
