/* SPDX-License-Identifier: Apache-2.0 */
/* selection.c: reads the indices that select attention weights from inputs or strings. */
#include "wire/oip/selection.h"

#include "base/pace.h"
#include "base/size.h"
#include "wire/json/list.h"

static const enum wire_oip_name selection_inputs[] = {
    [WIRE_SELECTED_HEADS] = WIRE_OIP_WEIGHTS_HEADS,
    [WIRE_SELECTED_QUERIES] = WIRE_OIP_WEIGHTS_QUERIES,
};

/* Returns how many indices a parameter can have: each but the first needs a comma. */
static size_t max_indices(const struct wire_span *text) {
    return (size_t)(text->end - text->start) / 2 + 1;
}

/* Returns how many rows the queries have, in all sequences. */
static size_t count_rows(const struct wire_oip_scan *scan) {
    const struct wire_oip_input *queries = &scan->inputs[WIRE_OIP_QUERIES];
    return queries->type != NULL ? queries->count / queries->shape[queries->rank - 1] : 0;
}

size_t wire_oip_selection_cost(const struct wire_oip_scan *scan, size_t num_heads) {
    size_t bytes = 0;
    for (int i = 0; i < WIRE_NUM_SELECTED; i++) {
        const struct wire_span *text = &scan->selections[i];
        if (text->start == NULL && scan->inputs[selection_inputs[i]].type == NULL)
            continue;
        /* A mark for each head or row finds what is selected twice. */
        size_add_saturating(&bytes,
                            i == WIRE_SELECTED_HEADS ? num_heads : 2 * count_rows(scan));
        size_add_saturating(&bytes, (size_t)2 * ARENA_ALIGNMENT);
        if (text->start != NULL)
            size_add_mul_saturating(&bytes, max_indices(text), sizeof(size_t));
    }
    return bytes;
}

static bool refuse_parameter(const struct wire_oip_reader *reader,
                             const struct wire_span *text, const char *field) {
    int size = text->end - text->start < 40 ? (int)(text->end - text->start) : 40;
    return wire_problem_set(reader->problem, WIRE_E_WRONG_TYPE, field,
                            "the parameter %s is %.*s; send a string with indices and "
                            "commas between them, such as \"0,3\", or an input",
                            field, size, text->start);
}

/* Reads the indices of a parameter. */
static bool read_parameter(const struct wire_oip_reader *reader,
                           const struct wire_span *text,
                           const struct wire_indices *indices, size_t *list,
                           size_t *ret_count) {
    bool quoted = *text->start == '"'; /* a single index need not be a string */
    struct wire_cursor cursor = {reader->body, text->start + quoted, text->end - quoted,
                                 reader->problem};
    struct wire_place at = {.field = indices->field, .depth = 1};
    char limit[WIRE_INDICES_LIMIT_MAX], c;
    wire_indices_limit(indices, limit);

    for (size_t i = 0;; i++, cursor.at++) {
        struct wire_span index;
        at.index[0] = i;
        wire_cursor_next(&cursor);
        if (!wire_cursor_at_number(&cursor))
            return refuse_parameter(reader, text, indices->field);
        if (!wire_index_read(&cursor, &at, 1, &list[i], &index))
            return false;
        if (!wire_indices_allow(indices, list[i]))
            return wire_refuse_index_range(&cursor, &at, &index, limit,
                                           wire_indices_least(indices),
                                           indices->limit - 1);
        *ret_count = i + 1;
        c = wire_cursor_next(&cursor);
        if (cursor.at == cursor.end)
            return true;
        if (c != ',')
            return refuse_parameter(reader, text, indices->field);
    }
}

/* Reads the indices of an input, or of a parameter when the input was not sent. */
static const size_t *read_list(const struct wire_oip_reader *reader,
                               const struct wire_oip_input *input,
                               const struct wire_span *text,
                               const struct wire_indices *indices, size_t *ret_count) {
    char limit[WIRE_INDICES_LIMIT_MAX];
    if (input->type == NULL) {
        size_t *list = arena_alloc(reader->arena, max_indices(text), sizeof *list);
        if (list == NULL)
            wire_problem_set_no_memory(reader->problem);
        return list != NULL && read_parameter(reader, text, indices, list, ret_count)
                   ? list
                   : NULL;
    }

    *ret_count = input->count;
    if (input->rank != 1) {
        wire_oip_refuse_shape(reader, input, "[N], a list of indices");
        return NULL;
    }
    wire_indices_limit(indices, limit);
    return wire_oip_read_integers(reader, input, wire_indices_least(indices),
                                  indices->limit - 1, limit);
}

static bool oip_read_selection(const struct wire_oip_reader *reader,
                               const struct wire_oip_scan *scan, enum wire_selected which,
                               struct wire_request *request) {
    const struct wire_oip_input *input = &scan->inputs[selection_inputs[which]];
    const struct wire_span *text = &scan->selections[which];
    struct wire_indices indices;
    size_t count = 0;
    if (input->type == NULL && text->start == NULL)
        return true;
    if (!wire_indices_init(&indices, request, which, reader->arena, reader->problem))
        return false;
    if (input->type != NULL && text->start != NULL)
        return wire_problem_set(reader->problem, WIRE_E_DUPLICATE_INPUT, input->name,
                                "%s is an input as well as a parameter; send one of them",
                                input->name);

    const size_t *list = read_list(reader, input, text, &indices, &count);
    if (list == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!wire_indices_add(&indices, i, list[i], reader->problem))
            return false;
        pace_add(sizeof(size_t));
    }
    wire_selection_set(request, which, list, count);
    return wire_indices_check_ends(&indices, list, count, &request->batch,
                                   reader->problem);
}

bool wire_oip_selection_read(const struct wire_oip_reader *reader,
                             const struct wire_oip_scan *scan,
                             struct wire_request *request) {
    return oip_read_selection(reader, scan, WIRE_SELECTED_HEADS, request) &&
           oip_read_selection(reader, scan, WIRE_SELECTED_QUERIES, request) &&
           wire_selection_check(request, reader->problem);
}
