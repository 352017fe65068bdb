/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: reads ranges of keys from the tensors of a safetensors body. */
#include "wire/safetensors/reduce.h"

#include "base/pace.h"
#include "wire/refuse.h"

#include <stdio.h>
#include <string.h>

#define RANGES_RANK_MAX 3 /* of a tensor of ranges */

/* Checks that a tensor of ranges has the shape `expected` of its own rank, in which
 * WIRE_SHAPE_ANY is any size. */
static bool check_ranges_shape(const struct wire_safetensors_body *body,
                               enum wire_safetensors_id id, const size_t *expected,
                               const char *advice) {
    const struct safetensors_tensor *tensor = body->tensors[id];
    const char *name = wire_safetensors_name(id);
    bool fits = true;
    for (size_t axis = 0; axis < tensor->rank && axis < RANGES_RANK_MAX; axis++)
        fits = fits && (expected[axis] == WIRE_SHAPE_ANY ||
                        tensor->shape[axis] == expected[axis]);
    if (fits)
        return true;
    wire_problem_set(body->problem, WIRE_E_SHAPE_MISMATCH, name,
                     "%s has another shape than it needs; send %s", name, advice);
    wire_shape_print(body->problem->expected, expected, tensor->rank);
    wire_shape_print(body->problem->got, tensor->shape, tensor->rank);
    return false;
}

/* Reads ranges first..end of the list, for sequences of `keys` keys. With `empty`, 0, 0
 * is a row without a range. */
static bool safetensors_read_ranges(const struct wire_safetensors_body *body,
                                    const struct wire_integers *integers, size_t first,
                                    size_t end, size_t keys, const char *of, bool empty,
                                    size_t *list) {
    for (size_t i = first; i < end; i++) {
        struct wire_place place = {.field = integers->field, .depth = integers->rank - 1};
        size_t *range = list + 2 * i, rest = i;
        pace_add(2 * sizeof(size_t));
        if (!wire_integers_read(integers, 2 * i, &range[0], body->problem) ||
            !wire_integers_read(integers, 2 * i + 1, &range[1], body->problem))
            return false;
        if (empty && range[0] == 0 && range[1] == 0)
            continue;
        for (size_t axis = place.depth; axis-- > 0; rest /= integers->shape[axis])
            place.index[axis] = rest % integers->shape[axis];
        if (!wire_reduce_check_range(&place, range[0], range[1], keys, of, body->problem))
            return false;
    }
    return true;
}

static const char *name_shortest(const attn_request *batch) {
    return batch->num_sequences > 1 ? "the shortest sequence" : "its sequence";
}

static bool safetensors_read_spans(const struct wire_safetensors_body *body, bool batched,
                                   attn_request *batch) {
    const enum wire_safetensors_id id = WIRE_SAFETENSORS_SPANS;
    const struct safetensors_tensor *tensor = body->tensors[id];
    attn_reductions *reduce = &batch->reduce;
    struct wire_integers integers;
    size_t *list;
    if (tensor == NULL)
        return true;
    if (!wire_safetensors_check_rank(body, id, 2, batched ? 3 : 2,
                                     batched ? "[S, 2], or [B, S, 2]" : "[S, 2]"))
        return false;
    const size_t shared[RANGES_RANK_MAX] = {WIRE_SHAPE_ANY, 2};
    const size_t own[RANGES_RANK_MAX] = {batch->num_sequences, WIRE_SHAPE_ANY, 2};
    if (!check_ranges_shape(body, id, tensor->rank == 3 ? own : shared,
                            "a first key and an end for each span") ||
        !wire_safetensors_open_integers(body, id, &integers, &list))
        return false;

    reduce->spans = list;
    reduce->spans_per_sequence = tensor->rank == 3;
    reduce->num_spans = tensor->shape[tensor->rank - 2];
    if (!reduce->spans_per_sequence)
        return safetensors_read_ranges(body, &integers, 0, reduce->num_spans,
                                       wire_reduce_shortest(batch), name_shortest(batch),
                                       false, list);
    for (size_t b = 0, first = 0; b < batch->num_sequences;
         b++, first += reduce->num_spans) {
        if (!safetensors_read_ranges(body, &integers, first, first + reduce->num_spans,
                                     batch->key_lens[b], "its sequence", false, list))
            return false;
    }
    return true;
}

static bool safetensors_read_top_in(const struct wire_safetensors_body *body,
                                    attn_request *batch) {
    const enum wire_safetensors_id id = WIRE_SAFETENSORS_TOP_IN;
    const struct safetensors_tensor *tensor = body->tensors[id];
    const size_t list_shape[RANGES_RANK_MAX] = {WIRE_SHAPE_ANY, 2},
                 one_shape[RANGES_RANK_MAX] = {2};
    struct wire_integers integers;
    size_t *list;
    if (tensor == NULL)
        return true;
    if (!wire_safetensors_check_rank(body, id, 1, 2, "[2], or [R, 2]") ||
        !check_ranges_shape(body, id, tensor->rank == 1 ? one_shape : list_shape,
                            "a first key and an end for each range") ||
        !wire_safetensors_open_integers(body, id, &integers, &list))
        return false;
    batch->reduce.top_in = list;
    batch->reduce.num_top_in = tensor->elements / 2;
    return safetensors_read_ranges(body, &integers, 0, tensor->elements / 2,
                                   wire_reduce_shortest(batch), name_shortest(batch),
                                   false, list);
}

/* Reads targets: of the rows of all sequences in order, or of one sequence for all. */
static bool safetensors_read_targets(const struct wire_safetensors_body *body,
                                     bool packed, bool batched, attn_request *batch) {
    const enum wire_safetensors_id id = WIRE_SAFETENSORS_TARGETS;
    const struct safetensors_tensor *tensor = body->tensors[id];
    size_t rows = 0, first = 0, *list;
    struct wire_integers integers;
    if (tensor == NULL)
        return true;
    for (size_t b = 0; b < batch->num_sequences; b++)
        rows += batch->query_lens[b];
    bool padded = batched && !packed;
    const size_t own[RANGES_RANK_MAX] = {batch->num_sequences, batch->query_lens[0], 2};
    const size_t one[RANGES_RANK_MAX] = {padded ? batch->query_lens[0] : rows, 2};
    if (!wire_safetensors_check_rank(body, id, 2, padded ? 3 : 2,
                                     padded ? "[B, Tq, 2], or [Tq, 2]"
                                            : "a range for each query, [rows, 2]") ||
        !check_ranges_shape(body, id, tensor->rank == 3 ? own : one,
                            "a first key and an end for each query, 0 and 0 for none") ||
        !wire_safetensors_open_integers(body, id, &integers, &list))
        return false;

    batch->reduce.targets = list;
    if (padded && tensor->rank == 2)
        return safetensors_read_ranges(body, &integers, 0, one[0],
                                       wire_reduce_shortest(batch), name_shortest(batch),
                                       true, list) &&
               wire_reduce_repeat(batch, body->arena, &batch->reduce.targets,
                                  body->problem);
    for (size_t b = 0; b < batch->num_sequences; first += batch->query_lens[b++]) {
        if (!safetensors_read_ranges(body, &integers, first, first + batch->query_lens[b],
                                     batch->key_lens[b], "its sequence", true, list))
            return false;
    }
    return true;
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
           safetensors_read_targets(body, request->packed, request->batched, batch) &&
           wire_safetensors_read_count(texts, WIRE_OPTION_BLOCK,
                                       "a number of queries and keys",
                                       &batch->reduce.block);
}
