/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c: heads that are neighbours in the file are read at one time. A transposed
 * weight is read by rows of the file, which are columns here. */
#include "weights/layer/gather.h"

#include "base/error.h"

#include <stdlib.h>

#define TRANSPOSE_ROWS 16 /* rows of the file that are transposed together */

/* Rows of a linear that are neighbours in the file, and where they go. */
struct row_run {
    size_t from, to, count;
};

/* Returns the run of group `group`. */
static struct row_run find_run(const struct layer_linear *linear, size_t group) {
    size_t count = linear->group_heads * linear->head_rows;
    return (struct row_run){.from = linear->first_row + group * linear->group_rows,
                            .to = group * count,
                            .count = count};
}

/* Reads columns from .. from+count-1 of a transposed weight into rows to .. of
 * ret_weight. `block` is [TRANSPOSE_ROWS, count]. */
static attn_status read_transposed(const struct layer_linear *linear,
                                   const struct row_run *run, float *block,
                                   float *ret_weight, attn_error *ret_error) {
    const struct safetensors_tensor *stored = linear->weight;
    size_t width = stored->shape[1], in_size = linear->in_size;

    for (size_t first = 0; first < in_size; first += TRANSPOSE_ROWS) {
        size_t rows = in_size - first < TRANSPOSE_ROWS ? in_size - first : TRANSPOSE_ROWS;
        for (size_t i = 0; i < rows; i++) {
            attn_status status =
                safetensors_read(stored, (first + i) * width + run->from, run->count,
                                 block + i * run->count, ret_error);
            if (status != ATTN_OK)
                return status;
        }

        for (size_t j = 0; j < run->count; j++) {
            float *row = ret_weight + (run->to + j) * in_size + first;
            for (size_t i = 0; i < rows; i++)
                row[i] = block[i * run->count + j];
        }
    }
    return ATTN_OK;
}

attn_status gather_linear(const struct layer_linear *linear, float *ret_weight,
                          float *ret_bias, attn_error *ret_error) {
    size_t num_groups = linear->num_heads / linear->group_heads;
    const struct safetensors_tensor *weight = linear->weight, *bias = linear->bias;
    attn_status status = ATTN_OK;
    float *block = NULL;

    if (linear->transposed) {
        block = calloc(linear->group_heads * linear->head_rows,
                       TRANSPOSE_ROWS * sizeof *block);
        if (block == NULL)
            return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read '%.80s'",
                             weight->name);
    }
    for (size_t group = 0; group < num_groups && status == ATTN_OK; group++) {
        struct row_run run = find_run(linear, group);
        size_t in_size = linear->in_size;

        if (linear->transposed)
            status = read_transposed(linear, &run, block, ret_weight, ret_error);
        else
            status = safetensors_read(weight, run.from * in_size, run.count * in_size,
                                      ret_weight + run.to * in_size, ret_error);
        if (status == ATTN_OK && bias != NULL)
            status =
                safetensors_read(bias, run.from, run.count, ret_bias + run.to, ret_error);
    }
    free(block);
    return status;
}
