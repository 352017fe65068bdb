/* SPDX-License-Identifier: Apache-2.0 */
/* merge.c: online softmax over chunks. */
#include "math/attend/merge.h"

#include <math.h>
#include <string.h>

void partial_clear(const struct partial *partial, size_t count, size_t size) {
    for (size_t c = 0; c < count; c++)
        partial->max[c] = -INFINITY;
    memset(partial->sum, 0, count * sizeof *partial->sum);
    memset(partial->outputs, 0, count * size * sizeof *partial->outputs);
}

/* Merges the results of one query; `scales` multiply the total and the chunk. */
static void merge_query(size_t size, const float scales[2], const struct partial *chunk,
                        const struct partial *total, size_t c) {
    const float *from = chunk->outputs + c * size;
    float *to = total->outputs + c * size;

    total->sum[c] = total->sum[c] * scales[0] + chunk->sum[c] * scales[1];
    for (size_t i = 0; i < size; i++)
        to[i] = to[i] * scales[0] + from[i] * scales[1];
}

void partial_merge(const struct kernels *kernels, size_t count, size_t size,
                   const struct partial *chunk, const struct partial *total) {
    float scales[KERNEL_COLUMNS_MAX][2], max[KERNEL_COLUMNS_MAX];

    for (size_t c = 0; c < count; c++) {
        max[c] = chunk->max[c] > total->max[c] ? chunk->max[c] : total->max[c];
        scales[c][0] = total->max[c] - max[c];
        scales[c][1] = chunk->max[c] - max[c];
    }
    kernels->exp2(scales[0], 2 * count);

    for (size_t c = 0; c < count; c++) {
        if (chunk->max[c] == -INFINITY)
            continue;
        if (total->max[c] == -INFINITY) {
            total->sum[c] = chunk->sum[c];
            memcpy(total->outputs + c * size, chunk->outputs + c * size,
                   size * sizeof *total->outputs);
        } else {
            merge_query(size, scales[c], chunk, total, c);
        }
        total->max[c] = max[c];
    }
}

void partial_factors(const struct kernels *kernels, size_t count, const float *chunk_max,
                     const struct partial *total, float *ret_factors) {
    for (size_t c = 0; c < count; c++)
        ret_factors[c] = chunk_max[c] - total->max[c];
    kernels->exp2(ret_factors, count);
    for (size_t c = 0; c < count; c++)
        ret_factors[c] = chunk_max[c] == -INFINITY && total->sum[c] > 0.0F
                             ? 0.0F
                             : ret_factors[c] / total->sum[c];
}
