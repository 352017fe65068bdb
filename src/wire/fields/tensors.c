/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c: reads queries, keys and values, and the lengths of batches of arrays. */
#include "wire/fields/readers.h"

#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "wire/fields/integer_list.h"
#include "wire/json/tensor.h"

#include <stdio.h>

/* --- lengths --- */

/* Returns the value with the lengths of queries, keys or values: query_lens, but key_lens
 * for keys and values when the request has it; NULL when it has none. */
static const struct wire_value *find_lens(const struct wire_source *source,
                                          const struct wire_value *value) {
    bool queries = value == &source->values[WIRE_FIELD_QUERIES];
    enum wire_field_id id = !queries && wire_is_sent(source, WIRE_FIELD_KEY_LENS)
                                ? WIRE_FIELD_KEY_LENS
                                : WIRE_FIELD_QUERY_LENS;
    return wire_is_sent(source, id) ? &source->values[id] : NULL;
}

/* Checks that key_lens has keys or values that it belongs to, and is needed. */
static bool check_key_lens(const struct wire_source *source) {
    const struct wire_value *queries = &source->values[WIRE_FIELD_QUERIES];

    if (!wire_is_sent(source, WIRE_FIELD_KEYS) &&
        !wire_is_sent(source, WIRE_FIELD_VALUES))
        return wire_problem_set(source->problem, WIRE_E_MISSING_KEY, "keys",
                                "key_lens was sent without keys and values; "
                                "send one of them, or leave key_lens out");
    if (wire_value_is_sent(queries) &&
        queries->rank < WIRE_LEVELS_BATCHED + (size_t)wire_has_heads_axis(source) &&
        !wire_is_sent(source, WIRE_FIELD_QUERY_LENS))
        return wire_problem_set(
            source->problem, WIRE_E_MISSING_KEY, "query_lens",
            "key_lens makes a batch of the keys, but queries is a single "
            "sequence; send query_lens, or leave key_lens out");
    return true;
}

bool wire_check_lens(struct wire_decoder *decoder, const struct wire_field *field,
                     const struct wire_value *value) {
    const struct wire_source *source = decoder->source;
    size_t rank = WIRE_LEVELS_UNBATCHED + (size_t)wire_has_heads_axis(source);
    bool of_keys = field->id == WIRE_FIELD_KEY_LENS;

    (void)value;
    if (of_keys && !check_key_lens(source))
        return false;
    for (enum wire_field_id id = WIRE_FIELD_QUERIES; id <= WIRE_FIELD_VALUES; id++) {
        const struct wire_value *tensor = &source->values[id];
        if (of_keys == (id != WIRE_FIELD_QUERIES) && wire_value_is_sent(tensor) &&
            !wire_rank_check(source, tensor, rank, rank,
                             "[sum of its lengths, width], without a batch axis, or "
                             "leave its lengths out"))
            return false;
    }
    return true;
}

/* Checks the rank of a tensor whose lengths are `lens`. */
static bool check_lens_rank(const struct wire_source *source,
                            const struct wire_value *value,
                            const struct wire_value *lens) {
    const char *row = wire_has_heads_axis(source) ? "heads, head size" : "width";
    size_t axis = wire_has_heads_axis(source);
    char wanted[120];

    snprintf(wanted, sizeof wanted, "[sum of %s, %s], or [B, T, %s]", lens->name, row,
             row);
    return wire_rank_check(source, value, WIRE_LEVELS_UNBATCHED + axis,
                           WIRE_LEVELS_BATCHED + axis, wanted);
}

/* Sum of lengths that are being read, of a tensor of so many rows. It is capped at
 * INT64_MAX: no tensor has so many rows, and many clients could not parse a larger
 * number in the reply. */
struct lens_sum {
    size_t sum, num_rows;
};

/* wire_integer_list.allow: at least 1. */
static bool add_len(struct wire_integer_list *list, size_t i, size_t len) {
    struct lens_sum *sum = list->context;

    (void)i;
    if (len > 0 && len < SIZE_MAX) {
        if (!size_add(sum->sum, len, &sum->sum) || sum->sum > INT64_MAX)
            sum->sum = INT64_MAX;
        return true;
    }
    list->limit.least = 1;
    list->limit.max = sum->num_rows;
    snprintf(list->limit.text, sizeof list->limit.text, "its tensor has %zu row%s",
             sum->num_rows, plural_of(sum->num_rows));
    return false;
}

/* Reads the lengths of a tensor without padding, which must add up to its rows. */
static bool read_lens(const struct wire_source *source, const struct wire_value *value,
                      const struct wire_value *lens, struct wire_tensor *tensor) {
    static const struct wire_form form = {1, {WIRE_AXIS_ANY}};
    struct wire_problem *problem = source->problem;
    struct lens_sum sum = {0, tensor->num_rows};
    struct wire_integer_list list = {.source = source,
                                     .value = lens,
                                     .rows = tensor,
                                     .forms = &form,
                                     .num_forms = 1,
                                     .allow = add_len,
                                     .context = &sum};

    if (!wire_integer_list_read(&list))
        return false;
    tensor->num_sequences = list.count;
    tensor->lens = list.numbers;
    if (sum.sum == tensor->num_rows)
        return true;

    wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, value->name,
        "%s has %zu row%s, but %s add up to %zu%s; send one row for each token",
        value->name, tensor->num_rows, plural_of(tensor->num_rows), lens->name, sum.sum,
        sum.sum == INT64_MAX ? " or more" : "");
    const size_t expected[] = {sum.sum, tensor->width};
    wire_shape_print(problem->expected, expected, 2);
    wire_shape_print(problem->got, value->shape, 2);
    return false;
}

/* Makes the lengths of a tensor whose sequences are equally long. */
static bool make_lens(const struct wire_source *source, size_t num_sequences,
                      struct wire_tensor *tensor) {
    tensor->num_sequences = num_sequences;
    tensor->lens = arena_alloc(source->input->arena, num_sequences, sizeof *tensor->lens);
    if (tensor->lens == NULL)
        return wire_problem_set_no_memory(source->problem);
    for (size_t b = 0; b < num_sequences; b++) {
        tensor->lens[b] = tensor->num_rows / num_sequences;
        pace_add(sizeof(size_t));
    }
    return true;
}

/* --- queries, keys, values --- */

/* Refuses the rank of a tensor, which is not `min` to `max` without the axis of heads. */
static bool refuse_rank(const struct wire_source *source, const struct wire_value *value,
                        size_t min, size_t max) {
    const char *row = wire_has_heads_axis(source) ? "heads, head size" : "width";
    size_t axis = wire_has_heads_axis(source);
    char wanted[200], joined[80] = "";
    const char *lens = min != max ? "query_lens" : "key_lens";

    if (source->has_arrays && source->requests != WIRE_OIP_INPUT)
        snprintf(joined, sizeof joined, ", or [sum of %s, %s] with %s", lens, row, lens);
    if (min != max)
        snprintf(wanted, sizeof wanted, "[B, T, %s], or [T, %s]%s%s", row, row, joined,
                 axis > 0 ? "; or num_heads, with heads side by side" : "");
    else if (min == WIRE_LEVELS_BATCHED)
        snprintf(wanted, sizeof wanted, "[B, T, %s], as queries have a batch axis%s", row,
                 joined);
    else
        snprintf(wanted, sizeof wanted, "[T, %s], as queries have no batch axis", row);
    return wire_refuse_shape(source, value, min + axis, max + axis, NULL, wanted);
}

/* Makes a tensor of a value that states its shape, without its rows. */
static bool make_shaped_tensor(const struct wire_source *source,
                               const struct wire_value *value, size_t min, size_t max,
                               struct wire_tensor *ret_tensor) {
    size_t axis = wire_has_heads_axis(source);
    const struct wire_value *lens = find_lens(source, value);
    bool has_batch_axis = value->rank == WIRE_LEVELS_BATCHED + axis;
    struct wire_tensor tensor = {.batched = has_batch_axis || lens != NULL,
                                 .unpadded = lens != NULL && !has_batch_axis};

    if (tensor.unpadded && !check_lens_rank(source, value, lens))
        return false;
    if (!tensor.unpadded && (value->rank < min + axis || value->rank > max + axis))
        return refuse_rank(source, value, min, max);
    if (value->bytes != NULL && !wire_array_check(source, value, false))
        return false;

    tensor.width = value->shape[value->rank - 1];
    if (axis > 0) {
        tensor.heads = value->shape[value->rank - 2];
        tensor.width *= tensor.heads; /* at most the numbers */
    }
    tensor.num_rows = value->count / tensor.width;
    if (!(tensor.unpadded
              ? read_lens(source, value, lens, &tensor)
              : make_lens(source, has_batch_axis ? value->shape[0] : 1, &tensor)))
        return false;
    *ret_tensor = tensor;
    return true;
}

bool wire_tensor_read_field(const struct wire_source *source, enum wire_field_id id,
                            size_t min, size_t max, struct wire_tensor *ret_tensor) {
    const struct wire_value *value = &source->values[id];
    const struct wire_cursor cursor = wire_value_cursor(source, value);
    const struct wire_tensor_form form = {min, max, .heads = wire_has_heads_axis(source)};

    if (!wire_value_is_sent(value))
        return true;
    if (value->shape != NULL)
        return make_shaped_tensor(source, value, min, max, ret_tensor);
    return wire_tensor_read(&cursor, &value->text, value->name, &form,
                            source->input->arena, ret_tensor);
}

bool wire_tensor_rows_read(struct wire_decoder *decoder) {
    struct wire_tensors *tensors = &decoder->tensors;
    struct wire_tensor *const all[] = {&tensors->queries, &tensors->keys,
                                       &tensors->values};
    const struct wire_source *source = decoder->source;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct wire_value *value = &source->values[WIRE_FIELD_QUERIES + i];
        struct wire_tensor *tensor = all[i];
        if (tensor->stored || tensor->rows != NULL)
            continue; /* those of text are read with their shape */
        if (!wire_value_is_sent(value)) {
            if (i > 0 && tensor->lens != NULL) /* else none stands in */
                tensor->rows = all[i - 1]->rows;
            continue;
        }

        if (wire_value_is_in_place(source, value) &&
            !dtype_is_float_array(value->dtype->name, value->bytes)) {
            tensor->encoded = value->bytes;
            tensor->type = value->dtype->name;
        } else if (!wire_numbers_read(source, value, &tensor->rows)) {
            return false;
        }
    }
    return true;
}
