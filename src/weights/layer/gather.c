/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c: heads that are neighbours in the file are read at one time. A transposed
 * weight is read by rows of the file, which are columns here. Two maps that follow each
 * other are multiplied into one. H heads of size D; M is the width between both. */
#include "weights/layer/gather.h"

#include "base/error.h"
#include "base/pace.h"
#include "math/fold.h"

#include <stdlib.h>

#define TRANSPOSE_ROWS 16 /* rows of the file that are transposed together */

/* Rows of a linear that are neighbours in the file, and where they go. */
struct row_run {
    const struct safetensors_tensor *weight, *bias; /* bias: NULL without one */
    size_t from, to, count;
};

/* Returns the run of group `group`. */
static struct row_run find_run(const struct layer_linear *linear, size_t group) {
    size_t count = linear->group_heads * linear->head_rows;
    return (struct row_run){
        .weight = tensor_view_find_head(linear->of_heads, linear->weight, group),
        .bias = tensor_view_find_head(linear->of_heads, linear->bias, group),
        .from = linear->first_row + group * linear->group_rows,
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

/* Folds a map of heads into the stage before it, W = head W_stage and b = head b_stage +
 * b_head, with the arguments of gather_linear(). */
static attn_status gather_folded(const struct layer_linear *linear, float *ret_weight,
                                 float *ret_bias, attn_error *ret_error) {
    size_t rows = linear->head_rows, in_size = linear->in_size;
    size_t stage_size = linear->stage->shape[0];

    /* tensors of the file have these sizes, so the sum does not overflow */
    float *stage = calloc(stage_size * (in_size + 1) + rows * (stage_size + 1),
                          sizeof *stage); /* [M, in_size] */
    if (stage == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to fold '%.80s'",
                         linear->stage->name);
    float *stage_bias = stage + stage_size * in_size; /* [M] */
    float *head = stage_bias + stage_size;            /* [D, M] */
    float *head_bias = head + rows * stage_size;      /* [D] */

    attn_status status = safetensors_read_all(linear->stage, stage, ret_error);
    if (status == ATTN_OK)
        status = safetensors_read_all(linear->stage_bias, stage_bias, ret_error);
    for (size_t h = 0; status == ATTN_OK && h < linear->num_heads; h++) {
        const struct row_run run = find_run(linear, h);
        float *weight = ret_weight + h * rows * in_size;
        status = safetensors_read_all(run.weight, head, ret_error);
        if (status == ATTN_OK)
            status = safetensors_read_all(run.bias, head_bias, ret_error);
        if (status != ATTN_OK)
            break;

        fold_product(head, stage, NULL, rows, stage_size, in_size, weight);
        bool finite = pace_finite_end(weight, rows * in_size) == rows * in_size;
        if (ret_bias != NULL) {
            float *bias = ret_bias + h * rows;
            fold_product(head, stage_bias, head_bias, rows, stage_size, 1, bias);
            finite = finite && pace_finite_end(bias, rows) == rows;
        }
        if (!finite)
            status = error_set(ret_error, ATTN_E_VALUE,
                               "tensor '%.80s' times '%.80s' (or its bias) is too large "
                               "for float32",
                               run.weight->name, linear->stage->name);
    }
    free(stage);
    return status;
}

attn_status gather_linear(const struct layer_linear *linear, float *ret_weight,
                          float *ret_bias, attn_error *ret_error) {
    size_t num_groups = linear->num_heads / linear->group_heads;
    attn_status status = ATTN_OK;
    float *block = NULL;

    if (linear->stage != NULL)
        return gather_folded(linear, ret_weight, ret_bias, ret_error);
    if (linear->transposed) {
        block = calloc(linear->group_heads * linear->head_rows,
                       TRANSPOSE_ROWS * sizeof *block);
        if (block == NULL)
            return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read '%.80s'",
                             linear->weight->name);
    }
    for (size_t group = 0; group < num_groups && status == ATTN_OK; group++) {
        struct row_run run = find_run(linear, group);
        size_t in_size = linear->in_size;

        if (linear->transposed)
            status = read_transposed(linear, &run, block, ret_weight, ret_error);
        else
            status = safetensors_read(run.weight, run.from * in_size, run.count * in_size,
                                      ret_weight + run.to * in_size, ret_error);
        if (status == ATTN_OK && run.bias != NULL)
            status = safetensors_read(run.bias, run.from + linear->bias_rows, run.count,
                                      ret_bias + run.to, ret_error);
    }
    free(block);
    return status;
}
