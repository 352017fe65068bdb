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

/* Reads the integer at `place`. */
static bool read_row_integer(struct lens_reader *reader, struct wire_place *place,
                             size_t sequence) {
    const struct wire_tensor *keys = reader->keys;
    size_t max = keys != NULL ? keys->lens[sequence] : ATTN_POSITION_MAX;
    struct wire_span text;
    char limit[WIRE_LENS_LIMIT_MAX] = WIRE_POSITION_LIMIT;
    if (!wire_uint_read(&reader->cursor, place, reader->levels, reader->out, &text))
        return false;
    if (*reader->out++ <= max)
        return true;

    if (keys != NULL)
        wire_lens_limit(limit, max);
    return wire_refuse_uint_range(&reader->cursor, place, &text, limit, max);
}

/* Reads a list that has one integer for each row of `sequence`. */
static bool read_row_integers(struct lens_reader *reader, struct wire_place *place,
                              size_t sequence) {
    struct wire_cursor *cursor = &reader->cursor;
    size_t expected = reader->rows->lens[sequence], count;
    char reason[64];
    if (!wire_list_open(cursor, place, reader->levels))
        return false;

    struct wire_place at = *place;
    bool more = true;
    at.depth++;
    for (count = 0; more; count++) {
        struct wire_span surplus;
        wire_cursor_next(cursor);
        at.index[place->depth] = count;
        if (!(count < expected ? read_row_integer(reader, &at, sequence)
                               : wire_cursor_skip(cursor, at.depth, &surplus)) ||
            !wire_list_next(cursor, &at, &more))
            return false;
    }
    if (count == expected)
        return true;

    cursor->at--; /* to the bracket that came too early or too late */
    wire_cursor_locate(cursor, place);
    snprintf(reason, sizeof reason, "one for each %s of its sequence", reader->thing);
    return wire_refuse_uneven(place, expected, count, reason, cursor->problem);
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

/* Reads the element for sequence `b`: an integer, or a list of one for each row. Skips it
 * when there is no such sequence. */
static bool read_sequence_integers(struct lens_reader *reader, struct wire_place *place,
                                   size_t b, bool per_row) {
    struct wire_span surplus;
    wire_cursor_next(&reader->cursor);
    if (b >= reader->rows->num_sequences)
        return wire_cursor_skip(&reader->cursor, 1, &surplus);
    return per_row ? read_row_integers(reader, place, b)
                   : read_row_integer(reader, place, b);
}

/* Reads a list with an element for each sequence. */
static bool read_batch_integers(struct lens_reader *reader, bool per_row) {
    struct wire_place place = {.field = reader->field};
    bool more = true;
    size_t b;
    if (!wire_list_open(&reader->cursor, &place, reader->levels))
        return false;

    place.depth = 1;
    for (b = 0; more; b++) {
        place.index[0] = b;
        if (!read_sequence_integers(reader, &place, b, per_row) ||
            !wire_list_next(&reader->cursor, &place, &more))
            return false;
    }
    return b == reader->rows->num_sequences || refuse_num_sequences(reader, b);
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
        read = read_row_integers(&reader, &place, 0);
    else
        read = read_row_integer(&reader, &place, 0);
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
    return read_row_integers(&reader, &place, 0) &&
           wire_positions_repeat(positions, list, arena, ret_list, cursor->problem);
}
