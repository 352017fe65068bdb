/* SPDX-License-Identifier: Apache-2.0 */
/* lens.c: reads valid_lens from JSON: a length, or a list of lengths, for each
 * sequence. */
#include "wire/native/lens.h"

#include "base/error.h"
#include "wire/json/list.h"

static const char *const lens_field = "valid_lens";

/* The valid_lens that is being read, and where its lengths are written. */
struct lens_reader {
    struct wire_cursor cursor;
    const struct wire_tensor *queries, *keys;
    size_t levels; /* of lists, in valid_lens */
    size_t *out;   /* the next length to be written */
};

/* Reads the length at `place`. */
static bool read_len(struct lens_reader *reader, struct wire_place *place,
                     size_t sequence) {
    size_t max = reader->keys->lens[sequence];
    struct wire_span text;
    char limit[WIRE_LENS_LIMIT_MAX];
    if (!wire_uint_read(&reader->cursor, place, reader->levels, reader->out, &text))
        return false;
    if (*reader->out++ <= max)
        return true;

    wire_lens_limit(limit, max);
    return wire_refuse_uint_range(&reader->cursor, place, &text, limit, max);
}

/* Reads a list that has one length for each query of `sequence`. */
static bool read_query_lens(struct lens_reader *reader, struct wire_place *place,
                            size_t sequence) {
    struct wire_cursor *cursor = &reader->cursor;
    size_t expected = reader->queries->lens[sequence], count;
    if (!wire_list_open(cursor, place, reader->levels))
        return false;

    struct wire_place at = *place;
    bool more = true;
    at.depth++;
    for (count = 0; more; count++) {
        struct wire_span surplus;
        wire_cursor_next(cursor);
        at.index[place->depth] = count;
        if (!(count < expected ? read_len(reader, &at, sequence)
                               : wire_cursor_skip(cursor, at.depth, &surplus)) ||
            !wire_list_next(cursor, &at, &more))
            return false;
    }
    if (count == expected)
        return true;

    cursor->at--; /* to the bracket that came too early or too late */
    wire_cursor_locate(cursor, place);
    return wire_refuse_uneven(place, expected, count,
                              "one for each query of its sequence", cursor->problem);
}

static bool refuse_num_lens(const struct lens_reader *reader, size_t got) {
    struct wire_problem *problem = reader->cursor.problem;
    size_t sequences = reader->queries->num_sequences;
    wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, lens_field,
                     "valid_lens has %zu element%s, but queries has %zu sequence%s; send "
                     "one element for each",
                     got, plural_of(got), sequences, plural_of(sequences));
    const size_t expected[] = {sequences, WIRE_SHAPE_ANY};
    const size_t shape[] = {got, WIRE_SHAPE_ANY};
    wire_shape_print(problem->expected, expected, reader->levels);
    wire_shape_print(problem->got, shape, reader->levels);
    return false;
}

/* Reads the element for sequence `b`: a length, or a list of one for each query. Skips it
 * when there is no such sequence. */
static bool read_sequence_lens(struct lens_reader *reader, struct wire_place *place,
                               size_t b, bool per_query) {
    struct wire_span surplus;
    wire_cursor_next(&reader->cursor);
    if (b >= reader->queries->num_sequences)
        return wire_cursor_skip(&reader->cursor, 1, &surplus);
    return per_query ? read_query_lens(reader, place, b) : read_len(reader, place, b);
}

static bool read_batch_lens(struct lens_reader *reader, bool per_query) {
    struct wire_place place = {.field = lens_field};
    bool more = true;
    size_t b;
    if (!wire_list_open(&reader->cursor, &place, reader->levels))
        return false;

    place.depth = 1;
    for (b = 0; more; b++) {
        place.index[0] = b;
        if (!read_sequence_lens(reader, &place, b, per_query) ||
            !wire_list_next(&reader->cursor, &place, &more))
            return false;
    }
    return b == reader->queries->num_sequences || refuse_num_lens(reader, b);
}

bool wire_native_lens_read(const struct wire_cursor *cursor, const struct wire_span *span,
                           const struct wire_tensor *queries,
                           const struct wire_tensor *keys, struct arena *arena,
                           attn_request *batch) {
    struct lens_reader reader = {
        .cursor = wire_cursor_at(cursor, span), .queries = queries, .keys = keys};
    size_t min = queries->batched ? 1 : 0;
    if (!wire_levels_read(&reader.cursor, lens_field, min, min + 1, &reader.levels))
        return false;

    /* Each length but the first has a comma before it. */
    bool per_query = reader.levels == min + 1;
    size_t *lens = arena_alloc(arena, span->commas + 1, sizeof *lens);
    if (lens == NULL)
        return wire_problem_set_no_memory(cursor->problem);

    reader.out = lens;
    struct wire_place place = {.field = lens_field};
    bool read;
    if (queries->batched)
        read = read_batch_lens(&reader, per_query);
    else if (per_query)
        read = read_query_lens(&reader, &place, 0);
    else
        read = read_len(&reader, &place, 0);
    if (!read)
        return false;
    batch->valid_lens = lens;
    batch->valid_lens_per_query = per_query;
    return true;
}
