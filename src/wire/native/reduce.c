/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: reads ranges of keys from lists of JSON. */
#include "wire/native/reduce.h"

#include "base/pace.h"
#include "wire/checks/reduce.h"
#include "wire/checks/tensor_check.h"
#include "wire/json/list.h"

#include <string.h>

/* Ranges that are being read. */
struct range_reader {
    struct wire_cursor cursor;
    struct wire_ranges ranges;
    const size_t *lens; /* how many each sequence has; NULL: as many as the first */
    size_t levels;      /* of lists, in the field */
    size_t *out;        /* the next number to be written */
};

static bool native_read_number(struct wire_cursor *cursor, struct wire_place *place,
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
    return wire_list_read(cursor, place, reader->levels, 2, native_read_number, reader,
                          &count) &&
           wire_list_check(cursor, place, 2, count,
                           "a first key, and the key after the last");
}

/* Reads a list of ranges: those of a sequence, or of all. */
static bool native_read_ranges(struct wire_cursor *cursor, struct wire_place *place,
                               void *context) {
    struct range_reader *reader = context;
    bool in_batch = place->depth > 0;
    const char *reason = "as many as in the first sequence";
    size_t expected = reader->ranges.count, count;
    if (reader->lens != NULL) {
        expected = reader->lens[in_batch ? place->index[0] : 0];
        reason = in_batch ? "one for each query of its sequence" : "one for each query";
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
               wire_list_check(cursor, &place, sequences, count, "one for each sequence");
    if (reader->levels > 1)
        return native_read_ranges(cursor, &place, reader);
    reader->ranges.count = 1;
    wire_cursor_next(cursor);
    return native_read_range(cursor, &place, reader);
}

/* Prepares to read up to `numbers` numbers. */
static bool range_reader_init(struct range_reader *reader, const struct wire_cursor *text,
                              const struct wire_span *span, const char *field,
                              size_t numbers, struct arena *arena) {
    size_t *list = arena_alloc(arena, numbers, sizeof *list);
    *reader = (struct range_reader){.cursor = wire_cursor_at(text, span),
                                    .ranges = {.field = field, .list = list},
                                    .out = list};
    return list != NULL || wire_problem_set_no_memory(text->problem);
}

static bool native_read_spans(const struct wire_cursor *text,
                              const struct wire_span *span, struct arena *arena,
                              struct wire_request *request) {
    struct range_reader reader;
    return span->start == NULL ||
           (range_reader_init(&reader, text, span, "spans", span->commas + 2, arena) &&
            wire_levels_read(&reader.cursor, "spans", 2, request->batched ? 3 : 2,
                             &reader.levels) &&
            native_read_levels(&reader, request->batch.num_sequences,
                               reader.levels == 3) &&
            wire_reduce_set_spans(&reader.ranges, &request->batch, text->problem));
}

static bool native_read_top_in(const struct wire_cursor *text,
                               const struct wire_span *span, struct arena *arena,
                               attn_request *batch) {
    struct range_reader reader;
    return span->start == NULL ||
           (range_reader_init(&reader, text, span, "top_in", span->commas + 2, arena) &&
            wire_levels_read(&reader.cursor, "top_in", 1, 2, &reader.levels) &&
            native_read_levels(&reader, 1, false) &&
            wire_reduce_set_top_in(&reader.ranges, batch, text->problem));
}

size_t wire_native_targets_room(const struct wire_span *span) {
    return (size_t)(span->end - span->start) / 4 + 1; /* null, or a longer range */
}

bool wire_native_targets_batched(const struct wire_cursor *cursor) {
    struct wire_cursor ahead = *cursor;
    size_t levels = wire_cursor_levels(&ahead);
    return levels == 3 || (levels == 2 && !wire_cursor_at_number(&ahead));
}

static bool native_read_targets(const struct wire_cursor *text,
                                const struct wire_span *span, struct arena *arena,
                                struct wire_request *request) {
    attn_request *batch = &request->batch;
    struct wire_place place = {.field = "targets"};
    size_t needed = request->batched ? 3 : 2;
    struct range_reader reader;
    if (span->start == NULL)
        return true;
    if (!range_reader_init(&reader, text, span, place.field,
                           2 * wire_native_targets_room(span), arena))
        return false;

    bool per_sequence = wire_native_targets_batched(&reader.cursor);
    reader.lens = batch->query_lens;
    reader.levels = per_sequence ? 3 : 2;
    if (per_sequence ? !request->batched : !wire_reduce_even_queries(batch)) {
        wire_cursor_locate(&reader.cursor, &place);
        return wire_refuse_levels(&place, needed, needed, reader.levels, text->problem);
    }
    return native_read_levels(&reader, batch->num_sequences, per_sequence) &&
           wire_reduce_set_targets(&reader.ranges, arena, batch, text->problem);
}

bool wire_native_reduce_read(const struct wire_cursor *text,
                             const struct wire_span *members,
                             const struct wire_need *need, struct arena *arena,
                             struct wire_request *request) {
    attn_request *batch = &request->batch;
    attn_reductions *reduce = &batch->reduce;
    const struct wire_reduce_options options = {
        .spans = members[WIRE_NATIVE_SPANS].start != NULL,
        .top_k = members[WIRE_NATIVE_TOP_K].start != NULL,
        .top_in = members[WIRE_NATIVE_TOP_IN].start != NULL,
        .targets = members[WIRE_NATIVE_TARGETS].start != NULL,
        .block = members[WIRE_NATIVE_BLOCK].start != NULL,
    };

    return wire_reduce_check_need(need, &options, text->problem) &&
           native_read_spans(text, &members[WIRE_NATIVE_SPANS], arena, request) &&
           wire_count_read(text, &members[WIRE_NATIVE_TOP_K], "top_k", "a number of keys",
                           &reduce->top_k) &&
           native_read_top_in(text, &members[WIRE_NATIVE_TOP_IN], arena, batch) &&
           wire_reduce_check_top(batch, text->problem) &&
           native_read_targets(text, &members[WIRE_NATIVE_TARGETS], arena, request) &&
           wire_count_read(text, &members[WIRE_NATIVE_BLOCK], "block",
                           "a number of queries and keys", &reduce->block);
}
