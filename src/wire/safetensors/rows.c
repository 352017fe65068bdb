/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: reads tensors of integers: one for each row or sequence, indices of heads and
 * rows, and ranges of keys. */
#include "wire/safetensors/rows.h"

#include "base/error.h"
#include "base/pace.h"
#include "wire/checks/reduce.h"
#include "wire/checks/selection.h"
#include "wire/refuse.h"

#include <string.h>

#define RANGES_RANK_MAX 3 /* of a tensor of ranges */

/* --- valid_lens --- */

/* Refuses valid_lens that has neither one number for each sequence nor one for each
 * query. */
static bool refuse_valid_lens_shape(const struct wire_safetensors_body *body,
                                    const struct wire_tensor *queries) {
    const struct safetensors_tensor *lens = body->tensors[WIRE_SAFETENSORS_VALID_LENS];
    struct wire_problem *problem = body->problem;
    wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, "valid_lens",
        "valid_lens has %zu number%s, but queries has %zu sequence%s with %zu "
        "row%s in all; send one for each sequence, or one for each row",
        lens->elements, plural_of(lens->elements), queries->num_sequences,
        plural_of(queries->num_sequences), queries->num_rows,
        plural_of(queries->num_rows));
    size_t expected[] = {queries->num_sequences, queries->lens[0]};
    if (!queries->batched)
        expected[0] = queries->num_rows;
    wire_shape_print(problem->expected, expected, lens->rank);
    wire_shape_print(problem->got, lens->shape, lens->rank);
    return false;
}

/* Checks the shape of valid_lens. It has one number for each sequence, or, when
 * *ret_per_query, one for each query. */
static bool check_valid_lens_shape(const struct wire_safetensors_body *body,
                                   const struct wire_tensor *queries,
                                   bool *ret_per_query) {
    const struct safetensors_tensor *lens = body->tensors[WIRE_SAFETENSORS_VALID_LENS];
    const struct safetensors_tensor *sent = body->tensors[WIRE_SAFETENSORS_QUERIES];
    bool padded = sent != NULL && sent->rank == wire_safetensors_batched_rank(body);
    const char *shapes = "a single number, [1] or [Tq]";
    if (padded)
        shapes = "[B] or [B, Tq]";
    else if (queries->batched)
        shapes = "[B] or [sum of query_lens]";
    if (!wire_safetensors_check_rank(body, WIRE_SAFETENSORS_VALID_LENS,
                                     queries->batched ? 1 : 0, padded ? 2 : 1, shapes))
        return false;

    bool per_query, fits;
    if (padded) {
        per_query = lens->rank == 2;
        fits = lens->shape[0] == queries->num_sequences &&
               (!per_query || lens->shape[1] == queries->lens[0]);
    } else {
        per_query = lens->rank == 1 && lens->elements == queries->num_rows;
        fits = per_query || lens->elements == queries->num_sequences;
    }
    *ret_per_query = per_query;
    return fits || refuse_valid_lens_shape(body, queries);
}

/* Reads the numbers of valid_lens, whose shape was checked. */
static bool safetensors_read_lens(const struct wire_safetensors_body *body,
                                  const struct wire_integers *integers,
                                  const attn_request *batch, size_t *lens) {
    size_t i = 0;
    for (size_t b = 0; b < batch->num_sequences; b++) {
        size_t count = batch->valid_lens_per_query ? batch->query_lens[b] : 1;
        for (size_t end = i + count; i < end; i++) {
            char limit[WIRE_LENS_LIMIT_MAX];
            size_t max = batch->key_lens[b];
            pace_add(sizeof(size_t));
            if (!wire_integers_read(integers, i, &lens[i], body->problem))
                return false;
            if (lens[i] > max) {
                wire_lens_limit(limit, max);
                return wire_integers_refuse(integers, i, limit, 0, max, body->problem);
            }
        }
    }
    return true;
}

static bool safetensors_read_valid_lens(const struct wire_safetensors_body *body,
                                        const struct wire_tensor *queries,
                                        attn_request *batch) {
    struct wire_integers integers;
    size_t *lens;
    if (body->tensors[WIRE_SAFETENSORS_VALID_LENS] == NULL)
        return true;
    if (!check_valid_lens_shape(body, queries, &batch->valid_lens_per_query) ||
        !wire_safetensors_open_integers(body, WIRE_SAFETENSORS_VALID_LENS, &integers,
                                        &lens) ||
        !safetensors_read_lens(body, &integers, batch, lens))
        return false;
    batch->valid_lens = lens;
    return wire_valid_lens_check(batch, body->problem);
}

/* --- positions --- */

/* Returns the shapes that positions may have. */
static const char *name_position_shapes(const struct wire_positions *positions,
                                        bool padded) {
    bool sections = positions->sections;
    if (padded)
        return sections ? "[B, T], [T] for all sequences, or [B, 3, T]"
                        : "[B, T], or [T] for all sequences";
    return sections ? "a number for each row, [rows], or three, [3, rows]"
                    : "a number for each row, [rows]";
}

/* Checks the shape of positions: [B, 3, T], [B, T] or [T] where rows are padded, else
 * [3, rows] or [rows]. *ret_axes is whether there are three axes. */
static bool check_positions_shape(const struct wire_safetensors_body *body,
                                  enum wire_safetensors_id id,
                                  const struct wire_positions *positions,
                                  bool *ret_axes) {
    const struct wire_tensor *rows = positions->rows;
    const struct safetensors_tensor *list = body->tensors[id];
    struct wire_problem *problem = body->problem;
    bool padded = rows->batched && !rows->packed;
    size_t max = padded ? 2 : 1, len = padded ? rows->lens[0] : rows->num_rows;
    bool axes = *ret_axes = list->rank == max + 1;
    if (!wire_safetensors_check_rank(body, id, 1, max + (axes && positions->sections),
                                     name_position_shapes(positions, padded)))
        return false;

    size_t expected[3] = {rows->num_sequences};
    expected[list->rank - 1] = len;
    if (axes)
        expected[list->rank - 2] = ATTN_AXES;
    if (memcmp(list->shape, expected, list->rank * sizeof expected[0]) == 0)
        return true;

    wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, positions->field,
        "%s has %zu number%s, but there are %zu sequence%s with %zu row%s in "
        "all; send one for each %s%s",
        positions->field, list->elements, plural_of(list->elements), rows->num_sequences,
        plural_of(rows->num_sequences), rows->num_rows, plural_of(rows->num_rows),
        positions->thing, axes ? ", on each of three axes" : "");
    wire_shape_print(problem->expected, expected, list->rank);
    wire_shape_print(problem->got, list->shape, list->rank);
    return false;
}

/* Reads the positions from index *i on into `list`, and moves *i past them. */
static bool read_position_run(const struct wire_safetensors_body *body,
                              const struct wire_integers *integers, size_t count,
                              size_t *i, size_t *list) {
    for (size_t end = *i + count; *i < end; ++*i, list++) {
        if (!wire_integers_read(integers, *i, list, body->problem))
            return false;
        if (*list > ATTN_POSITION_MAX)
            return wire_integers_refuse(integers, *i, WIRE_POSITION_LIMIT, 0,
                                        ATTN_POSITION_MAX, body->problem);
        pace_add(sizeof(size_t));
    }
    return true;
}

/* Reads [3, rows] of sequences of any lengths, which become [3, T] of each. */
static bool read_packed_axes(const struct wire_safetensors_body *body,
                             const struct wire_integers *integers,
                             const struct wire_tensor *rows, size_t *list) {
    size_t i = 0;
    for (size_t axis = 0; axis < ATTN_AXES; axis++) {
        size_t *to = list;
        for (size_t b = 0; b < rows->num_sequences; b++) {
            size_t len = rows->lens[b];
            pace_add(1);
            if (!read_position_run(body, integers, len, &i, to + axis * len))
                return false;
            to += ATTN_AXES * len;
        }
    }
    return true;
}

/* wire_positions_source of a body, which is the context. */
static bool safetensors_read_positions(const void *context,
                                       const struct wire_positions *positions,
                                       struct wire_position_list *ret_list) {
    const struct wire_safetensors_body *body = context;
    const struct wire_tensor *rows = positions->rows;
    enum wire_safetensors_id id = positions->id == WIRE_TENSOR_QUERIES
                                      ? WIRE_SAFETENSORS_POSITIONS
                                      : WIRE_SAFETENSORS_KEY_POSITIONS;
    const struct safetensors_tensor *tensor = body->tensors[id];
    struct wire_integers integers;
    size_t *list, i = 0;
    bool *axes = &ret_list->axes;
    if (tensor == NULL)
        return true;
    if (!wire_safetensors_open_integers(body, id, &integers, &list) ||
        !check_positions_shape(body, id, positions, axes) ||
        !(*axes && rows->packed
              ? read_packed_axes(body, &integers, rows, list)
              : read_position_run(body, &integers, tensor->elements, &i, list)))
        return false;
    ret_list->numbers = list;
    return *axes || tensor->elements == rows->num_rows ||
           wire_positions_repeat(positions, list, body->arena, ret_list, body->problem);
}

/* --- weights_heads and weights_queries --- */

static bool safetensors_read_selection(const struct wire_safetensors_body *body,
                                       enum wire_safetensors_id id,
                                       enum wire_selected which,
                                       struct wire_request *request) {
    const struct safetensors_tensor *tensor = body->tensors[id];
    struct wire_indices indices;
    struct wire_integers integers;
    size_t *list;
    if (tensor == NULL)
        return true;
    if (!wire_safetensors_check_rank(body, id, 1, 1, "a list of indices, [N]") ||
        !wire_safetensors_open_integers(body, id, &integers, &list) ||
        !wire_indices_init(&indices, request, which, body->arena, body->problem))
        return false;

    for (size_t i = 0; i < tensor->elements; i++) {
        if (!(indices.from_end ? wire_integers_read_index : wire_integers_read)(
                &integers, i, &list[i], body->problem))
            return false;
        if (!wire_indices_allow(&indices, list[i])) {
            char limit[WIRE_INDICES_LIMIT_MAX];
            wire_indices_limit(&indices, limit);
            return wire_integers_refuse(&integers, i, limit, wire_indices_least(&indices),
                                        indices.limit - 1, body->problem);
        }
        if (!wire_indices_add(&indices, i, list[i], body->problem))
            return false;
        pace_add(sizeof(size_t));
    }
    wire_selection_set(request, which, list, tensor->elements);
    return wire_indices_check_ends(&indices, list, tensor->elements, &request->batch,
                                   body->problem);
}

/* --- spans, top_in and targets --- */

/* Reads a tensor of ranges, which must have from `min` to `max` axes, as `ranks` says,
 * and of its own rank the shape that `shapes` lists, in which WIRE_SHAPE_ANY is any size.
 * `advice` says what it holds. */
static bool safetensors_read_ranges(const struct wire_safetensors_body *body,
                                    enum wire_safetensors_id id, size_t min, size_t max,
                                    const char *ranks,
                                    const size_t shapes[][RANGES_RANK_MAX],
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
    if (!safetensors_read_ranges(body, WIRE_SAFETENSORS_SPANS, 2, batched ? 3 : 2,
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
           (safetensors_read_ranges(body, WIRE_SAFETENSORS_TOP_IN, 1, 2, "[2], or [R, 2]",
                                    shapes, "a first key and an end for each range",
                                    &ranges) &&
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
    if (!safetensors_read_ranges(
            body, WIRE_SAFETENSORS_TARGETS, 2, padded ? 3 : 2,
            padded ? "[B, Tq, 2], or [Tq, 2]" : "a range for each query, [rows, 2]",
            shapes, "a first key and an end for each query, 0 and 0 for none", &targets))
        return false;
    targets.per_sequence = !padded || targets.levels == 2;
    return wire_reduce_set_targets(&targets, body->arena, batch, body->problem);
}

static bool safetensors_read_reductions(const struct wire_safetensors_body *body,
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

/* --- all of them --- */

bool wire_safetensors_read_rows(const struct wire_safetensors_body *body,
                                const struct wire_safetensors_options *options,
                                const struct wire_tensors *tensors,
                                const struct wire_need *need,
                                struct wire_request *request) {
    return safetensors_read_reductions(body, options, need, request) &&
           safetensors_read_selection(body, WIRE_SAFETENSORS_WEIGHTS_HEADS,
                                      WIRE_SELECTED_HEADS, request) &&
           safetensors_read_selection(body, WIRE_SAFETENSORS_WEIGHTS_QUERIES,
                                      WIRE_SELECTED_QUERIES, request) &&
           wire_selection_check(request, body->problem) &&
           safetensors_read_valid_lens(body, &tensors->queries, &request->batch) &&
           wire_positions_read(safetensors_read_positions, body, tensors,
                               attn_model_get_info(request->model), &request->batch,
                               body->problem);
}
