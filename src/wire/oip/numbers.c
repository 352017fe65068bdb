/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.c: reads the numbers of one input from JSON or binary data. */
#include "wire/oip/numbers.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "wire/integers.h"
#include "wire/json/list.h"
#include "wire/json/tensor.h"

#include <stdint.h>
#include <stdio.h>

/* Whether binary data is used where it is, without a copy. */
static bool is_float_input(const struct wire_oip_input *input) {
    return input->bytes != NULL && !input->integers &&
           dtype_is_float_array(input->type->dtype, input->bytes);
}

size_t wire_oip_input_cost(const struct wire_oip_input *input) {
    size_t bytes = (size_t)2 * ARENA_ALIGNMENT;
    bool fits = size_add_mul(&bytes, input->shape[0], sizeof(size_t)); /* lengths */
    if (input->integers)
        fits = fits && size_add_mul(&bytes, input->count, sizeof(size_t));
    else if (input->bytes == NULL)
        fits = fits && size_add(bytes, wire_tensor_cost(&input->data), &bytes);
    else if (!is_float_input(input))
        fits = fits && size_add_mul(&bytes, input->count, sizeof(float));
    return fits ? bytes : SIZE_MAX;
}

/* --- floats --- */

static bool refuse_data_levels(struct wire_cursor *cursor,
                               const struct wire_oip_input *input, size_t levels) {
    return wire_problem_set(
        cursor->problem, WIRE_E_WRONG_RANK, input->name,
        "%s has data with %zu level%s of lists, but a shape of %zu "
        "dimension%s; send the data flat (1 level) or nested like the shape",
        input->name, levels, plural_of(levels), input->rank, plural_of(input->rank));
}

/* Refuses data that does not have as many elements as its shape; `got` is what its data
 * "has" or "is". */
static bool refuse_data_count(struct wire_cursor *cursor,
                              const struct wire_oip_input *input, const char *got) {
    char shape[WIRE_SHAPE_PRINT_MAX];
    wire_shape_print(shape, input->shape, input->rank);
    return wire_problem_set(cursor->problem, WIRE_E_SHAPE_MISMATCH, input->name,
                            "%s has shape %s, which is %zu element%s, but its data %s; "
                            "correct one of them",
                            input->name, shape, input->count, plural_of(input->count),
                            got);
}

/* Finds whether the data is flat or nested. */
static bool find_data_levels(struct wire_cursor *cursor,
                             const struct wire_oip_input *input, bool *ret_flat) {
    struct wire_cursor ahead = *cursor;
    struct wire_place place = {.field = input->name};
    size_t levels = wire_cursor_levels(&ahead);
    if (levels == 0)
        return wire_refuse_value_type(cursor, &place, "array");

    *ret_flat = levels == 1;
    return levels == 1 || levels == input->rank ||
           refuse_data_levels(cursor, input, levels);
}

static const float *read_flat_floats(struct wire_cursor *cursor,
                                     const struct wire_oip_input *input,
                                     struct arena *arena) {
    struct wire_place place = {.field = input->name};
    size_t room = input->data.commas + 1, count;
    char got[48];
    float *floats = arena_alloc(arena, room, sizeof *floats);
    if (floats == NULL) {
        wire_problem_set_no_memory(cursor->problem);
        return NULL;
    }

    if (!wire_row_read(cursor, &place, false, floats, floats + room, &count))
        return NULL;
    if (count == input->count)
        return floats;
    snprintf(got, sizeof got, "has %zu", count);
    refuse_data_count(cursor, input, got);
    return NULL;
}

/* Whether nested data has the shape of its input. */
static bool has_input_shape(const struct wire_tensor *tensor,
                            const struct wire_oip_input *input) {
    const size_t *shape = input->shape + input->rank - 2; /* rows, width */
    size_t sequences = input->rank == WIRE_LEVELS_BATCHED ? input->shape[0] : 1;
    bool same = tensor->num_sequences == sequences && tensor->width == shape[1];
    for (size_t b = 0; same && b < sequences; b++) {
        pace_add(1);
        same = tensor->lens[b] == shape[0];
    }
    return same;
}

static const float *read_nested_floats(struct wire_cursor *cursor,
                                       const struct wire_oip_input *input,
                                       struct arena *arena) {
    struct wire_tensor tensor;
    if (!wire_tensor_read(cursor, &input->data, input->name, input->rank, input->rank,
                          arena, &tensor))
        return NULL;
    if (has_input_shape(&tensor, input))
        return tensor.rows;
    refuse_data_count(cursor, input, "is nested in another way");
    return NULL;
}

static const float *read_json_floats(const struct wire_oip_reader *reader,
                                     const struct wire_oip_input *input) {
    struct wire_cursor cursor = {reader->body, input->data.start, input->data.end,
                                 reader->problem};
    bool flat = false;
    if (!find_data_levels(&cursor, input, &flat))
        return NULL;
    return flat ? read_flat_floats(&cursor, input, reader->arena)
                : read_nested_floats(&cursor, input, reader->arena);
}

static const float *convert_floats(const struct wire_oip_reader *reader,
                                   const struct wire_oip_input *input) {
    float *floats = arena_alloc(reader->arena, input->count, sizeof *floats);
    if (floats == NULL)
        wire_problem_set_no_memory(reader->problem);
    else
        pace_to_float(dtype_find(input->type->dtype), input->bytes, input->count, floats);
    return floats;
}

const float *wire_oip_read_floats(const struct wire_oip_reader *reader,
                                  const struct wire_oip_input *input) {
    if (input->bytes == NULL)
        return read_json_floats(reader, input);
    if (is_float_input(input))
        return (const float *)(const void *)input->bytes;
    return convert_floats(reader, input);
}

/* --- integers --- */

/* An input of integers, and where they are read to. */
struct integer_list {
    const struct wire_oip_input *input;
    int64_t least;
    size_t max;
    const char *limit;
    size_t levels;   /* of lists, in JSON */
    size_t *numbers; /* [input->count] */
    size_t count;    /* read so far */
};

/* Returns whether the list may have a number. */
static bool is_within(const struct integer_list *list, size_t number) {
    return number <= list->max || 0 - number <= (size_t)-list->least;
}

static bool read_integer(struct wire_cursor *cursor, struct wire_place *place,
                         void *context) {
    struct integer_list *list = context;
    size_t *number = &list->numbers[list->count++];
    struct wire_span text;
    return wire_index_read(cursor, place, list->levels, number, &text) &&
           (is_within(list, *number) ||
            wire_refuse_index_range(cursor, place, &text, list->limit, list->least,
                                    list->max));
}

/* Reads the list at `place`, an innermost one. */
static bool read_integer_row(struct wire_cursor *cursor, struct wire_place *place,
                             void *context) {
    struct integer_list *list = context;
    const struct wire_oip_input *input = list->input;
    size_t expected = list->levels == 1 ? input->count : input->shape[1], count;
    char got[64];
    if (!wire_list_read(cursor, place, list->levels, expected, read_integer, list,
                        &count))
        return false;
    if (count == expected)
        return true;

    snprintf(got, sizeof got, "has %s than %zu in a list",
             count > expected ? "more" : "fewer", expected);
    return refuse_data_count(cursor, input, got);
}

static bool read_json_integers(struct wire_cursor *cursor, struct integer_list *list) {
    const struct wire_oip_input *input = list->input;
    struct wire_place place = {.field = input->name};
    bool flat = false;
    size_t count;
    if (!find_data_levels(cursor, input, &flat))
        return false;
    list->levels = flat ? 1 : 2;
    if (flat)
        return read_integer_row(cursor, &place, list);
    return wire_list_read(cursor, &place, 2, input->shape[0], read_integer_row, list,
                          &count) &&
           (count == input->shape[0] ||
            refuse_data_count(cursor, input, "has more or fewer lists"));
}

static bool read_binary_integers(const struct wire_oip_reader *reader,
                                 struct integer_list *list) {
    const struct wire_oip_input *input = list->input;
    const struct wire_integers integers = {.field = input->name,
                                           .dtype = dtype_find(input->type->dtype),
                                           .bytes = input->bytes,
                                           .rank = input->rank,
                                           .shape = input->shape};
    for (size_t i = 0; i < input->count; i++) {
        if (!wire_integers_read_index(&integers, i, &list->numbers[i], reader->problem))
            return false;
        if (!is_within(list, list->numbers[i]))
            return wire_integers_refuse(&integers, i, list->limit, list->least, list->max,
                                        reader->problem);
        pace_add(sizeof(size_t));
    }
    return true;
}

const size_t *wire_oip_read_integers(const struct wire_oip_reader *reader,
                                     const struct wire_oip_input *input, int64_t least,
                                     size_t max, const char *limit) {
    struct integer_list list = {
        .input = input, .least = least, .max = max, .limit = limit};
    struct wire_cursor cursor = {reader->body, input->data.start, input->data.end,
                                 reader->problem};
    list.numbers = arena_alloc(reader->arena, input->count, sizeof *list.numbers);
    if (list.numbers == NULL) {
        wire_problem_set_no_memory(reader->problem);
        return NULL;
    }

    bool read = input->bytes != NULL ? read_binary_integers(reader, &list)
                                     : read_json_integers(&cursor, &list);
    return read ? list.numbers : NULL;
}

/* --- shapes --- */

bool wire_oip_refuse_shape(const struct wire_oip_reader *reader,
                           const struct wire_oip_input *input, const char *wanted) {
    char shape[WIRE_SHAPE_PRINT_MAX];
    wire_shape_print(shape, input->shape, input->rank);
    return wire_problem_set(reader->problem, WIRE_E_WRONG_RANK, input->name,
                            "%s has shape %s; send it with shape %s", input->name, shape,
                            wanted);
}
