/* SPDX-License-Identifier: Apache-2.0 */
/* lens.c: reads integers of rows from JSON: an integer, or a list of integers, for each
 * sequence. */
#include "wire/native/lens.h"

#include "base/error.h"
#include "wire/json/list.h"

#include <stdio.h>

/* The field that is being read, and where its integers are written. */
struct lens_reader {
    struct wire_cursor cursor;
    const char *field, *thing;      /* "valid_lens", "query" */
    const struct wire_tensor *rows; /* which may each have an integer */
    const struct wire_tensor *keys; /* the limits of valid_lens; NULL for positions */
    size_t levels;                  /* of lists, in the field */
    size_t *out;                    /* the next integer to be written */
};

/* Returns the sequence that a place is in. */
static size_t sequence_of(const struct lens_reader *reader,
                          const struct wire_place *place) {
    return reader->rows->batched && place->depth > 0 ? place->index[0] : 0;
}

/* Reads the integer at `place`. */
static bool read_integer(struct wire_cursor *cursor, struct wire_place *place,
                         void *context) {
    struct lens_reader *reader = context;
    size_t max = ATTN_POSITION_MAX;
    struct wire_span text;
    char limit[WIRE_LENS_LIMIT_MAX] = WIRE_POSITION_LIMIT;
    if (!wire_uint_read(cursor, place, reader->levels, reader->out, &text))
        return false;
    if (reader->keys != NULL)
        max = reader->keys->lens[sequence_of(reader, place)];
    if (*reader->out++ <= max)
        return true;

    if (reader->keys != NULL)
        wire_lens_limit(limit, max);
    return wire_refuse_uint_range(cursor, place, &text, limit, max);
}

/* Reads a list that has one integer for each row of a sequence. */
static bool read_row_integers(struct wire_cursor *cursor, struct wire_place *place,
                              void *context) {
    struct lens_reader *reader = context;
    size_t expected = reader->rows->lens[sequence_of(reader, place)], count;
    char reason[64];
    snprintf(reason, sizeof reason, "one for each %s of its sequence", reader->thing);
    return wire_list_read(cursor, place, reader->levels, expected, read_integer, reader,
                          &count) &&
           wire_list_check(cursor, place, expected, count, reason);
}

static bool refuse_num_sequences(const struct lens_reader *reader, size_t got) {
    struct wire_problem *problem = reader->cursor.problem;
    size_t sequences = reader->rows->num_sequences;
    wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, reader->field,
                     "%s has %zu element%s, but queries has %zu sequence%s; send "
                     "one element for each",
                     reader->field, got, plural_of(got), sequences, plural_of(sequences));
    const size_t expected[] = {sequences, WIRE_SHAPE_ANY};
    const size_t shape[] = {got, WIRE_SHAPE_ANY};
    wire_shape_print(problem->expected, expected, reader->levels);
    wire_shape_print(problem->got, shape, reader->levels);
    return false;
}

/* Reads a list with an element for each sequence: an integer, or a list of one for each
 * row. */
static bool read_batch_integers(struct lens_reader *reader, bool per_row) {
    struct wire_place place = {.field = reader->field};
    size_t sequences = reader->rows->num_sequences, count;
    return wire_list_read(&reader->cursor, &place, reader->levels, sequences,
                          per_row ? read_row_integers : read_integer, reader, &count) &&
           (count == sequences || refuse_num_sequences(reader, count));
}

bool wire_native_lens_read(const struct wire_cursor *cursor, const struct wire_span *span,
                           const struct wire_tensor *queries,
                           const struct wire_tensor *keys, struct arena *arena,
                           attn_request *batch) {
    struct lens_reader reader = {.cursor = wire_cursor_at(cursor, span),
                                 .field = "valid_lens",
                                 .thing = "query",
                                 .rows = queries,
                                 .keys = keys};
    size_t min = queries->batched ? 1 : 0;
    if (!wire_levels_read(&reader.cursor, reader.field, min, min + 1, &reader.levels))
        return false;

    /* Each length but the first has a comma before it. */
    bool per_query = reader.levels == min + 1;
    size_t *lens = arena_alloc(arena, span->commas + 1, sizeof *lens);
    if (lens == NULL)
        return wire_problem_set_no_memory(cursor->problem);

    reader.out = lens;
    struct wire_place place = {.field = reader.field};
    bool read;
    if (queries->batched)
        read = read_batch_integers(&reader, per_query);
    else if (per_query)
        read = read_row_integers(&reader.cursor, &place, &reader);
    else
        read = read_integer(&reader.cursor, &place, &reader);
    if (!read)
        return false;
    batch->valid_lens = lens;
    batch->valid_lens_per_query = per_query;
    return true;
}

bool wire_native_positions_read(const struct wire_cursor *cursor,
                                const struct wire_span *span,
                                const struct wire_positions *positions,
                                struct arena *arena, const size_t **ret_list) {
    const struct wire_tensor *rows = positions->rows;
    struct lens_reader reader = {.cursor = wire_cursor_at(cursor, span),
                                 .field = positions->field,
                                 .thing = positions->thing,
                                 .rows = rows};
    struct wire_place place = {.field = positions->field};
    if (!wire_levels_read(&reader.cursor, reader.field,
                          wire_tensor_len(rows) == WIRE_SHAPE_ANY ? 2 : 1,
                          rows->batched ? 2 : 1, &reader.levels))
        return false;

    size_t *list = arena_alloc(arena, span->commas + 1, sizeof *list);
    if (list == NULL)
        return wire_problem_set_no_memory(cursor->problem);

    reader.out = list;
    *ret_list = list;
    if (reader.levels == 2)
        return read_batch_integers(&reader, true);
    return read_row_integers(&reader.cursor, &place, &reader) &&
           wire_positions_repeat(positions, list, arena, ret_list, cursor->problem);
}
