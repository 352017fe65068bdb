/* SPDX-License-Identifier: Apache-2.0 */
/* selection.c: reads the indices that select attention weights from lists of JSON. */
#include "wire/native/selection.h"

#include "wire/checks/selection.h"
#include "wire/json/list.h"

/* Indices that are being read, and where they are written. */
struct index_reader {
    struct wire_indices indices;
    size_t *list;
};

/* Reads the index at `place`. A list with more elements than there are indices has one
 * that appears twice or is out of range, and reading ends there. */
static bool read_index(struct wire_cursor *cursor, struct wire_place *place,
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

    const struct wire_cursor there = wire_cursor_at(cursor, &text);
    wire_indices_limit(indices, limit);
    wire_cursor_locate(&there, place);
    return wire_refuse_int_range(place, text.start, (size_t)(text.end - text.start),
                                 limit, wire_indices_least(indices), indices->limit - 1,
                                 cursor->problem);
}

/* Reads one of the two lists, which may be left out. */
static bool read_selection_list(const struct wire_cursor *text,
                                const struct wire_span *span, enum wire_selected which,
                                struct arena *arena, struct wire_request *request) {
    struct wire_cursor cursor = wire_cursor_at(text, span);
    struct index_reader reader;
    size_t count = 0;
    if (span->start == NULL)
        return true;
    if (!wire_indices_init(&reader.indices, request, which, arena, cursor.problem))
        return false;

    reader.list = arena_alloc(arena, span->commas + 1, sizeof *reader.list);
    if (reader.list == NULL)
        return wire_problem_set_no_memory(cursor.problem);
    struct wire_place place = {.field = reader.indices.field};
    if (!wire_list_read(&cursor, &place, 1, SIZE_MAX, read_index, &reader, &count) ||
        !wire_indices_check_ends(&reader.indices, reader.list, count, &request->batch,
                                 cursor.problem))
        return false;
    wire_selection_set(request, which, reader.list, count);
    return true;
}

bool wire_native_selection_read(const struct wire_cursor *cursor,
                                const struct wire_span *members, struct arena *arena,
                                struct wire_request *request) {
    return read_selection_list(cursor, &members[WIRE_NATIVE_WEIGHTS_HEADS],
                               WIRE_SELECTED_HEADS, arena, request) &&
           read_selection_list(cursor, &members[WIRE_NATIVE_WEIGHTS_QUERIES],
                               WIRE_SELECTED_QUERIES, arena, request) &&
           wire_selection_check(request, cursor->problem);
}
