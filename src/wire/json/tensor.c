/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c: reads tensors from JSON. Commas were counted before, so memory is allocated
 * at once. */
#include "wire/json/tensor.h"

#include "base/size.h"

/* A tensor that is being read. */
struct tensor_reader {
    struct wire_cursor cursor;
    const char *field;
    const struct wire_tensor_form *form;
    size_t levels;    /* of lists */
    size_t size;      /* of an innermost list; 0: not known yet */
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
    return levels >= WIRE_LEVELS_BATCHED && span->lists > 0 ? span->lists : 1;
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

    tensor->batched =
        reader->levels > WIRE_LEVELS_UNBATCHED + (size_t)reader->form->heads;
    tensor->lens =
        arena_alloc(arena, max_sequences(span, reader->levels), sizeof *tensor->lens);
    reader->out = arena_alloc(arena, floats, sizeof *reader->out);
    if (tensor->lens == NULL || reader->out == NULL)
        return wire_problem_set_no_memory(reader->cursor.problem);

    tensor->rows = reader->out;
    reader->end = reader->out + floats;
    return true;
}

/* Checks the elements of a list that was read; the first one decides their number. */
static bool check_even(struct tensor_reader *reader, struct wire_place *place,
                       size_t count, size_t *expected, const char *reason) {
    if (*expected == 0)
        *expected = count;
    return wire_list_check(&reader->cursor, place, *expected, count, reason);
}

/* Reads an innermost list. */
static bool read_numbers(struct wire_cursor *cursor, struct wire_place *place,
                         void *context) {
    struct tensor_reader *reader = context;
    size_t count;

    if (!wire_row_read(cursor, place, reader->form->words, reader->out, reader->end,
                       &count) ||
        !check_even(reader, place, count, &reader->size,
                    "all rows must be as wide as the first"))
        return false;
    reader->out += count;
    return true;
}

/* Reads a row: a list of numbers, or of the numbers of each head. */
static bool read_row(struct wire_cursor *cursor, struct wire_place *place,
                     void *context) {
    struct tensor_reader *reader = context;
    size_t count;

    if (!reader->form->heads)
        return read_numbers(cursor, place, reader);
    return wire_list_read(cursor, place, reader->levels, SIZE_MAX, read_numbers, reader,
                          &count) &&
           check_even(reader, place, count, &reader->tensor.heads,
                      "all rows must have as many heads as the first");
}

/* Reads the rows of the next sequence. */
static bool read_sequence(struct wire_cursor *cursor, struct wire_place *place,
                          void *context) {
    struct tensor_reader *reader = context;
    struct wire_tensor *tensor = &reader->tensor;
    size_t rows;

    if (!wire_list_read(cursor, place, reader->levels, SIZE_MAX, read_row, reader, &rows))
        return false;
    tensor->lens[tensor->num_sequences++] = rows;
    tensor->num_rows += rows; /* of lists that exist: cannot wrap */
    return true;
}

static bool read_sequences(struct tensor_reader *reader) {
    struct wire_place place = {.field = reader->field};
    size_t count;

    if (!reader->tensor.batched)
        return read_sequence(&reader->cursor, &place, reader);
    return wire_list_read(&reader->cursor, &place, reader->levels, SIZE_MAX,
                          read_sequence, reader, &count);
}

bool wire_tensor_read(const struct wire_cursor *cursor, const struct wire_span *span,
                      const char *field, const struct wire_tensor_form *form,
                      struct arena *arena, struct wire_tensor *ret_tensor) {
    struct tensor_reader reader = {
        .cursor = wire_cursor_at(cursor, span), .field = field, .form = form};

    if (!wire_levels_read(&reader.cursor, field, form->min + form->heads,
                          form->max + form->heads, &reader.levels) ||
        !allocate_tensor(&reader, span, arena) || !read_sequences(&reader))
        return false;
    reader.tensor.width = reader.size * (form->heads ? reader.tensor.heads : 1);
    *ret_tensor = reader.tensor;
    return true;
}
