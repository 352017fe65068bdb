/* SPDX-License-Identifier: Apache-2.0 */
/* lens.c: reads valid_lens and positions from a safetensors body. */
#include "wire/safetensors/lens.h"

#include "base/error.h"
#include "base/pace.h"
#include "wire/refuse.h"

#include <string.h>

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
    bool padded = body->tensors[WIRE_SAFETENSORS_QUERIES]->rank ==
                  wire_safetensors_batched_rank(body);
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
static bool read_lens(const struct wire_safetensors_body *body,
                      const struct wire_integers *integers, const attn_request *batch,
                      size_t *lens) {
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

bool wire_safetensors_read_lens(const struct wire_safetensors_body *body,
                                const struct wire_tensor *queries, attn_request *batch) {
    struct wire_integers integers;
    size_t *lens;
    if (body->tensors[WIRE_SAFETENSORS_VALID_LENS] == NULL)
        return true;
    if (!check_valid_lens_shape(body, queries, &batch->valid_lens_per_query) ||
        !wire_safetensors_open_integers(body, WIRE_SAFETENSORS_VALID_LENS, &integers,
                                        &lens) ||
        !read_lens(body, &integers, batch, lens))
        return false;
    batch->valid_lens = lens;
    return true;
}

/* --- positions --- */

/* Checks the shape of positions: [B, T] or [T] where rows are padded, else [rows]. */
static bool check_positions_shape(const struct wire_safetensors_body *body,
                                  enum wire_safetensors_id id,
                                  const struct wire_positions *positions) {
    const struct wire_tensor *rows = positions->rows;
    const struct safetensors_tensor *list = body->tensors[id];
    struct wire_problem *problem = body->problem;
    bool padded = rows->batched && !rows->packed;
    size_t expected[] = {padded ? rows->lens[0] : rows->num_rows, rows->lens[0]};
    if (!wire_safetensors_check_rank(body, id, 1, padded ? 2 : 1,
                                     padded ? "[B, T], or [T] for all sequences"
                                            : "a number for each row, [rows]"))
        return false;
    if (list->rank == 2)
        expected[0] = rows->num_sequences;
    if (memcmp(list->shape, expected, list->rank * sizeof expected[0]) == 0)
        return true;

    wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, positions->field,
        "%s has %zu number%s, but there are %zu sequence%s with %zu row%s in "
        "all; send one for each %s",
        positions->field, list->elements, plural_of(list->elements), rows->num_sequences,
        plural_of(rows->num_sequences), rows->num_rows, plural_of(rows->num_rows),
        positions->thing);
    wire_shape_print(problem->expected, expected, list->rank);
    wire_shape_print(problem->got, list->shape, list->rank);
    return false;
}

bool wire_safetensors_read_positions(const void *context,
                                     const struct wire_positions *positions,
                                     const size_t **ret_list) {
    const struct wire_safetensors_body *body = context;
    enum wire_safetensors_id id = positions->id == WIRE_TENSOR_QUERIES
                                      ? WIRE_SAFETENSORS_POSITIONS
                                      : WIRE_SAFETENSORS_KEY_POSITIONS;
    const struct safetensors_tensor *tensor = body->tensors[id];
    struct wire_integers integers;
    size_t *list;
    if (tensor == NULL)
        return true;
    if (!wire_safetensors_open_integers(body, id, &integers, &list) ||
        !check_positions_shape(body, id, positions))
        return false;

    for (size_t i = 0; i < tensor->elements; i++) {
        if (!wire_integers_read(&integers, i, &list[i], body->problem))
            return false;
        if (list[i] > ATTN_POSITION_MAX)
            return wire_integers_refuse(&integers, i, WIRE_POSITION_LIMIT, 0,
                                        ATTN_POSITION_MAX, body->problem);
        pace_add(sizeof(size_t));
    }
    *ret_list = list;
    return tensor->elements == positions->rows->num_rows ||
           wire_positions_repeat(positions, list, body->arena, ret_list, body->problem);
}
