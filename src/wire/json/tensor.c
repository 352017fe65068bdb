/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c: reads tensors from JSON. Commas were counted before, so memory is allocated
 * at once. */
#include "wire/json/tensor.h"

#include "base/size.h"
#include "wire/json/list.h"

/* A tensor that is being read. */
struct tensor_reader {
    struct wire_cursor cursor;
    const char *field;
    size_t levels;    /* of lists */
    float *out, *end; /* where the next number is written, and the end of the room */
    struct wire_tensor tensor;
};

/* Returns how many levels of lists the span begins with. */
static size_t count_levels(const struct wire_span *span) {
    struct wire_cursor cursor = {.at = span->start, .end = span->end};
    return wire_cursor_levels(&cursor);
}

/* Returns how many sequences a span with that many levels can have. */
static size_t max_sequences(const struct wire_span *span, size_t levels) {
    return levels == WIRE_LEVELS_BATCHED && span->lists > 0 ? span->lists : 1;
}

size_t wire_tensor_cost(const struct wire_span *span) {
    size_t lens = max_sequences(span, count_levels(span)), bytes = 0;

    /* The commas of a text in memory plus 1 cannot wrap. */
    if (!size_mul(lens, sizeof(size_t), &bytes) ||
        !size_add_mul(&bytes, span->commas + 1, sizeof(float)) ||
        !size_add(bytes, (size_t)2 * ARENA_ALIGNMENT, &bytes))
        return SIZE_MAX;
    return bytes;
}

static bool allocate_tensor(struct tensor_reader *reader, const struct wire_span *span,
                            struct arena *arena) {
    struct wire_tensor *tensor = &reader->tensor;
    size_t floats = span->commas + 1;

    tensor->batched = reader->levels == WIRE_LEVELS_BATCHED;
    tensor->lens =
        arena_alloc(arena, max_sequences(span, reader->levels), sizeof *tensor->lens);
    reader->out = arena_alloc(arena, floats, sizeof *reader->out);
    if (tensor->lens == NULL || reader->out == NULL)
        return wire_problem_set_no_memory(reader->cursor.problem);

    tensor->rows = reader->out;
    reader->end = reader->out + floats;
    return true;
}

/* Reads a row; the first one decides the width. */
static bool read_row(struct tensor_reader *reader, struct wire_place *place) {
    size_t count, *width = &reader->tensor.width;

    if (!wire_row_read(&reader->cursor, place, reader->out, reader->end, &count))
        return false;
    if (*width == 0)
        *width = count;
    if (count != *width) {
        reader->cursor.at--; /* the row's closing bracket */
        wire_cursor_locate(&reader->cursor, place);
        return wire_refuse_uneven(place, *width, count,
                                  "all rows must be as wide as the first",
                                  reader->cursor.problem);
    }
    reader->out += count;
    return true;
}

/* Reads the rows of the sequence at `place`. */
static bool read_sequence(struct tensor_reader *reader, struct wire_place *place,
                          size_t *ret_rows) {
    if (!wire_list_open(&reader->cursor, place, reader->levels))
        return false;

    struct wire_place at = *place;
    bool more = true;
    size_t rows;
    at.depth++;
    for (rows = 0; more; rows++) {
        at.index[place->depth] = rows;
        if (!read_row(reader, &at) || !wire_list_next(&reader->cursor, &at, &more))
            return false;
    }

    *ret_rows = rows;
    reader->tensor.num_rows += rows; /* of lists that exist: cannot wrap */
    return true;
}

static bool read_sequences(struct tensor_reader *reader) {
    struct wire_tensor *tensor = &reader->tensor;
    struct wire_place place = {.field = reader->field};

    if (!tensor->batched) {
        tensor->num_sequences = 1;
        return read_sequence(reader, &place, tensor->lens);
    }
    if (!wire_list_open(&reader->cursor, &place, reader->levels))
        return false;

    bool more = true;
    place.depth = 1;
    for (size_t b = 0; more; b++) {
        place.index[0] = b;
        if (!read_sequence(reader, &place, &tensor->lens[b]) ||
            !wire_list_next(&reader->cursor, &place, &more))
            return false;
        tensor->num_sequences++;
    }
    return true;
}

bool wire_tensor_read(const struct wire_cursor *cursor, const struct wire_span *span,
                      const char *field, size_t min, size_t max, struct arena *arena,
                      struct wire_tensor *ret_tensor) {
    struct tensor_reader reader = {.cursor = wire_cursor_at(cursor, span),
                                   .field = field};

    if (!wire_levels_read(&reader.cursor, field, min, max, &reader.levels) ||
        !allocate_tensor(&reader, span, arena) || !read_sequences(&reader))
        return false;
    *ret_tensor = reader.tensor;
    return true;
}
