/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: reads lists of JSON: an integer for each row or sequence, indices of heads and
 * rows, and ranges of keys. */
#include "wire/native/rows.h"

#include "base/error.h"
#include "base/pace.h"
#include "wire/checks/reduce.h"
#include "wire/checks/selection.h"
#include "wire/json/list.h"

#include <stdio.h>
#include <string.h>

/* --- valid_lens and positions --- */

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
static bool native_read_integer(struct wire_cursor *cursor, struct wire_place *place,
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
    return wire_refuse_index_range(cursor, place, &text, limit, 0, max);
}

/* Reads a list that has one integer for each row of a sequence. */
static bool native_read_row_integers(struct wire_cursor *cursor, struct wire_place *place,
                                     void *context) {
    struct lens_reader *reader = context;
    size_t expected = reader->rows->lens[sequence_of(reader, place)], count;
    char reason[64];
    snprintf(reason, sizeof reason, "one for each %s of its sequence", reader->thing);
    return wire_list_read(cursor, place, reader->levels, expected, native_read_integer,
                          reader, &count) &&
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

/* Reads a list with an element for each sequence. */
static bool native_read_batch_integers(struct lens_reader *reader,
                                       wire_element_reader *read) {
    struct wire_place place = {.field = reader->field};
    size_t sequences = reader->rows->num_sequences, count;
    return wire_list_read(&reader->cursor, &place, reader->levels, sequences, read,
                          reader, &count) &&
           (count == sequences || refuse_num_sequences(reader, count));
}

/* Prepares to read integers of `rows` from the member at `span`, which has from `min` to
 * `max` levels of lists. */
static bool lens_reader_init(struct lens_reader *reader,
                             const struct wire_native_body *body,
                             const struct wire_span *span, size_t min, size_t max) {
    reader->cursor = wire_cursor_at(&body->text, span);
    if (!wire_levels_read(&reader->cursor, reader->field, min, max, &reader->levels))
        return false;
    /* Each integer but the first has a comma before it. */
    reader->out = arena_alloc(body->arena, span->commas + 1, sizeof *reader->out);
    return reader->out != NULL || wire_problem_set_no_memory(body->text.problem);
}

static bool native_read_valid_lens(const struct wire_native_body *body,
                                   const struct wire_tensors *tensors,
                                   attn_request *batch) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_VALID_LENS];
    bool batched = tensors->queries.batched;
    struct lens_reader reader = {.field = "valid_lens",
                                 .thing = "query",
                                 .rows = &tensors->queries,
                                 .keys = &tensors->keys};
    struct wire_place place = {.field = reader.field};
    if (span->start == NULL)
        return true;
    if (!lens_reader_init(&reader, body, span, batched, (size_t)batched + 1))
        return false;

    batch->valid_lens = reader.out;
    batch->valid_lens_per_query = reader.levels == (size_t)batched + 1;
    wire_element_reader *read =
        batch->valid_lens_per_query ? native_read_row_integers : native_read_integer;
    return (batched ? native_read_batch_integers(&reader, read)
                    : read(&reader.cursor, &place, &reader)) &&
           wire_valid_lens_check(batch, body->text.problem);
}

/* Reads the positions of a sequence: a list for each axis. */
static bool native_read_axes(struct wire_cursor *cursor, struct wire_place *place,
                             void *context) {
    struct lens_reader *reader = context;
    size_t count;
    return wire_list_read(cursor, place, reader->levels, ATTN_AXES,
                          native_read_row_integers, reader, &count) &&
           wire_list_check(cursor, place, ATTN_AXES, count,
                           "send a list for each axis: time, row and column");
}

/* wire_positions_source of a body, which is the context. */
static bool native_read_positions(const void *context,
                                  const struct wire_positions *positions,
                                  struct wire_position_list *ret_list) {
    const struct wire_native_body *body = context;
    const struct wire_tensor *rows = positions->rows;
    const struct wire_span *span =
        &body->members[positions->id == WIRE_TENSOR_QUERIES ? WIRE_NATIVE_POSITIONS
                                                            : WIRE_NATIVE_KEY_POSITIONS];
    struct lens_reader reader = {
        .field = positions->field, .thing = positions->thing, .rows = rows};
    struct wire_place place = {.field = positions->field};
    size_t max = rows->batched ? 2 : 1;
    if (span->start == NULL)
        return true;
    struct wire_cursor ahead = wire_cursor_at(&body->text, span);
    size_t min = wire_tensor_len(rows) == WIRE_SHAPE_ANY ? 2 : 1;
    bool axes = ret_list->axes = wire_cursor_levels(&ahead) == max + 1;
    if (axes && positions->sections)
        min = max = max + 1;
    if (!lens_reader_init(&reader, body, span, min, max))
        return false;

    const size_t *list = ret_list->numbers = reader.out;
    if (rows->batched && reader.levels > 1)
        return native_read_batch_integers(&reader, axes ? native_read_axes
                                                        : native_read_row_integers);
    if (axes)
        return native_read_axes(&reader.cursor, &place, &reader);
    return native_read_row_integers(&reader.cursor, &place, &reader) &&
           wire_positions_repeat(positions, list, body->arena, ret_list,
                                 body->text.problem);
}

/* --- weights_heads and weights_queries --- */

/* Indices that are being read, and where they are written. */
struct index_reader {
    struct wire_indices indices;
    size_t *list;
};

/* Reads the index at `place`. A list with more elements than there are indices has one
 * that appears twice or is out of range, and reading ends there. */
static bool native_read_index(struct wire_cursor *cursor, struct wire_place *place,
                              void *context) {
    struct index_reader *reader = context;
    struct wire_indices *indices = &reader->indices;
    size_t i = place->index[0], *index = &reader->list[i];
    char limit[WIRE_INDICES_LIMIT_MAX];
    struct wire_span text;
    if (!(indices->from_end ? wire_index_read : wire_uint_read)(cursor, place, 1, index,
                                                                &text))
        return false;
    if (wire_indices_allow(indices, *index))
        return wire_indices_add(indices, i, *index, cursor->problem);

    wire_indices_limit(indices, limit);
    return wire_refuse_index_range(cursor, place, &text, limit,
                                   wire_indices_least(indices), indices->limit - 1);
}

/* Reads one of the two lists, which may be left out. */
static bool native_read_selection(const struct wire_native_body *body,
                                  enum wire_native_member member,
                                  enum wire_selected which,
                                  struct wire_request *request) {
    const struct wire_span *span = &body->members[member];
    struct wire_cursor cursor = wire_cursor_at(&body->text, span);
    struct index_reader reader;
    size_t count = 0;
    if (span->start == NULL)
        return true;
    if (!wire_indices_init(&reader.indices, request, which, body->arena, cursor.problem))
        return false;

    struct wire_place place = {.field = reader.indices.field};
    reader.list = arena_alloc(body->arena, span->commas + 1, sizeof *reader.list);
    if (reader.list == NULL)
        return wire_problem_set_no_memory(cursor.problem);
    if (!wire_list_read(&cursor, &place, 1, SIZE_MAX, native_read_index, &reader, &count))
        return false;
    wire_selection_set(request, which, reader.list, count);
    return wire_indices_check_ends(&reader.indices, reader.list, count, &request->batch,
                                   cursor.problem);
}

/* --- spans, top_in and targets --- */

/* Ranges that are being read. */
struct range_reader {
    struct wire_cursor cursor;
    struct wire_ranges ranges;
    const size_t *lens; /* how many each sequence has; NULL: as many as the first */
    size_t levels;      /* of lists, in the field */
    size_t *out;        /* the next number to be written */
};

static bool native_read_bound(struct wire_cursor *cursor, struct wire_place *place,
                              void *context) {
    struct range_reader *reader = context;
    struct wire_span text;
    return wire_uint_read(cursor, place, reader->levels, reader->out++, &text);
}

/* Reads a range. In place of one that each query has, null is 0, 0. */
static bool native_read_range(struct wire_cursor *cursor, struct wire_place *place,
                              void *context) {
    struct range_reader *reader = context;
    const char *type = wire_cursor_type(cursor);
    size_t count;
    if (reader->lens != NULL && type != NULL && strcmp(type, "null") == 0) {
        cursor->at += 4;
        pace_add(4);
        *reader->out++ = 0;
        *reader->out++ = 0;
        return true;
    }
    return wire_list_read(cursor, place, reader->levels, 2, native_read_bound, reader,
                          &count) &&
           wire_list_check(cursor, place, 2, count,
                           "send a first key, and the key after the last");
}

/* Reads a list of ranges: those of a sequence, or of all. */
static bool native_read_ranges(struct wire_cursor *cursor, struct wire_place *place,
                               void *context) {
    struct range_reader *reader = context;
    bool in_batch = place->depth > 0;
    const char *reason = "send as many as for the first sequence";
    size_t expected = reader->ranges.count, count;
    if (reader->lens != NULL) {
        expected = reader->lens[in_batch ? place->index[0] : 0];
        reason = in_batch ? "send one for each query of its sequence"
                          : "send one for each query";
    }
    if (!wire_list_read(cursor, place, reader->levels, expected > 0 ? expected : SIZE_MAX,
                        native_read_range, reader, &count))
        return false;
    reader->ranges.count = count;
    return expected == 0 || wire_list_check(cursor, place, expected, count, reason);
}

/* Reads ranges with `reader->levels` levels of lists, which the outermost list of
 * sequences is one of when `per_sequence`. */
static bool native_read_levels(struct range_reader *reader, size_t sequences,
                               bool per_sequence) {
    struct wire_place place = {.field = reader->ranges.field};
    struct wire_cursor *cursor = &reader->cursor;
    size_t count;
    reader->ranges.levels = reader->levels - 1;
    reader->ranges.per_sequence = per_sequence;
    if (per_sequence)
        return wire_list_read(cursor, &place, reader->levels, sequences,
                              native_read_ranges, reader, &count) &&
               wire_list_check(cursor, &place, sequences, count,
                               "send one list for each sequence");
    if (reader->levels > 1)
        return native_read_ranges(cursor, &place, reader);
    reader->ranges.count = 1;
    wire_cursor_next(cursor);
    return native_read_range(cursor, &place, reader);
}

/* Prepares to read a member of up to `numbers` numbers. */
static bool range_reader_init(struct range_reader *reader,
                              const struct wire_native_body *body,
                              const struct wire_span *span, const char *field,
                              size_t numbers) {
    size_t *list = arena_alloc(body->arena, numbers, sizeof *list);
    *reader = (struct range_reader){.cursor = wire_cursor_at(&body->text, span),
                                    .ranges = {.field = field, .list = list},
                                    .out = list};
    return list != NULL || wire_problem_set_no_memory(body->text.problem);
}

static bool native_read_spans(const struct wire_native_body *body,
                              struct wire_request *request) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_SPANS];
    struct range_reader reader;
    return span->start == NULL ||
           (range_reader_init(&reader, body, span, "spans", span->commas + 2) &&
            wire_levels_read(&reader.cursor, "spans", 2, request->batched ? 3 : 2,
                             &reader.levels) &&
            native_read_levels(&reader, request->batch.num_sequences,
                               reader.levels == 3) &&
            wire_reduce_set_spans(&reader.ranges, &request->batch, body->text.problem));
}

static bool native_read_top_in(const struct wire_native_body *body, attn_request *batch) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_TOP_IN];
    struct range_reader reader;
    return span->start == NULL ||
           (range_reader_init(&reader, body, span, "top_in", span->commas + 2) &&
            wire_levels_read(&reader.cursor, "top_in", 1, 2, &reader.levels) &&
            native_read_levels(&reader, 1, false) &&
            wire_reduce_set_top_in(&reader.ranges, batch, body->text.problem));
}

size_t wire_native_targets_room(const struct wire_span *span) {
    return (size_t)(span->end - span->start) / 4 + 1; /* null, or a longer range */
}

bool wire_native_targets_batched(const struct wire_cursor *cursor) {
    struct wire_cursor ahead = *cursor;
    size_t levels = wire_cursor_levels(&ahead);
    return levels == 3 || (levels == 2 && !wire_cursor_at_number(&ahead));
}

static bool native_read_targets(const struct wire_native_body *body,
                                struct wire_request *request) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_TARGETS];
    attn_request *batch = &request->batch;
    struct wire_place place = {.field = "targets"};
    size_t needed = request->batched ? 3 : 2;
    struct range_reader reader;
    if (span->start == NULL)
        return true;
    if (!range_reader_init(&reader, body, span, place.field,
                           2 * wire_native_targets_room(span)))
        return false;

    bool per_sequence = wire_native_targets_batched(&reader.cursor);
    reader.lens = batch->query_lens;
    reader.levels = per_sequence ? 3 : 2;
    if (per_sequence ? !request->batched : !wire_reduce_even_queries(batch)) {
        wire_cursor_locate(&reader.cursor, &place);
        return wire_refuse_levels(&place, needed, needed, reader.levels,
                                  body->text.problem);
    }
    return native_read_levels(&reader, batch->num_sequences, per_sequence) &&
           wire_reduce_set_targets(&reader.ranges, body->arena, batch,
                                   body->text.problem);
}

static bool native_read_reductions(const struct wire_native_body *body,
                                   const struct wire_need *need,
                                   struct wire_request *request) {
    const struct wire_span *members = body->members;
    const struct wire_cursor *text = &body->text;
    attn_request *batch = &request->batch;
    const struct wire_reduce_options options = {
        .spans = members[WIRE_NATIVE_SPANS].start != NULL,
        .top_k = members[WIRE_NATIVE_TOP_K].start != NULL,
        .top_in = members[WIRE_NATIVE_TOP_IN].start != NULL,
        .targets = members[WIRE_NATIVE_TARGETS].start != NULL,
        .block = members[WIRE_NATIVE_BLOCK].start != NULL,
    };

    return wire_reduce_check_need(need, &options, text->problem) &&
           native_read_spans(body, request) &&
           wire_count_read(text, &members[WIRE_NATIVE_TOP_K], "top_k", "a number of keys",
                           &batch->reduce.top_k) &&
           native_read_top_in(body, batch) &&
           wire_reduce_check_top(batch, text->problem) &&
           native_read_targets(body, request) &&
           wire_count_read(text, &members[WIRE_NATIVE_BLOCK], "block",
                           "a number of queries and keys", &batch->reduce.block);
}

/* --- all of them --- */

bool wire_native_rows_read(const struct wire_native_body *body,
                           const struct wire_tensors *tensors,
                           const struct wire_need *need, struct wire_request *request) {
    struct wire_problem *problem = body->text.problem;
    return native_read_reductions(body, need, request) &&
           native_read_selection(body, WIRE_NATIVE_WEIGHTS_HEADS, WIRE_SELECTED_HEADS,
                                 request) &&
           native_read_selection(body, WIRE_NATIVE_WEIGHTS_QUERIES, WIRE_SELECTED_QUERIES,
                                 request) &&
           wire_selection_check(request, problem) &&
           native_read_valid_lens(body, tensors, &request->batch) &&
           wire_positions_read(native_read_positions, body, tensors,
                               attn_model_get_info(request->model), &request->batch,
                               problem);
}
