/* SPDX-License-Identifier: Apache-2.0 */
/* native_select.c: which of the weights a reply has. All of them are computed, as the
 * outputs need them; what is not selected never gets to the reply. */
#include "wire/native_select.h"

#include "wire/json_value.h"
#include "wire/refuse.h"
#include "wire/tensor_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* One list of indices. */
struct list {
    const char *field;
    const char *things; /* what it selects of */
    size_t limit;       /* indices are below it */
};

static bool refuse_index(const struct wire_place *place, const struct list *list,
                         int64_t got, struct wire_problem *ret_problem) {
    wire_problem_set(ret_problem, 400, "Out of range", list->field,
                     "%s[%zu] is %" PRId64 ", but there are %zu %s; send 0 to %zu",
                     list->field, place->index[0], got, list->limit, list->things,
                     list->limit - 1);
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "[0,%zu]",
             list->limit - 1);
    snprintf(ret_problem->got, sizeof ret_problem->got, "%" PRId64, got);
    return false;
}

/* More indices than `limit` are always refused: one is out of range or there twice. So no
 * more than that many are ever looked at. */
static bool read_indices(const json_t *value, const struct list *list, bool *seen,
                         size_t *indices, struct wire_problem *ret_problem) {
    struct wire_place at = {.field = list->field, .depth = 1};
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *element = json_array_get(value, i), *leaf;
        at.index[0] = i;
        if (json_is_array(element))
            return wire_refuse_levels(&at, 1, 1, 1 + wire_json_levels(element, &leaf),
                                      ret_problem);
        if (!json_is_integer(element))
            return wire_refuse_type(&at, "integer", wire_json_type(element), ret_problem);
        json_int_t index = json_integer_value(element);
        if (index < 0 || (unsigned long long)index >= list->limit)
            return refuse_index(&at, list, index, ret_problem);
        if (seen[index]) {
            wire_problem_set(ret_problem, 400, "Duplicate index", list->field,
                             "%s[%zu] is %zu, which stands there before; send each index "
                             "once",
                             list->field, i, (size_t)index);
            return false;
        }
        seen[index] = true;
        indices[i] = (size_t)index;
    }
    return true;
}

/* Reads a list that may be left out: *ret_indices is NULL then. */
static bool read_list(const json_t *root, const struct list *list, struct arena *arena,
                      const size_t **ret_indices, size_t *ret_count,
                      struct wire_problem *ret_problem) {
    const struct wire_place place = {.field = list->field};
    const json_t *value = wire_json_member(root, list->field);
    if (value == NULL)
        return true;
    if (!wire_list_check(value, &place, 1, ret_problem))
        return false;
    size_t count = json_array_size(value);
    bool *seen = arena_alloc(arena, list->limit, sizeof *seen);
    size_t *indices = arena_alloc(arena, count, sizeof *indices);
    if (seen == NULL || indices == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }
    memset(seen, 0, list->limit * sizeof *seen);
    if (!read_indices(value, list, seen, indices, ret_problem))
        return false;
    *ret_indices = indices;
    *ret_count = count;
    return true;
}

/* Weights must be asked for before some of them can be selected. */
static bool check_need(const struct wire_call *call, struct wire_problem *ret_problem) {
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

bool wire_selection_read(const json_t *root, struct arena *arena, struct wire_call *call,
                         struct wire_problem *ret_problem) {
    const attn_request *request = &call->request;
    struct wire_selection *selection = &call->selection;
    size_t shortest = request->query_lens[0];
    for (size_t b = 1; b < request->num_sequences; b++) {
        if (request->query_lens[b] < shortest)
            shortest = request->query_lens[b];
    }
    const struct list heads = {"weights_heads", "heads",
                               attn_model_get_info(call->model)->num_heads};
    const struct list queries = {"weights_queries", "queries in the shortest sequence",
                                 shortest};
    return read_list(root, &heads, arena, &selection->heads, &selection->num_heads,
                     ret_problem) &&
           read_list(root, &queries, arena, &selection->queries, &selection->num_queries,
                     ret_problem) &&
           check_need(call, ret_problem);
}

bool wire_native_selects(const struct wire_call *call) {
    return call->selection.heads != NULL || call->selection.queries != NULL;
}

size_t wire_native_num_weights(const struct wire_call *call, const attn_sizes *sizes) {
    const struct wire_selection *selection = &call->selection;
    const attn_request *request = &call->request;
    if (request->need_weights == ATTN_WEIGHTS_NONE)
        return 0;
    if (!wire_native_selects(call))
        return sizes->weights;
    /* At most sizes->weights, so nothing here can overflow. */
    size_t heads = attn_model_get_info(call->model)->num_heads, weights = 0;
    if (request->need_weights == ATTN_WEIGHTS_MEAN)
        heads = 1;
    else if (selection->heads != NULL)
        heads = selection->num_heads;
    for (size_t b = 0; b < request->num_sequences; b++)
        weights += heads * request->key_lens[b] *
                   (selection->queries != NULL ? selection->num_queries
                                               : request->query_lens[b]);
    return weights;
}

void wire_native_select(const struct wire_call *call, const float *weights,
                        float *ret_selected) {
    const struct wire_selection *selection = &call->selection;
    const attn_request *request = &call->request;
    bool all = request->need_weights == ATTN_WEIGHTS_ALL;
    size_t planes = all ? attn_model_get_info(call->model)->num_heads : 1;
    size_t heads = selection->heads != NULL ? selection->num_heads : planes;
    for (size_t b = 0; b < request->num_sequences; b++) {
        size_t queries = request->query_lens[b], width = request->key_lens[b];
        size_t rows = selection->queries != NULL ? selection->num_queries : queries;
        for (size_t h = 0; h < heads; h++) {
            size_t plane = selection->heads != NULL ? selection->heads[h] : h;
            for (size_t i = 0; i < rows; i++, ret_selected += width) {
                size_t row = selection->queries != NULL ? selection->queries[i] : i;
                memcpy(ret_selected, weights + (plane * queries + row) * width,
                       width * sizeof *weights);
            }
        }
        weights += planes * queries * width; /* the next sequence's */
    }
}
