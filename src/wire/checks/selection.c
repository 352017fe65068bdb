/* SPDX-License-Identifier: Apache-2.0 */
/* selection.c: checks weights_heads and weights_queries, for all protocols. */
#include "wire/checks/selection.h"

#include "base/error.h"
#include "base/pace.h"
#include "math/results.h"

#include <stdio.h>
#include <string.h>

static size_t shortest_query_len(const attn_request *batch) {
    size_t shortest = batch->query_lens[0];
    for (size_t b = 1; b < batch->num_sequences; b++) {
        pace_add(1);
        if (batch->query_lens[b] < shortest)
            shortest = batch->query_lens[b];
    }
    return shortest;
}

bool wire_indices_init(struct wire_indices *indices, const struct wire_request *request,
                       enum wire_selected which, struct arena *arena,
                       struct wire_problem *ret_problem) {
    if (which == WIRE_SELECTED_HEADS)
        *indices = (struct wire_indices){
            .field = "weights_heads",
            .thing = "head",
            .where = "",
            .limit = attn_model_get_info(request->model)->num_heads,
        };
    else
        *indices = (struct wire_indices){
            .field = "weights_queries",
            .thing = "row",
            .where = " of queries in the shortest sequence",
            .limit = shortest_query_len(&request->batch),
            .from_end = true,
        };

    size_t marks = indices->limit * (indices->from_end ? 2 : 1);
    indices->seen = arena_alloc(arena, marks, sizeof *indices->seen);
    if (indices->seen == NULL)
        return wire_problem_set_no_memory(ret_problem);
    pace_clear(indices->seen, marks * sizeof *indices->seen);
    return true;
}

static bool refuse_twice(const struct wire_indices *indices, size_t i, size_t index,
                         struct wire_problem *ret_problem) {
    return wire_problem_set(ret_problem, WIRE_E_DUPLICATE_INDEX, indices->field,
                            "%s[%zu] is %td, which duplicates an earlier index; "
                            "send each index once",
                            indices->field, i, (ptrdiff_t)index);
}

bool wire_indices_add(struct wire_indices *indices, size_t i, size_t index,
                      struct wire_problem *ret_problem) {
    size_t mark = index < indices->limit ? index : indices->limit + (0 - index) - 1;
    if (indices->seen[mark])
        return refuse_twice(indices, i, index, ret_problem);
    indices->seen[mark] = true;
    return true;
}

bool wire_indices_check_ends(const struct wire_indices *indices, const size_t *list,
                             size_t count, const attn_request *batch,
                             struct wire_problem *ret_problem) {
    for (size_t i = 0; i < count; i++) {
        size_t before = 0;
        pace_add(1);
        for (size_t b = 0; list[i] >= indices->limit && b < batch->num_sequences; b++) {
            size_t len = batch->query_lens[b], row = len + list[i];
            pace_add(1);
            if (len != before && row < indices->limit && indices->seen[row])
                return refuse_twice(indices, i, list[i], ret_problem);
            before = len;
        }
    }
    return true;
}

void wire_indices_limit(const struct wire_indices *indices,
                        char ret_text[WIRE_INDICES_LIMIT_MAX]) {
    snprintf(ret_text, WIRE_INDICES_LIMIT_MAX, "there %s %zu %s%s%s",
             indices->limit == 1 ? "is" : "are", indices->limit, indices->thing,
             plural_of(indices->limit), indices->where);
}

void wire_selection_set(struct wire_request *request, enum wire_selected which,
                        const size_t *list, size_t count) {
    attn_request *batch = &request->batch;
    if (which == WIRE_SELECTED_HEADS) {
        batch->weights_heads = list;
        batch->num_weights_heads = count;
    } else {
        batch->weights_queries = (const ptrdiff_t *)list;
        batch->num_weights_queries = count;
    }
}

/* Whether anything is wanted of selected heads and queries besides the weights. */
static bool selects_more(const attn_request *batch) {
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        if (id != RESULT_WEIGHTS && (result_table[id].kinds & RESULT_SELECTED) != 0 &&
            result_wanted(batch, id))
            return true;
    }
    return false;
}

bool wire_selection_check(const struct wire_request *request,
                          struct wire_problem *ret_problem) {
    const attn_request *batch = &request->batch;
    attn_need_weights need = batch->need_weights;
    bool more = selects_more(batch);
    const char *every = "list weights in need, or send \"need_weights\": true, with it";
    const char *any = "list weights in need, or send \"need_weights\": true or \"mean\", "
                      "with it";
    if (request->oip != NULL) {
        every = "name attention_weights in outputs, and leave need_weights out";
        any = "name attention_weights in outputs";
    } else if (attn_model_get_info(request->model)->projection.given) {
        every = any = "list weights in need";
    }

    if (batch->weights_heads != NULL && need != ATTN_WEIGHTS_ALL && !more)
        return wire_problem_set(ret_problem, WIRE_E_NOTHING_TO_SELECT_FROM,
                                "weights_heads",
                                "weights_heads selects heads of the weights, and of what "
                                "is made of them; %s, or leave it out",
                                every);
    if (batch->weights_queries != NULL && need == ATTN_WEIGHTS_NONE && !more)
        return wire_problem_set(
            ret_problem, WIRE_E_NOTHING_TO_SELECT_FROM, "weights_queries",
            "weights_queries selects rows of the weights, and of what "
            "is made of them; %s, or leave it out",
            any);
    return true;
}
