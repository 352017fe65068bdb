/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/reply.h"

#include "base/finite.h"

#include <stdio.h>

#define RANK_MAX 4 /* sequence, plane, row, column */

struct wire_reply_tensor wire_reply_outputs(const struct wire_request *request,
                                            const attn_result *result) {
    const attn_request *batch = &request->batch;
    return (struct wire_reply_tensor){
        .name = "outputs",
        .numbers = result->outputs,
        .num_sequences = batch->num_sequences,
        .batched = request->batched,
        .num_planes = 1,
        .rows = batch->query_lens,
        .width = attn_model_get_info(request->model)->out_size,
    };
}

struct wire_reply_tensor wire_reply_weights(const struct wire_request *request,
                                            const attn_result *result) {
    const attn_request *batch = &request->batch;
    const struct wire_selection *selection = &request->selection;
    bool all = batch->need_weights == ATTN_WEIGHTS_ALL;
    size_t heads = selection->heads != NULL
                       ? selection->num_heads
                       : attn_model_get_info(request->model)->num_heads;
    return (struct wire_reply_tensor){
        .name = "attention_weights",
        .numbers = result->weights,
        .num_sequences = batch->num_sequences,
        .batched = request->batched,
        .num_planes = all ? heads : 1,
        .plane_axis = all,
        .rows = selection->queries != NULL ? NULL : batch->query_lens,
        .num_rows = selection->num_queries,
        .widths = batch->key_lens,
    };
}

size_t wire_reply_rows(const struct wire_reply_tensor *tensor, size_t sequence) {
    return tensor->rows != NULL ? tensor->rows[sequence] : tensor->num_rows;
}

size_t wire_reply_width(const struct wire_reply_tensor *tensor, size_t sequence) {
    return tensor->widths != NULL ? tensor->widths[sequence] : tensor->width;
}

/* Refuses the number at `index`, of which only the axes that the client sees are named.
 */
static bool refuse_number(const struct wire_reply_tensor *tensor,
                          const size_t index[RANK_MAX],
                          struct wire_problem *ret_problem) {
    const bool shown[RANK_MAX] = {tensor->batched, tensor->plane_axis, true, true};
    char where[128];
    size_t used = (size_t)snprintf(where, sizeof where, "%s", tensor->name);
    for (size_t i = 0; i < RANK_MAX; i++) {
        if (shown[i])
            used +=
                (size_t)snprintf(where + used, sizeof where - used, "[%zu]", index[i]);
    }

    wire_problem_set(ret_problem, WIRE_E_RESULT_NOT_FINITE, NULL,
                     "%s is not finite: a number that it is computed from is not, or "
                     "float32 overflowed; send finite and smaller numbers",
                     where);
    return false;
}

bool wire_reply_tensor_check(const struct wire_reply_tensor *tensor,
                             struct wire_problem *ret_problem) {
    const float *numbers = tensor->numbers;
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        size_t rows = wire_reply_rows(tensor, b), width = wire_reply_width(tensor, b);
        size_t plane = rows * width, count = tensor->num_planes * plane;
        size_t i = finite_end(numbers, count);
        if (i < count) {
            const size_t index[] = {b, i / plane, i % plane / width, i % width};
            return refuse_number(tensor, index, ret_problem);
        }
        numbers += count;
    }
    return true;
}

bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_problem *ret_problem) {
    const struct wire_reply_tensor outputs = wire_reply_outputs(request, result);
    const struct wire_reply_tensor weights = wire_reply_weights(request, result);
    return wire_reply_tensor_check(&outputs, ret_problem) &&
           (request->batch.need_weights == ATTN_WEIGHTS_NONE ||
            wire_reply_tensor_check(&weights, ret_problem));
}
