/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/native_select.h"

#include "wire/list_text.h"

#include <stdio.h>
#include <string.h>

/* One list of indices. */
struct list {
    const char *field;
    const char *things; /* what it selects of */
    size_t limit;       /* indices are below it */
};

static bool refuse_second(const struct list *list, size_t i, size_t index,
                          struct wire_problem *ret_problem) {
    wire_problem_set(ret_problem, 400, "Duplicate index", list->field,
                     "%s[%zu] is %zu, which stands there before; send each index once",
                     list->field, i, index);
    return false;
}

/* Reads the indices of an open list into `indices`. More than `limit` are always refused:
 * one is out of range or there twice. So no more than that many are looked at. */
static bool read_indices(struct wire_cursor *cursor, const struct list *list, bool *seen,
                         size_t *indices, size_t *ret_count) {
    struct wire_place at = {.field = list->field, .depth = 1};
    bool more = true;
    for (size_t i = 0; more; i++) {
        struct wire_span text;
        char limit[64];
        at.index[0] = i;
        if (!wire_whole_read(cursor, &at, 1, &indices[i], &text))
            return false;
        if (indices[i] >= list->limit) {
            snprintf(limit, sizeof limit, "there are %zu %s", list->limit, list->things);
            return wire_refuse_whole(cursor, &at, &text, limit, list->limit - 1);
        }
        if (seen[indices[i]])
            return refuse_second(list, i, indices[i], cursor->problem);
        seen[indices[i]] = true;
        *ret_count = i + 1;
        if (!wire_list_next(cursor, &at, &more))
            return false;
    }
    return true;
}

/* Reads a list that may be left out: *ret_indices is NULL then. */
static bool read_list(const char *body, const struct wire_span *span,
                      const struct list *list, struct arena *arena,
                      const size_t **ret_indices, size_t *ret_count,
                      struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {body, span->start, span->end, ret_problem};
    struct wire_place place = {.field = list->field};
    if (span->start == NULL)
        return true;
    if (!wire_list_open(&cursor, &place, 1))
        return false;
    bool *seen = arena_alloc(arena, list->limit, sizeof *seen);
    size_t *indices = arena_alloc(arena, span->commas + 1, sizeof *indices);
    if (seen == NULL || indices == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }
    memset(seen, 0, list->limit * sizeof *seen);
    *ret_indices = indices;
    return read_indices(&cursor, list, seen, indices, ret_count);
}

bool wire_selection_check(const struct wire_call *call,
                          struct wire_problem *ret_problem) {
    attn_need_weights need = call->request.need_weights;
    const struct wire_selection *selection = &call->selection;
    if (selection->heads != NULL && need != ATTN_WEIGHTS_ALL) {
        wire_problem_set(ret_problem, 400, "Nothing to select from", "weights_heads",
                         "weights_heads selects among the weights of every head; send "
                         "\"need_weights\": true with it, or leave it out");
        return false;
    }
    if (selection->queries != NULL && need == ATTN_WEIGHTS_NONE) {
        wire_problem_set(ret_problem, 400, "Nothing to select from", "weights_queries",
                         "weights_queries selects rows of the weights; send "
                         "\"need_weights\": true or \"mean\" with it, or leave it out");
        return false;
    }
    return true;
}

/* The list of heads, or of queries. */
static struct list describe(const struct wire_call *call, enum wire_member member) {
    const attn_request *request = &call->request;
    if (member == WIRE_WEIGHTS_HEADS)
        return (struct list){"weights_heads", "heads",
                             attn_model_get_info(call->model)->num_heads};
    size_t shortest = request->query_lens[0];
    for (size_t b = 1; b < request->num_sequences; b++) {
        if (request->query_lens[b] < shortest)
            shortest = request->query_lens[b];
    }
    return (struct list){"weights_queries", "queries in the shortest sequence", shortest};
}

bool wire_selection_read(const char *body, const struct wire_span *members,
                         struct arena *arena, struct wire_call *call,
                         struct wire_problem *ret_problem) {
    struct wire_selection *selection = &call->selection;
    const struct list heads = describe(call, WIRE_WEIGHTS_HEADS);
    const struct list queries = describe(call, WIRE_WEIGHTS_QUERIES);
    return read_list(body, &members[WIRE_WEIGHTS_HEADS], &heads, arena, &selection->heads,
                     &selection->num_heads, ret_problem) &&
           read_list(body, &members[WIRE_WEIGHTS_QUERIES], &queries, arena,
                     &selection->queries, &selection->num_queries, ret_problem) &&
           wire_selection_check(call, ret_problem);
}

bool wire_selection_take(struct wire_call *call, enum wire_member member,
                         const size_t *indices, size_t count, struct arena *arena,
                         struct wire_problem *ret_problem) {
    const struct list list = describe(call, member);
    bool *seen = arena_alloc(arena, list.limit, sizeof *seen);
    if (seen == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }
    memset(seen, 0, list.limit * sizeof *seen);
    for (size_t i = 0; i < count; i++) {
        const struct wire_place at = {.field = list.field, .depth = 1, .index = {i}};
        char limit[64];
        snprintf(limit, sizeof limit, "there are %zu %s", list.limit, list.things);
        if (indices[i] >= list.limit)
            return wire_refuse_integer(&at, (int64_t)indices[i], 0, list.limit - 1, limit,
                                       ret_problem);
        if (seen[indices[i]])
            return refuse_second(&list, i, indices[i], ret_problem);
        seen[indices[i]] = true;
    }
    if (member == WIRE_WEIGHTS_HEADS) {
        call->selection.heads = indices;
        call->selection.num_heads = count;
    } else {
        call->selection.queries = indices;
        call->selection.num_queries = count;
    }
    return true;
}
