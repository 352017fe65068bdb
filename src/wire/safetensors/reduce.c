/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: reads ranges of keys from the tensors of a safetensors body. */
#include "wire/safetensors/reduce.h"

#include "base/pace.h"
#include "wire/refuse.h"

#include <stdio.h>
#include <string.h>

#define RANGES_RANK_MAX 3 /* of a tensor of ranges */

/* Reads a tensor of ranges, which must have from `min` to `max` axes, as `ranks` says,
 * and of its own rank the shape that `shapes` lists, in which WIRE_SHAPE_ANY is any size.
 * `advice` says what it holds. */
static bool read_ranges(const struct wire_safetensors_body *body,
                        enum wire_safetensors_id id, size_t min, size_t max,
                        const char *ranks, const size_t shapes[][RANGES_RANK_MAX],
                        const char *advice, struct wire_ranges *ret_ranges) {
    const struct safetensors_tensor *tensor = body->tensors[id];
    const char *name = wire_safetensors_name(id);
    struct wire_integers integers;
    bool fits = true;
    size_t *list;
    if (!wire_safetensors_check_rank(body, id, min, max, ranks))
        return false;
    const size_t *expected = shapes[tensor->rank - min];
    for (size_t axis = 0; axis < tensor->rank; axis++)
        fits = fits && (expected[axis] == WIRE_SHAPE_ANY ||
                        tensor->shape[axis] == expected[axis]);
    if (!fits) {
        wire_problem_set(body->problem, WIRE_E_SHAPE_MISMATCH, name,
                         "%s has another shape than it needs; send %s", name, advice);
        wire_shape_print(body->problem->expected, expected, tensor->rank);
        wire_shape_print(body->problem->got, tensor->shape, tensor->rank);
        return false;
    }
    if (!wire_safetensors_open_integers(body, id, &integers, &list))
        return false;

    for (size_t i = 0; i < tensor->elements; i++) {
        pace_add(sizeof(size_t));
        if (!wire_integers_read(&integers, i, &list[i], body->problem))
            return false;
    }
    *ret_ranges = (struct wire_ranges){.field = name,
                                       .list = list,
                                       .count = tensor->elements / 2,
                                       .levels = tensor->rank - 1};
    return true;
}

static bool safetensors_read_spans(const struct wire_safetensors_body *body, bool batched,
                                   attn_request *batch) {
    const size_t shapes[][RANGES_RANK_MAX] = {{WIRE_SHAPE_ANY, 2},
                                              {batch->num_sequences, WIRE_SHAPE_ANY, 2}};
    struct wire_ranges spans;
    if (body->tensors[WIRE_SAFETENSORS_SPANS] == NULL)
        return true;
    if (!read_ranges(body, WIRE_SAFETENSORS_SPANS, 2, batched ? 3 : 2,
                     batched ? "[S, 2], or [B, S, 2]" : "[S, 2]", shapes,
                     "a first key and an end for each span", &spans))
        return false;
    spans.per_sequence = spans.levels == 2;
    spans.count /= spans.per_sequence ? batch->num_sequences : 1;
    return wire_reduce_set_spans(&spans, batch, body->problem);
}

static bool safetensors_read_top_in(const struct wire_safetensors_body *body,
                                    attn_request *batch) {
    static const size_t shapes[][RANGES_RANK_MAX] = {{2}, {WIRE_SHAPE_ANY, 2}};
    struct wire_ranges ranges;
    return body->tensors[WIRE_SAFETENSORS_TOP_IN] == NULL ||
           (read_ranges(body, WIRE_SAFETENSORS_TOP_IN, 1, 2, "[2], or [R, 2]", shapes,
                        "a first key and an end for each range", &ranges) &&
            wire_reduce_set_top_in(&ranges, batch, body->problem));
}

/* Reads targets: of the rows of all sequences in order, or of one sequence for all. */
static bool safetensors_read_targets(const struct wire_safetensors_body *body,
                                     bool padded, attn_request *batch) {
    struct wire_ranges targets;
    size_t rows = 0;
    if (body->tensors[WIRE_SAFETENSORS_TARGETS] == NULL)
        return true;
    for (size_t b = 0; b < batch->num_sequences; b++)
        rows += batch->query_lens[b];
    const size_t shapes[][RANGES_RANK_MAX] = {
        {padded ? batch->query_lens[0] : rows, 2},
        {batch->num_sequences, batch->query_lens[0], 2}};
    if (!read_ranges(
            body, WIRE_SAFETENSORS_TARGETS, 2, padded ? 3 : 2,
            padded ? "[B, Tq, 2], or [Tq, 2]" : "a range for each query, [rows, 2]",
            shapes, "a first key and an end for each query, 0 and 0 for none", &targets))
        return false;
    targets.per_sequence = !padded || targets.levels == 2;
    return wire_reduce_set_targets(&targets, body->arena, batch, body->problem);
}

bool wire_safetensors_reduce_read(const struct wire_safetensors_body *body,
                                  const struct wire_safetensors_options *texts,
                                  const struct wire_need *need,
                                  struct wire_request *request) {
    attn_request *batch = &request->batch;
    const struct wire_reduce_options options = {
        .spans = body->tensors[WIRE_SAFETENSORS_SPANS] != NULL,
        .top_k = texts->texts[WIRE_OPTION_TOP_K] != NULL,
        .top_in = body->tensors[WIRE_SAFETENSORS_TOP_IN] != NULL,
        .targets = body->tensors[WIRE_SAFETENSORS_TARGETS] != NULL,
        .block = texts->texts[WIRE_OPTION_BLOCK] != NULL,
    };

    return wire_reduce_check_need(need, &options, body->problem) &&
           safetensors_read_spans(body, request->batched, batch) &&
           wire_safetensors_read_count(texts, WIRE_OPTION_TOP_K, "a number of keys",
                                       &batch->reduce.top_k) &&
           safetensors_read_top_in(body, batch) &&
           wire_reduce_check_top(batch, body->problem) &&
           safetensors_read_targets(body, request->batched && !request->packed, batch) &&
           wire_safetensors_read_count(texts, WIRE_OPTION_BLOCK,
                                       "a number of queries and keys",
                                       &batch->reduce.block);
}
