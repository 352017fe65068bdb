/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c: checks and converts the tensors of a safetensors body. */
#include "wire/safetensors/tensors.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "wire/refuse.h"

#include <stdio.h>
#include <string.h>

static const char *const tensor_names[WIRE_SAFETENSORS_NUM_TENSORS] = {
    [WIRE_SAFETENSORS_QUERIES] = "queries",
    [WIRE_SAFETENSORS_KEYS] = "keys",
    [WIRE_SAFETENSORS_VALUES] = "values",
    [WIRE_SAFETENSORS_VALID_LENS] = "valid_lens",
    [WIRE_SAFETENSORS_POSITIONS] = "positions",
    [WIRE_SAFETENSORS_KEY_POSITIONS] = "key_positions",
    [WIRE_SAFETENSORS_HEAD_MASK] = "head_mask",
    [WIRE_SAFETENSORS_WEIGHTS_HEADS] = "weights_heads",
    [WIRE_SAFETENSORS_WEIGHTS_QUERIES] = "weights_queries",
    [WIRE_SAFETENSORS_SPANS] = "spans",
    [WIRE_SAFETENSORS_TOP_IN] = "top_in",
    [WIRE_SAFETENSORS_TARGETS] = "targets",
    [WIRE_SAFETENSORS_BIAS] = "bias",
    [WIRE_SAFETENSORS_SINKS] = "sinks",
    [WIRE_SAFETENSORS_SLOPES] = "slopes",
    [WIRE_SAFETENSORS_QUERY_LENS] = "query_lens",
    [WIRE_SAFETENSORS_KEY_LENS] = "key_lens",
    [WIRE_SAFETENSORS_QUERY_ROWS] = "query_rows",
};

const char *wire_safetensors_name(enum wire_safetensors_id id) {
    return tensor_names[id];
}

static const unsigned char *bytes_of(const struct wire_safetensors_body *body,
                                     enum wire_safetensors_id id) {
    return body->data + body->tensors[id]->begin;
}

static bool is_float_tensor(enum wire_safetensors_id id) {
    return id <= WIRE_SAFETENSORS_VALUES || id == WIRE_SAFETENSORS_HEAD_MASK ||
           (id >= WIRE_SAFETENSORS_BIAS && id <= WIRE_SAFETENSORS_SLOPES);
}

/* Whether these are keys that stay as they are, see attn_request.encoded_keys. */
static bool is_encoded(const struct wire_safetensors_body *body,
                       enum wire_safetensors_id id) {
    const char *type = body->tensors[id]->dtype->name;
    return body->given && id == WIRE_SAFETENSORS_KEYS &&
           (strcmp(type, "BF16") == 0 || strcmp(type, "F16") == 0);
}

/* Whether the numbers of a float tensor are used without a copy. */
static bool is_float_array(const struct wire_safetensors_body *body,
                           enum wire_safetensors_id id) {
    return dtype_is_float_array(body->tensors[id]->dtype->name, bytes_of(body, id)) ||
           is_encoded(body, id);
}

bool wire_safetensors_is_in_body(const struct wire_safetensors_body *body) {
    for (int i = 0; i < WIRE_SAFETENSORS_NUM_TENSORS; i++) {
        enum wire_safetensors_id id = (enum wire_safetensors_id)i;
        if (body->tensors[id] != NULL && is_float_tensor(id) && is_float_array(body, id))
            return true;
    }
    return false;
}

/* Finds the tensor with the lengths of `id`: query_lens, but key_lens for keys and values
 * when the body has it. Returns false when the body has no such tensor. */
static bool find_lens(const struct wire_safetensors_body *body,
                      enum wire_safetensors_id id, enum wire_safetensors_id *ret_lens) {
    bool has_key_lens = body->tensors[WIRE_SAFETENSORS_KEY_LENS] != NULL;
    *ret_lens = id != WIRE_SAFETENSORS_QUERIES && has_key_lens
                    ? WIRE_SAFETENSORS_KEY_LENS
                    : WIRE_SAFETENSORS_QUERY_LENS;
    return body->tensors[*ret_lens] != NULL;
}

/* --- memory --- */

/* Adds the bytes of a list of positions that is copied for each sequence of a batch. */
static bool add_repeated(const struct wire_safetensors_body *body,
                         enum wire_safetensors_id id, size_t *bytes) {
    const struct safetensors_tensor *list = body->tensors[id];
    const struct safetensors_tensor *rows = body->tensors[WIRE_SAFETENSORS_KEYS];
    size_t repeated;
    if (id == WIRE_SAFETENSORS_POSITIONS || rows == NULL)
        rows = body->tensors[WIRE_SAFETENSORS_QUERIES];
    if (rows == NULL || rows->rank != wire_safetensors_batched_rank(body) ||
        list->rank != 1)
        return true;
    return size_mul(list->elements, sizeof(size_t), &repeated) &&
           size_add_mul(bytes, rows->shape[0], repeated);
}

/* Returns the most bytes that reading one tensor needs; the model has `num_heads`. */
static size_t tensor_cost(const struct wire_safetensors_body *body, size_t num_heads,
                          enum wire_safetensors_id id) {
    const struct safetensors_tensor *tensor = body->tensors[id];
    const struct safetensors_tensor *queries = body->tensors[WIRE_SAFETENSORS_QUERIES];
    /* Up to three arrays are aligned: numbers, lengths, and marks. A mark says that an
     * index was seen, which finds duplicates. */
    size_t bytes = (size_t)4 * ARENA_ALIGNMENT, repeated;
    bool fits = true;

    if (id == WIRE_SAFETENSORS_QUERY_LENS || id == WIRE_SAFETENSORS_KEY_LENS)
        /* read at most once each for queries, keys and values */
        fits = size_add_mul(&bytes, tensor->elements, 3 * sizeof(size_t));
    else if (!is_float_tensor(id))
        fits = size_add_mul(&bytes, tensor->elements, sizeof(size_t));
    else if (!is_float_array(body, id))
        fits = size_add_mul(&bytes, tensor->elements, sizeof(float));

    if (id <= WIRE_SAFETENSORS_VALUES &&
        tensor->rank == wire_safetensors_batched_rank(body))
        fits = fits && size_add_mul(&bytes, tensor->shape[0], sizeof(size_t));
    if (id == WIRE_SAFETENSORS_POSITIONS || id == WIRE_SAFETENSORS_KEY_POSITIONS)
        fits = fits && add_repeated(body, id, &bytes);
    /* A mark is a byte, for each head or each query. */
    if (id == WIRE_SAFETENSORS_WEIGHTS_HEADS)
        fits = fits && size_add(bytes, num_heads, &bytes);
    if (id == WIRE_SAFETENSORS_WEIGHTS_QUERIES && queries != NULL)
        fits = fits && size_add_mul(&bytes, queries->elements, 2);
    if (id == WIRE_SAFETENSORS_TARGETS && queries != NULL && queries->rank > 0 &&
        tensor->rank == 2)
        fits = fits && size_mul(tensor->elements, queries->shape[0], &repeated) &&
               size_add_mul(&bytes, repeated,
                            queries->rank == wire_safetensors_batched_rank(body)
                                ? sizeof(size_t)
                                : 0);
    return fits ? bytes : SIZE_MAX;
}

size_t wire_safetensors_cost(const struct wire_safetensors_body *body, size_t num_heads) {
    size_t bytes = 0;
    for (int i = 0; i < WIRE_SAFETENSORS_NUM_TENSORS; i++) {
        if (body->tensors[i] != NULL)
            size_add_saturating(
                &bytes, tensor_cost(body, num_heads, (enum wire_safetensors_id)i));
    }
    return bytes;
}

/* --- refusals --- */

static bool refuse_dtype(const struct wire_safetensors_body *body,
                         enum wire_safetensors_id id, const char *wanted,
                         const char *expected) {
    struct wire_problem *problem = body->problem;
    const char *dtype = body->tensors[id]->dtype->name;
    const char *remedy =
        strcmp(dtype, "BOOL") == 0 ? wire_type_remedy(tensor_names[id], "boolean") : NULL;
    if (remedy != NULL)
        wanted = remedy;
    wire_problem_set(problem, WIRE_E_WRONG_DTYPE, tensor_names[id],
                     "%s has dtype %s; send %s%s%s", tensor_names[id], dtype,
                     remedy == NULL ? "it as " : "", wanted,
                     strcmp(dtype, "U16") == 0 ? "; bits of bfloat16 are BF16" : "");
    snprintf(problem->expected, sizeof problem->expected, "%s", expected);
    snprintf(problem->got, sizeof problem->got, "\"%s\"", dtype);
    return false;
}

bool wire_safetensors_check_rank(const struct wire_safetensors_body *body,
                                 enum wire_safetensors_id id, size_t min, size_t max,
                                 const char *shapes) {
    struct wire_problem *problem = body->problem;
    size_t rank = body->tensors[id]->rank;
    if (rank >= min && rank <= max)
        return true;

    wire_problem_set(problem, WIRE_E_WRONG_RANK, tensor_names[id],
                     "%s has rank %zu; send %s", tensor_names[id], rank, shapes);
    wire_levels_print(problem->expected, min, max);
    snprintf(problem->got, sizeof problem->got, "%zu", rank);
    return false;
}

static bool check_not_empty(const struct wire_safetensors_body *body,
                            enum wire_safetensors_id id) {
    if (body->tensors[id]->elements > 0)
        return true;
    return wire_problem_set(
        body->problem, WIRE_E_EMPTY_TENSOR, tensor_names[id],
        "%s has a dimension of 0; send at least one element, or leave it out",
        tensor_names[id]);
}

/* --- numbers --- */

bool wire_safetensors_read_floats(const struct wire_safetensors_body *body,
                                  enum wire_safetensors_id id,
                                  const float **ret_numbers) {
    const struct safetensors_tensor *tensor = body->tensors[id];
    if (tensor->dtype->to_float == NULL)
        return refuse_dtype(body, id, "F32, F16, BF16 or F64",
                            "[\"F32\",\"F16\",\"BF16\",\"F64\"]");
    if (!check_not_empty(body, id))
        return false;
    if (is_float_array(body, id)) {
        *ret_numbers = (const float *)(const void *)bytes_of(body, id);
        return true;
    }

    float *numbers = arena_alloc(body->arena, tensor->elements, sizeof *numbers);
    if (numbers == NULL)
        return wire_problem_set_no_memory(body->problem);
    pace_to_float(tensor->dtype, bytes_of(body, id), tensor->elements, numbers);
    *ret_numbers = numbers;
    return true;
}

bool wire_safetensors_open_integers(const struct wire_safetensors_body *body,
                                    enum wire_safetensors_id id,
                                    struct wire_integers *ret_integers,
                                    size_t **ret_room) {
    const struct safetensors_tensor *tensor = body->tensors[id];
    if (!wire_integers_allow(tensor->dtype->name))
        return refuse_dtype(body, id, "I64, I32, F64 or F32",
                            "[\"I64\",\"I32\",\"F64\",\"F32\"]");
    if (!check_not_empty(body, id))
        return false;

    *ret_integers = (struct wire_integers){.field = tensor_names[id],
                                           .dtype = tensor->dtype,
                                           .bytes = bytes_of(body, id),
                                           .rank = tensor->rank,
                                           .shape = tensor->shape};
    *ret_room = arena_alloc(body->arena, tensor->elements, sizeof **ret_room);
    return *ret_room != NULL || wire_problem_set_no_memory(body->problem);
}

/* --- queries, keys, values --- */

/* Checks the rank of a tensor that has no lengths beside it. */
static bool check_levels(const struct wire_safetensors_body *body,
                         enum wire_safetensors_id id, size_t min, size_t max) {
    const char *shapes = "[T, width] as queries have no batch axis";
    if (body->heads_axis) {
        shapes = "[T, heads, head size] as queries have no batch axis";
        if (min != max)
            shapes = "[B, T, heads, head size], [T, heads, head size], or [sum of "
                     "query_lens, heads, head size] with query_lens; or num_heads, with "
                     "heads side by side";
        else if (min == WIRE_LEVELS_BATCHED)
            shapes = "[B, T, heads, head size] as queries have a batch axis, or [sum of "
                     "key_lens, heads, head size] with key_lens";
        return wire_safetensors_check_rank(body, id, min + 1, max + 1, shapes);
    }
    if (min != max)
        shapes = "[B, T, width], [T, width], "
                 "or [sum of query_lens, width] with query_lens";
    else if (min == WIRE_LEVELS_BATCHED)
        shapes = "[B, T, width] as queries have a batch axis, "
                 "or [sum of key_lens, width] with key_lens";
    return wire_safetensors_check_rank(body, id, min, max, shapes);
}

/* Checks the rank of a tensor whose lengths are in the tensor `lens`. */
static bool check_packed_levels(const struct wire_safetensors_body *body,
                                enum wire_safetensors_id id,
                                enum wire_safetensors_id lens) {
    const char *width = body->heads_axis ? "heads, head size" : "width";
    size_t axis = body->heads_axis;
    char shapes[160];
    snprintf(shapes, sizeof shapes, "rank %zu, [sum of %s, %s], or rank %zu, [B, T, %s]",
             2 + axis, tensor_names[lens], width, 3 + axis, width);
    return wire_safetensors_check_rank(body, id, 2 + axis, 3 + axis, shapes);
}

/* Reads the lengths of a tensor without padding, each at least 1, and adds them up. The
 * sum is capped at INT64_MAX: no tensor has so many rows, and many clients could not
 * parse a larger number in the reply. */
static bool sum_lens(const struct wire_safetensors_body *body,
                     const struct wire_integers *lens, struct wire_tensor *tensor,
                     size_t *ret_sum) {
    char limit[48];
    size_t sum = 0;
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        size_t *len = &tensor->lens[b];
        if (!wire_integers_read(lens, b, len, body->problem))
            return false;
        if (*len == 0 || *len == SIZE_MAX) {
            snprintf(limit, sizeof limit, "its tensor has %zu row%s", tensor->num_rows,
                     plural_of(tensor->num_rows));
            return wire_integers_refuse(lens, b, limit, 1, tensor->num_rows,
                                        body->problem);
        }
        if (!size_add(sum, *len, &sum) || sum > INT64_MAX)
            sum = INT64_MAX;
        pace_add(sizeof(size_t));
    }
    *ret_sum = sum;
    return true;
}

/* Reads the lengths of a tensor without padding, which must add up to its rows. */
static bool read_packed_lens(const struct wire_safetensors_body *body,
                             enum wire_safetensors_id id, enum wire_safetensors_id lens,
                             struct wire_tensor *tensor) {
    struct wire_problem *problem = body->problem;
    struct wire_integers integers;
    size_t sum = 0;
    tensor->num_sequences = body->tensors[lens]->elements;
    if (!wire_safetensors_check_rank(body, lens, 1, 1,
                                     "one length for each sequence, [B]") ||
        !wire_safetensors_open_integers(body, lens, &integers, &tensor->lens) ||
        !sum_lens(body, &integers, tensor, &sum))
        return false;
    if (sum == tensor->num_rows)
        return true;

    wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, tensor_names[id],
        "%s has %zu row%s, but %s add up to %zu%s; send one row for each token",
        tensor_names[id], tensor->num_rows, plural_of(tensor->num_rows),
        tensor_names[lens], sum, sum == INT64_MAX ? " or more" : "");
    const size_t expected[] = {sum, tensor->width};
    wire_shape_print(problem->expected, expected, 2);
    wire_shape_print(problem->got, body->tensors[id]->shape, 2);
    return false;
}

/* Makes the lengths of a tensor whose sequences are equally long. */
static bool make_equal_lens(const struct wire_safetensors_body *body,
                            size_t num_sequences, struct wire_tensor *tensor) {
    tensor->num_sequences = num_sequences;
    tensor->lens = arena_alloc(body->arena, num_sequences, sizeof *tensor->lens);
    if (tensor->lens == NULL)
        return wire_problem_set_no_memory(body->problem);
    for (size_t b = 0; b < num_sequences; b++) {
        tensor->lens[b] = tensor->num_rows / num_sequences;
        pace_add(sizeof(size_t));
    }
    return true;
}

/* Reads the numbers of a tensor, or finds where they are encoded. */
static bool read_elements(const struct wire_safetensors_body *body,
                          enum wire_safetensors_id id, struct wire_tensor *tensor) {
    if (!is_encoded(body, id))
        return wire_safetensors_read_floats(body, id, &tensor->rows);
    tensor->encoded = bytes_of(body, id);
    tensor->type = body->tensors[id]->dtype->name;
    return check_not_empty(body, id);
}

bool wire_safetensors_read_tensor(const struct wire_safetensors_body *body,
                                  enum wire_safetensors_id id, size_t min, size_t max,
                                  struct wire_tensor *ret_tensor) {
    const struct safetensors_tensor *tensor = body->tensors[id];
    struct wire_tensor made = {0};
    enum wire_safetensors_id lens;
    bool has_batch_axis = tensor->rank == wire_safetensors_batched_rank(body);
    bool has_lens = find_lens(body, id, &lens);

    made.packed = has_lens && !has_batch_axis;
    bool right_rank = made.packed ? check_packed_levels(body, id, lens)
                                  : check_levels(body, id, min, max);
    if (!right_rank || !read_elements(body, id, &made))
        return false;

    made.width = tensor->shape[tensor->rank - 1];
    if (body->heads_axis) {
        made.heads = tensor->shape[tensor->rank - 2];
        made.width *= made.heads; /* at most the elements */
    }
    made.num_rows = tensor->elements / made.width;
    made.batched = has_batch_axis || has_lens;
    bool read = made.packed
                    ? read_packed_lens(body, id, lens, &made)
                    : make_equal_lens(body, has_batch_axis ? tensor->shape[0] : 1, &made);
    if (read)
        *ret_tensor = made;
    return read;
}
