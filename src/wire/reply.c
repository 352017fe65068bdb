/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: describes the tensors of a reply, and finds numbers that are not finite. */
#include "wire/reply.h"

#include "base/size.h"

#include <stdio.h>
#include <string.h>

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
    bool all = batch->need_weights == ATTN_WEIGHTS_ALL;
    size_t heads = batch->weights_heads != NULL
                       ? batch->num_weights_heads
                       : attn_model_get_info(request->model)->num_heads;
    return (struct wire_reply_tensor){
        .name = "attention_weights",
        .numbers = result->weights,
        .num_sequences = batch->num_sequences,
        .batched = request->batched,
        .num_planes = all ? heads : 1,
        .plane_axis = all,
        .rows = batch->weights_queries != NULL ? NULL : batch->query_lens,
        .num_rows = batch->num_weights_queries,
        .widths = batch->key_lens,
    };
}

size_t wire_reply_rows(const struct wire_reply_tensor *tensor, size_t sequence) {
    return tensor->rows != NULL ? tensor->rows[sequence] : tensor->num_rows;
}

size_t wire_reply_width(const struct wire_reply_tensor *tensor, size_t sequence) {
    return tensor->widths != NULL ? tensor->widths[sequence] : tensor->width;
}

size_t wire_reply_count(const struct wire_reply_tensor *tensor) {
    size_t count = 0;
    for (size_t b = 0; b < tensor->num_sequences; b++)
        count +=
            tensor->num_planes * wire_reply_rows(tensor, b) * wire_reply_width(tensor, b);
    return count;
}

size_t wire_reply_shape(const struct wire_reply_tensor *tensor,
                        size_t ret_shape[WIRE_REPLY_RANK_MAX]) {
    size_t rank = 0;
    if (tensor->batched)
        ret_shape[rank++] = tensor->num_sequences;
    if (tensor->plane_axis)
        ret_shape[rank++] = tensor->num_planes;
    ret_shape[rank++] = wire_reply_rows(tensor, 0);
    ret_shape[rank++] = wire_reply_width(tensor, 0);
    return rank;
}

static const size_t *copy_lens(struct arena *arena, const size_t *lens, size_t count) {
    size_t *copy = arena_alloc(arena, count, sizeof *copy);
    if (copy != NULL)
        memcpy(copy, lens, count * sizeof *copy);
    return copy;
}

size_t wire_reply_lens_bytes(const struct wire_request *request) {
    size_t bytes;
    bool fits = size_mul(request->batch.num_sequences, 2 * sizeof(size_t), &bytes);
    return fits ? bytes : SIZE_MAX;
}

/* Refuses the result at `index`; only the axes that the client sees are named. */
static bool refuse_result(const struct wire_reply_tensor *tensor,
                          const size_t index[WIRE_REPLY_RANK_MAX],
                          struct wire_problem *ret_problem) {
    const bool shown[WIRE_REPLY_RANK_MAX] = {tensor->batched, tensor->plane_axis, true,
                                             true};
    char where[128];
    size_t used = (size_t)snprintf(where, sizeof where, "%s", tensor->name);
    for (size_t i = 0; i < WIRE_REPLY_RANK_MAX; i++) {
        if (shown[i])
            used +=
                (size_t)snprintf(where + used, sizeof where - used, "[%zu]", index[i]);
    }

    return wire_problem_set(ret_problem, WIRE_E_RESULT_NOT_FINITE, NULL,
                            "%s is not finite: float32 overflowed; send smaller numbers",
                            where);
}

bool wire_reply_tensor_check(const struct wire_reply_tensor *tensor,
                             struct wire_pace *pace, struct wire_problem *ret_problem) {
    const float *numbers = tensor->numbers;
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        size_t rows = wire_reply_rows(tensor, b), width = wire_reply_width(tensor, b);
        size_t plane = rows * width, count = tensor->num_planes * plane;
        size_t i = wire_pace_finite_end(pace, numbers, count);
        if (i < count) {
            const size_t index[] = {b, i / plane, i % plane / width, i % width};
            return refuse_result(tensor, index, ret_problem);
        }
        numbers += count;
    }
    return true;
}

bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_pace *pace, struct wire_problem *ret_problem) {
    const struct wire_reply_tensor outputs = wire_reply_outputs(request, result);
    const struct wire_reply_tensor weights = wire_reply_weights(request, result);
    return wire_reply_tensor_check(&outputs, pace, ret_problem) &&
           (request->batch.need_weights == ATTN_WEIGHTS_NONE ||
            wire_reply_tensor_check(&weights, pace, ret_problem));
}

void *wire_reply_begin(struct arena *arena, size_t size,
                       const struct wire_request *request, const attn_result *result,
                       struct wire_pace *pace, struct wire_request *ret_kept,
                       struct wire_problem *ret_problem) {
    const attn_request *batch = &request->batch;
    void *encoder = arena_alloc(arena, 1, size);
    const size_t *query_lens = copy_lens(arena, batch->query_lens, batch->num_sequences);
    const size_t *key_lens = copy_lens(arena, batch->key_lens, batch->num_sequences);

    if (encoder == NULL || query_lens == NULL || key_lens == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    if (!wire_reply_check(request, result, pace, ret_problem))
        return NULL;

    *ret_kept = *request;
    ret_kept->batch.query_lens = query_lens;
    ret_kept->batch.key_lens = key_lens;
    return encoder;
}
