/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/safetensors/tensors.h"

#include "base/dtype.h"
#include "base/finite.h"
#include "base/size.h"
#include "wire/refuse.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[WIRE_NUM_PARTS] = {
    [WIRE_PART_QUERIES] = "queries",
    [WIRE_PART_KEYS] = "keys",
    [WIRE_PART_VALUES] = "values",
    [WIRE_PART_VALID_LENS] = "valid_lens",
    [WIRE_PART_HEAD_MASK] = "head_mask",
    [WIRE_PART_WEIGHTS_HEADS] = "weights_heads",
    [WIRE_PART_WEIGHTS_QUERIES] = "weights_queries",
    [WIRE_PART_QUERY_LENS] = "query_lens",
    [WIRE_PART_KEY_LENS] = "key_lens",
};

const char *wire_part_name(enum wire_part part) {
    return names[part];
}

static bool is_float_part(int part) {
    return part <= WIRE_PART_VALUES || part == WIRE_PART_HEAD_MASK;
}

static const unsigned char *bytes_of(const struct wire_parts *parts,
                                     enum wire_part part) {
    return parts->data + parts->tensors[part]->begin;
}

bool wire_part_in_place(const struct wire_parts *parts, enum wire_part part) {
    return dtype_is_float_array(parts->tensors[part]->dtype->name, bytes_of(parts, part));
}

size_t wire_parts_cost(const struct wire_parts *parts) {
    size_t bytes = 0;
    bool fits = true;
    for (int i = 0; i < WIRE_NUM_PARTS; i++) {
        const struct safetensors_tensor *tensor = parts->tensors[i];
        if (tensor == NULL)
            continue;
        /* the numbers; and lengths, or a mark for each index, of what is selected from */
        fits = fits && size_add(bytes, (size_t)3 * ARENA_ALIGNMENT, &bytes);
        if (i >= WIRE_PART_QUERY_LENS) /* read once for each tensor */
            fits = fits && size_add_mul(&bytes, tensor->elements, 3 * sizeof(size_t));
        else if (!is_float_part(i))
            fits = fits && size_add_mul(&bytes, tensor->elements, sizeof(size_t));
        else if (!wire_part_in_place(parts, (enum wire_part)i))
            fits = fits && size_add_mul(&bytes, tensor->elements, sizeof(float));
        if (i <= WIRE_PART_VALUES && tensor->rank == WIRE_LEVELS_BATCHED)
            fits = fits && size_add_mul(&bytes, tensor->shape[0], sizeof(size_t));
        if (i == WIRE_PART_WEIGHTS_QUERIES && parts->tensors[WIRE_PART_QUERIES] != NULL)
            fits = fits &&
                   size_add(bytes, parts->tensors[WIRE_PART_QUERIES]->elements, &bytes);
    }
    return fits ? bytes : SIZE_MAX;
}

/* --- refusals --- */

static bool refuse_dtype(const struct wire_parts *parts, enum wire_part part,
                         const char *wanted, const char *expected) {
    const char *dtype = parts->tensors[part]->dtype->name;
    wire_problem_set(parts->problem, WIRE_E_WRONG_DTYPE, names[part],
                     "%s has dtype %s; send it as %s", names[part], dtype, wanted);
    snprintf(parts->problem->expected, sizeof parts->problem->expected, "%s", expected);
    snprintf(parts->problem->got, sizeof parts->problem->got, "\"%s\"", dtype);
    return false;
}

bool wire_part_check_rank(const struct wire_parts *parts, enum wire_part part, size_t min,
                          size_t max, const char *why) {
    struct wire_problem *problem = parts->problem;
    size_t rank = parts->tensors[part]->rank;
    if (rank >= min && rank <= max)
        return true;
    wire_problem_set(problem, WIRE_E_WRONG_RANK, names[part], "%s has rank %zu; send %s",
                     names[part], rank, why);
    if (min == max)
        snprintf(problem->expected, sizeof problem->expected, "%zu", min);
    else
        snprintf(problem->expected, sizeof problem->expected, "[%zu,%zu]", min, max);
    snprintf(problem->got, sizeof problem->got, "%zu", rank);
    return false;
}

static bool check_not_empty(const struct wire_parts *parts, enum wire_part part) {
    if (parts->tensors[part]->elements > 0)
        return true;
    wire_problem_set(
        parts->problem, WIRE_E_EMPTY_TENSOR, names[part],
        "%s has a dimension of 0; send at least one element, or leave it out",
        names[part]);
    return false;
}

static bool refuse_no_memory(const struct wire_parts *parts) {
    wire_problem_set_no_memory(parts->problem);
    return false;
}

/* Where element `index` is in its tensor. */
static struct wire_place place_of(const struct wire_parts *parts, enum wire_part part,
                                  size_t index) {
    const struct safetensors_tensor *tensor = parts->tensors[part];
    struct wire_place place = {.field = names[part], .depth = tensor->rank};
    for (size_t i = tensor->rank; i-- > 0;) {
        place.index[i] = index % tensor->shape[i];
        index /= tensor->shape[i];
    }
    return place;
}

/* --- numbers --- */

static bool check_finite(const struct wire_parts *parts, enum wire_part part,
                         const float *numbers) {
    const struct safetensors_tensor *tensor = parts->tensors[part];
    size_t i = finite_end(numbers, tensor->elements);
    if (i == tensor->elements)
        return true;
    const struct wire_place place = place_of(parts, part, i);
    double value = (double)numbers[i];
    if (tensor->dtype->bits == 64) { /* it may have been too large for float32 only */
        uint64_t bits;
        memcpy(&bits, bytes_of(parts, part) + i * sizeof bits, sizeof bits);
        memcpy(&value, &bits, sizeof value);
    }
    return isfinite(value) ? wire_refuse_float_range(&place, value, parts->problem)
                           : wire_refuse_not_finite(&place, value, parts->problem);
}

bool wire_part_read_floats(const struct wire_parts *parts, enum wire_part part,
                           const float **ret_numbers) {
    const struct safetensors_tensor *tensor = parts->tensors[part];
    if (tensor->dtype->to_float == NULL)
        return refuse_dtype(parts, part, "F32, F16, BF16 or F64",
                            "[\"F32\",\"F16\",\"BF16\",\"F64\"]");
    if (!check_not_empty(parts, part))
        return false;
    if (wire_part_in_place(parts, part)) {
        *ret_numbers = (const float *)(const void *)bytes_of(parts, part);
        return check_finite(parts, part, *ret_numbers);
    }
    float *numbers = arena_alloc(parts->arena, tensor->elements, sizeof *numbers);
    if (numbers == NULL)
        return refuse_no_memory(parts);
    tensor->dtype->to_float(bytes_of(parts, part), tensor->elements, numbers);
    *ret_numbers = numbers;
    return check_finite(parts, part, numbers);
}

bool wire_part_read_integers(const struct wire_parts *parts, enum wire_part part,
                             size_t min, size_t **ret_numbers) {
    const struct safetensors_tensor *tensor = parts->tensors[part];
    size_t size = tensor->dtype->bits / 8;
    if (strcmp(tensor->dtype->name, "I64") != 0 &&
        strcmp(tensor->dtype->name, "I32") != 0)
        return refuse_dtype(parts, part, "I64 or I32", "[\"I64\",\"I32\"]");
    if (!check_not_empty(parts, part))
        return false;
    size_t *numbers = arena_alloc(parts->arena, tensor->elements, sizeof *numbers);
    if (numbers == NULL)
        return refuse_no_memory(parts);
    for (size_t i = 0; i < tensor->elements; i++) {
        int64_t number = dtype_read_integer(bytes_of(parts, part) + i * size, size);
        if (number < 0 || (uint64_t)number < min) {
            const struct wire_place place = place_of(parts, part, i);
            return wire_refuse_int_range(&place, number, min, INT32_MAX,
                                         "it is a count or an index", parts->problem);
        }
        numbers[i] = (size_t)number;
    }
    *ret_numbers = numbers;
    return true;
}

/* --- queries, keys, values --- */

/* The rank that a tensor must have, and what to say when it has not. */
static bool check_tensor_rank(const struct wire_parts *parts, enum wire_part part,
                              const enum wire_part *lens, size_t min, size_t max) {
    char why[160];
    if (lens != NULL && parts->tensors[part]->rank != WIRE_LEVELS_BATCHED) {
        snprintf(why, sizeof why, "rank 2, [sum of %s, width], or rank 3, [B, T, width]",
                 names[*lens]);
        return wire_part_check_rank(parts, part, 2, 3, why);
    }
    if (min != max)
        return wire_part_check_rank(parts, part, min, max,
                                    "[B, T, width], [T, width], or [sum of query_lens, "
                                    "width] with query_lens");
    return wire_part_check_rank(parts, part, min, max,
                                min == WIRE_LEVELS_BATCHED
                                    ? "[B, T, width] as queries have a batch axis, or "
                                      "[sum of key_lens, width] with key_lens"
                                    : "[T, width] as queries have no batch axis");
}

/* Reads the lengths of a tensor without padding; they must add up to its rows. */
static bool read_lens(const struct wire_parts *parts, enum wire_part part,
                      enum wire_part lens, struct wire_tensor *tensor) {
    struct wire_problem *problem = parts->problem;
    size_t sum = 0;
    if (!wire_part_check_rank(parts, lens, 1, 1, "one length for each sequence, [B]") ||
        !wire_part_read_integers(parts, lens, 1, &tensor->lens))
        return false;
    assert(tensor->lens != NULL);
    tensor->num_sequences = parts->tensors[lens]->elements;
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        if (!size_add(sum, tensor->lens[b], &sum) || sum > INT64_MAX)
            sum =
                INT64_MAX; /* and so no number of rows; readers of JSON have no larger */
    }
    if (sum == tensor->num_rows)
        return true;
    wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, names[part],
        "%s has %zu rows, but %s add up to %zu%s; send one row for each token",
        names[part], tensor->num_rows, names[lens], sum,
        sum == INT64_MAX ? " or more" : "");
    const size_t expected[] = {sum, tensor->width};
    wire_shape_print(problem->expected, expected, 2);
    wire_shape_print(problem->got, parts->tensors[part]->shape, 2);
    return false;
}

bool wire_part_read_tensor(const struct wire_parts *parts, enum wire_part part,
                           const enum wire_part *lens, size_t min, size_t max,
                           struct wire_tensor *ret_tensor) {
    const struct safetensors_tensor *tensor = parts->tensors[part];
    struct wire_tensor made = {0};
    if (!check_tensor_rank(parts, part, lens, min, max) ||
        !wire_part_read_floats(parts, part, &made.rows))
        return false;
    bool batched = tensor->rank == WIRE_LEVELS_BATCHED;
    made.width = tensor->shape[tensor->rank - 1];
    made.num_rows = tensor->elements / made.width;
    made.batched = batched || lens != NULL;
    if (!batched && lens != NULL) {
        if (!read_lens(parts, part, *lens, &made))
            return false;
        *ret_tensor = made;
        return true;
    }
    made.num_sequences = batched ? tensor->shape[0] : 1;
    made.lens = arena_alloc(parts->arena, made.num_sequences, sizeof *made.lens);
    if (made.lens == NULL)
        return refuse_no_memory(parts);
    for (size_t b = 0; b < made.num_sequences; b++)
        made.lens[b] = made.num_rows / made.num_sequences;
    *ret_tensor = made;
    return true;
}
