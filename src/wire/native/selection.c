/* SPDX-License-Identifier: Apache-2.0 */
/* selection.c: reads the indices that select attention weights from lists of JSON. */
#include "wire/native/selection.h"

#include "wire/checks/selection.h"
#include "wire/json/list.h"

/* Refuses the index at `place`, which does not exist. */
static bool refuse_index(const struct wire_cursor *cursor,
                         const struct wire_indices *indices, struct wire_place *place,
                         const struct wire_span *text) {
    const struct wire_cursor there = wire_cursor_at(cursor, text);
    char limit[WIRE_INDICES_LIMIT_MAX];

    wire_indices_limit(indices, limit);
    wire_cursor_locate(&there, place);
    return wire_refuse_int_range(place, text->start, (size_t)(text->end - text->start),
                                 limit, wire_indices_least(indices), indices->limit - 1,
                                 cursor->problem);
}

/* Reads the elements of an open list. A list with more elements than there are indices
 * has one that appears twice or is out of range, and reading ends there. */
static bool read_indices(struct wire_cursor *cursor, struct wire_indices *indices,
                         size_t *list, size_t *ret_count) {
    struct wire_place at = {.field = indices->field, .depth = 1};
    bool more = true;

    for (size_t i = 0; more; i++) {
        struct wire_span text;
        at.index[0] = i;
        if (!(indices->from_end ? wire_index_read : wire_uint_read)(cursor, &at, 1,
                                                                    &list[i], &text))
            return false;
        if (!wire_indices_allow(indices, list[i]))
            return refuse_index(cursor, indices, &at, &text);
        if (!wire_indices_add(indices, i, list[i], cursor->problem) ||
            !wire_list_next(cursor, &at, &more))
            return false;
        *ret_count = i + 1;
    }
    return true;
}

/* Reads one of the two lists, which may be left out. */
static bool read_selection_list(const struct wire_cursor *text,
                                const struct wire_span *span, enum wire_selected which,
                                struct arena *arena, struct wire_request *request) {
    struct wire_cursor cursor = wire_cursor_at(text, span);
    struct wire_indices indices;
    if (span->start == NULL)
        return true;
    if (!wire_indices_init(&indices, request, which, arena, cursor.problem))
        return false;

    size_t *list = arena_alloc(arena, span->commas + 1, sizeof *list), count = 0;
    if (list == NULL)
        return wire_problem_set_no_memory(cursor.problem);
    struct wire_place place = {.field = indices.field};
    if (!wire_list_open(&cursor, &place, 1) ||
        !read_indices(&cursor, &indices, list, &count) ||
        !wire_indices_check_ends(&indices, list, count, &request->batch, cursor.problem))
        return false;
    wire_selection_set(request, which, list, count);
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
