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
    const attn_request *batch;
    const char *field;
    size_t levels; /* of lists, in the field */
    bool nulls;    /* null, and [0,0], are a row without a range */
    size_t keys;   /* that a range may have, and whose they are */
    const char *of;
    size_t *out; /* the next number to be written */
};

/* Returns the memory of a list, or NULL with the problem set. */
static size_t *alloc_list(const struct wire_cursor *text, const struct wire_span *span,
                          struct arena *arena) {
    size_t *list = arena_alloc(arena, span->commas + 2, sizeof *list);
    if (list == NULL)
        wire_problem_set_no_memory(text->problem);
    return list;
}

/* Reads the two numbers of a range. */
static bool native_read_pair(struct range_reader *reader, struct wire_place *place) {
    struct wire_cursor *cursor = &reader->cursor;
    struct wire_span text;
    bool more = true;
    size_t count;
    if (!wire_list_open(cursor, place, reader->levels))
        return false;

    struct wire_place at = *place;
    at.depth++;
    for (count = 0; more; count++) {
        at.index[place->depth] = count;
        wire_cursor_next(cursor);
        if (!(count < 2 ? wire_uint_read(cursor, &at, reader->levels, &reader->out[count],
                                         &text)
                        : wire_cursor_skip(cursor, at.depth, &text)) ||
            !wire_list_next(cursor, &at, &more))
            return false;
    }
    if (count == 2)
        return true;
    cursor->at--;
    wire_cursor_locate(cursor, place);
    return wire_refuse_uneven(place, 2, count, "a first key, and the key after the last",
                              cursor->problem);
}

/* Reads the range at `place`. */
static bool native_read_range(struct range_reader *reader, struct wire_place *place) {
    struct wire_cursor *cursor = &reader->cursor;
    const char *type;

    wire_cursor_next(cursor);
    type = wire_cursor_type(cursor);
    if (reader->nulls && type != NULL && strcmp(type, "null") == 0) {
        cursor->at += 4;
        pace_add(4);
        reader->out[0] = reader->out[1] = 0;
    } else if (!native_read_pair(reader, place)) {
        return false;
    }

    size_t first = reader->out[0], end = reader->out[1];
    reader->out += 2;
    if (reader->nulls && first == 0 && end == 0)
        return true;
    return wire_reduce_check_range(place, first, end, reader->keys, reader->of,
                                   cursor->problem);
}

/* Reads a list of ranges; when `expected` is not 0, it must have as many. */
static bool native_read_ranges(struct range_reader *reader, struct wire_place *place,
                               size_t expected, const char *reason, size_t *ret_count) {
    struct wire_cursor *cursor = &reader->cursor;
    struct wire_span surplus;
    bool more = true;
    size_t count;
    if (!wire_list_open(cursor, place, reader->levels))
        return false;

    struct wire_place at = *place;
    at.depth++;
    for (count = 0; more; count++) {
        bool fits = expected == 0 || count < expected;
        at.index[place->depth] = count;
        wire_cursor_next(cursor);
        if (!(fits ? native_read_range(reader, &at)
                   : wire_cursor_skip(cursor, at.depth, &surplus)) ||
            !wire_list_next(cursor, &at, &more))
            return false;
    }
    *ret_count = count;
    if (expected == 0 || count == expected)
        return true;
    cursor->at--;
    wire_cursor_locate(cursor, place);
    return wire_refuse_uneven(place, expected, count, reason, cursor->problem);
}

/* Reads a list of ranges for each sequence: as many as it has queries, or, when `per_row`
 * is not set, as many as the first one. */
static bool native_read_batch(struct range_reader *reader, bool per_row,
                              size_t *ret_count) {
    const attn_request *batch = reader->batch;
    struct wire_place place = {.field = reader->field};
    struct wire_span surplus;
    size_t b, count = 0;
    bool more = true;
    if (!wire_list_open(&reader->cursor, &place, reader->levels))
        return false;

    reader->of = "its sequence";
    place.depth = 1;
    for (b = 0; more; b++) {
        bool fits = b < batch->num_sequences;
        place.index[0] = b;
        wire_cursor_next(&reader->cursor);
        reader->keys = fits ? batch->key_lens[b] : 0;
        if (!(fits ? native_read_ranges(reader, &place,
                                        per_row ? batch->query_lens[b] : count,
                                        per_row ? "one for each query of its sequence"
                                                : "as many as in the first sequence",
                                        &count)
                   : wire_cursor_skip(&reader->cursor, 1, &surplus)) ||
            !wire_list_next(&reader->cursor, &place, &more))
            return false;
    }
    *ret_count = count;
    if (b == batch->num_sequences)
        return true;
    place.depth = 0;
    wire_cursor_locate(&reader->cursor, &place);
    return wire_refuse_uneven(&place, batch->num_sequences, b, "one for each sequence",
                              reader->cursor.problem);
}

static struct range_reader make_reader(const struct wire_cursor *text,
                                       const struct wire_span *span, const char *field,
                                       const attn_request *batch, size_t *list) {
    return (struct range_reader){.cursor = wire_cursor_at(text, span),
                                 .batch = batch,
                                 .field = field,
                                 .keys = wire_reduce_shortest(batch),
                                 .of = batch->num_sequences > 1 ? "the shortest sequence"
                                                                : "its sequence",
                                 .out = list};
}

static bool native_read_spans(const struct wire_cursor *text,
                              const struct wire_span *span, struct arena *arena,
                              const struct wire_request *request,
                              attn_reductions *reduce) {
    struct wire_place place = {.field = "spans"};
    if (span->start == NULL)
        return true;
    size_t *list = alloc_list(text, span, arena);
    if (list == NULL)
        return false;

    struct range_reader reader =
        make_reader(text, span, place.field, &request->batch, list);
    if (!wire_levels_read(&reader.cursor, place.field, 2, request->batched ? 3 : 2,
                          &reader.levels))
        return false;
    reduce->spans = list;
    reduce->spans_per_sequence = reader.levels == 3;
    return reader.levels == 3
               ? native_read_batch(&reader, false, &reduce->num_spans)
               : native_read_ranges(&reader, &place, 0, "", &reduce->num_spans);
}

static bool native_read_top_in(const struct wire_cursor *text,
                               const struct wire_span *span, struct arena *arena,
                               const attn_request *batch, attn_reductions *reduce) {
    struct wire_place place = {.field = "top_in"};
    if (span->start == NULL)
        return true;
    size_t *list = alloc_list(text, span, arena);
    if (list == NULL)
        return false;

    struct range_reader reader = make_reader(text, span, place.field, batch, list);
    if (!wire_levels_read(&reader.cursor, place.field, 1, 2, &reader.levels))
        return false;
    reduce->top_in = list;
    reduce->num_top_in = 1;
    return reader.levels == 1
               ? native_read_range(&reader, &place)
               : native_read_ranges(&reader, &place, 0, "", &reduce->num_top_in);
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
                                const struct wire_request *request,
                                attn_reductions *reduce) {
    const attn_request *batch = &request->batch;
    struct wire_place place = {.field = "targets"};
    size_t count;
    if (span->start == NULL)
        return true;
    size_t *list = arena_alloc(arena, wire_native_targets_room(span), 2 * sizeof *list);
    if (list == NULL)
        return wire_problem_set_no_memory(text->problem);

    struct range_reader reader = make_reader(text, span, place.field, batch, list);
    bool per_sequence = wire_native_targets_batched(&reader.cursor);
    reader.nulls = true;
    reader.levels = per_sequence ? 3 : 2;
    reduce->targets = list;
    if (per_sequence && request->batched)
        return native_read_batch(&reader, true, &count);
    if (per_sequence || !wire_reduce_even_queries(batch)) {
        wire_cursor_locate(&reader.cursor, &place);
        return wire_refuse_levels(&place, request->batched ? 3 : 2,
                                  request->batched ? 3 : 2, reader.levels, text->problem);
    }
    return native_read_ranges(&reader, &place, batch->query_lens[0], "one for each query",
                              &count) &&
           wire_reduce_repeat(batch, arena, &reduce->targets, text->problem);
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
           native_read_spans(text, &members[WIRE_NATIVE_SPANS], arena, request, reduce) &&
           wire_count_read(text, &members[WIRE_NATIVE_TOP_K], "top_k", "a number of keys",
                           &reduce->top_k) &&
           native_read_top_in(text, &members[WIRE_NATIVE_TOP_IN], arena, batch, reduce) &&
           wire_reduce_check_top(batch, text->problem) &&
           native_read_targets(text, &members[WIRE_NATIVE_TARGETS], arena, request,
                               reduce) &&
           wire_count_read(text, &members[WIRE_NATIVE_BLOCK], "block",
                           "a number of queries and keys", &reduce->block);
}
