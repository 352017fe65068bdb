/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/oip/numbers.h"

#include "base/dtype.h"
#include "base/size.h"
#include "wire/json/list.h"
#include "wire/json/tensor.h"

#include <stdint.h>
#include <stdio.h>

/* Returns whether the bytes are used where they are, without a copy. */
static bool is_in_place(const struct wire_oip_input *input) {
    return input->bytes != NULL && input->type->dtype != NULL &&
           dtype_is_float_array(input->type->dtype, input->bytes);
}

size_t wire_oip_cost(const struct wire_oip_input *input) {
    size_t bytes = (size_t)2 * ARENA_ALIGNMENT;
    bool fits = size_add_mul(&bytes, input->shape[0], sizeof(size_t)); /* lengths */
    if (input->type->dtype == NULL)
        fits = fits && size_add_mul(&bytes, input->count, sizeof(size_t));
    else if (input->bytes == NULL)
        fits = fits && size_add(bytes, wire_tensor_cost(&input->data), &bytes);
    else if (!is_in_place(input))
        fits = fits && size_add_mul(&bytes, input->count, sizeof(float));
    return fits ? bytes : SIZE_MAX;
}

/* --- from text --- */

static bool refuse_levels(struct wire_cursor *cursor, const struct wire_oip_input *input,
                          size_t levels) {
    wire_problem_set(cursor->problem, WIRE_E_WRONG_RANK, input->name,
                     "%s has data of %zu levels of lists and a shape of %zu dimensions; "
                     "send data flat (1) or nested like the shape",
                     input->name, levels, input->rank);
    return false;
}

static void print_shape(char ret_text[128], const struct wire_oip_input *input) {
    wire_shape_print(ret_text, input->shape, input->rank);
}

/* Refuses data that has not as many elements as its shape. */
static bool refuse_count(struct wire_cursor *cursor, const struct wire_oip_input *input,
                         const char *got) {
    char shape[128];
    print_shape(shape, input);
    wire_problem_set(cursor->problem, WIRE_E_SHAPE_MISMATCH, input->name,
                     "%s has shape %s, which are %zu elements, but its data %s; make "
                     "them agree",
                     input->name, shape, input->count, got);
    return false;
}

/* Finds whether the data is flat or nested. */
static bool find_levels(struct wire_cursor *cursor, const struct wire_oip_input *input,
                        bool *ret_flat) {
    struct wire_cursor ahead = *cursor;
    struct wire_place place = {.field = input->name};
    size_t levels = wire_cursor_levels(&ahead);
    if (levels == 0)
        return wire_refuse_value_type(cursor, &place, "array");
    *ret_flat = levels == 1;
    return levels == 1 || levels == input->rank || refuse_levels(cursor, input, levels);
}

static const float *read_flat(struct wire_cursor *cursor,
                              const struct wire_oip_input *input, struct arena *arena) {
    struct wire_place place = {.field = input->name};
    size_t room = input->data.commas + 1, count;
    char got[48];
    float *floats = arena_alloc(arena, room, sizeof *floats);
    if (floats == NULL) {
        wire_problem_set_no_memory(cursor->problem);
        return NULL;
    }
    if (!wire_row_read(cursor, &place, floats, floats + room, &count))
        return NULL;
    if (count == input->count)
        return floats;
    snprintf(got, sizeof got, "has %zu", count);
    refuse_count(cursor, input, got);
    return NULL;
}

/* Whether a tensor has the shape that it should have. */
static bool has_shape(const struct wire_tensor *tensor,
                      const struct wire_oip_input *input) {
    const size_t *shape = input->shape + input->rank - 2; /* rows, width */
    size_t sequences = input->rank == WIRE_LEVELS_BATCHED ? input->shape[0] : 1;
    bool same = tensor->num_sequences == sequences && tensor->width == shape[1];
    for (size_t b = 0; same && b < sequences; b++)
        same = tensor->lens[b] == shape[0];
    return same;
}

static const float *read_nested(struct wire_cursor *cursor,
                                const struct wire_oip_input *input, struct arena *arena) {
    struct wire_tensor tensor;
    if (!wire_tensor_read(cursor->body, &input->data, input->name, input->rank,
                          input->rank, arena, &tensor, cursor->problem))
        return NULL;
    if (has_shape(&tensor, input))
        return tensor.rows;
    refuse_count(cursor, input, "is nested in another way");
    return NULL;
}

const float *wire_oip_floats(const struct wire_oip_reader *reader,
                             const struct wire_oip_input *input) {
    struct wire_cursor cursor = {reader->body, input->data.start, input->data.end,
                                 reader->problem};
    bool flat = false;
    if (is_in_place(input))
        return (const float *)(const void *)input->bytes;
    if (input->bytes == NULL)
        return !find_levels(&cursor, input, &flat) ? NULL
               : flat ? read_flat(&cursor, input, reader->arena)
                      : read_nested(&cursor, input, reader->arena);
    float *floats = arena_alloc(reader->arena, input->count, sizeof *floats);
    if (floats == NULL)
        wire_problem_set_no_memory(reader->problem);
    else
        dtype_find(input->type->dtype)->to_float(input->bytes, input->count, floats);
    return floats;
}

/* --- whole numbers --- */

/* What whole numbers are read to. */
struct wholes {
    const struct wire_oip_input *input;
    size_t max;
    const char *limit;
    size_t *numbers; /* [input->count] */
    size_t count;    /* so far */
};

/* Reads the list at `place` of exactly `expected` numbers. */
static bool read_list(struct wire_cursor *cursor, const struct wire_place *place,
                      size_t levels, size_t expected, struct wholes *wholes) {
    struct wire_place at = *place;
    char got[64];
    bool more = true;
    size_t i;
    if (!wire_list_open(cursor, &at, levels))
        return false;
    at.depth++;
    for (i = 0; more && i < expected; i++) {
        size_t *number = &wholes->numbers[wholes->count++];
        struct wire_span text;
        at.index[place->depth] = i;
        if (!wire_uint_read(cursor, &at, levels, number, &text))
            return false;
        if (*number > wholes->max)
            return wire_refuse_uint_range(cursor, &at, &text, wholes->limit, wholes->max);
        if (!wire_list_next(cursor, &at, &more))
            return false;
    }
    if (i == expected && !more)
        return true;
    snprintf(got, sizeof got, "has %s than %zu in a list", more ? "more" : "fewer",
             expected);
    return refuse_count(cursor, wholes->input, got);
}

static bool read_text(struct wire_cursor *cursor, struct wholes *wholes) {
    const struct wire_oip_input *input = wholes->input;
    struct wire_place place = {.field = input->name};
    bool flat = false, more = true;
    if (!find_levels(cursor, input, &flat))
        return false;
    if (flat)
        return read_list(cursor, &place, 1, input->count, wholes);
    if (!wire_list_open(cursor, &place, 2))
        return false;
    place.depth = 1;
    size_t b;
    for (b = 0; more && b < input->shape[0]; b++) {
        place.index[0] = b;
        wire_cursor_next(cursor);
        if (!read_list(cursor, &place, 2, input->shape[1], wholes) ||
            !wire_list_next(cursor, &place, &more))
            return false;
    }
    return (b == input->shape[0] && !more) ||
           refuse_count(cursor, input, "has more or fewer lists");
}

static bool read_bytes(struct wholes *wholes, struct wire_problem *problem) {
    const struct wire_oip_input *input = wholes->input;
    size_t size = input->type->size;
    for (size_t i = 0; i < input->count; i++) {
        int64_t number = dtype_read_integer(input->bytes + i * size, size);
        if (number < 0 || (uint64_t)number > wholes->max) {
            wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, input->name,
                             "element %zu of %s (counted from 0) is %lld, but %s; send 0 "
                             "to %zu",
                             i, input->name, (long long)number, wholes->limit,
                             wholes->max);
            return false;
        }
        wholes->numbers[i] = (size_t)number;
    }
    return true;
}

const size_t *wire_oip_integers(const struct wire_oip_reader *reader,
                                const struct wire_oip_input *input, size_t max,
                                const char *limit) {
    struct wholes wholes = {.input = input, .max = max, .limit = limit};
    struct wire_cursor cursor = {reader->body, input->data.start, input->data.end,
                                 reader->problem};
    wholes.numbers = arena_alloc(reader->arena, input->count, sizeof *wholes.numbers);
    if (wholes.numbers == NULL) {
        wire_problem_set_no_memory(reader->problem);
        return NULL;
    }
    bool read = input->bytes != NULL ? read_bytes(&wholes, reader->problem)
                                     : read_text(&cursor, &wholes);
    return read ? wholes.numbers : NULL;
}
