/* SPDX-License-Identifier: Apache-2.0 */
/* selection.c: reads which heads and queries are selected. */
#include "wire/fields/readers.h"

#include "base/error.h"
#include "base/pace.h"
#include "math/plan/results.h"
#include "wire/fields/integer_list.h"

#include <stdio.h>
#include <string.h>

/* The indices of heads or rows, which are checked one by one. */
struct indices {
    size_t limit;  /* every index is less than this */
    bool from_end; /* of rows: -1..-limit count from the end, these modulo 2^64 */
    bool *seen;    /* [limit], and [limit] from the end, in the arena */
};

static bool refuse_twice(const struct wire_integer_list *list, size_t i, size_t index) {
    const char *name = list->value->name;
    return wire_problem_set(list->source->problem, WIRE_E_DUPLICATE_INDEX, name,
                            "%s[%zu] is %td, which duplicates an earlier index; "
                            "send each index once",
                            name, i, (ptrdiff_t)index);
}

/* Checks that no sequence has a row that is selected from both its ends. */
static bool check_ends(const struct wire_integer_list *list, const attn_request *batch) {
    const struct indices *indices = list->context;

    for (size_t i = 0; i < list->count; i++) {
        size_t before = 0, index = list->numbers[i];
        pace_add(1);
        for (size_t b = 0; index >= indices->limit && b < batch->num_sequences; b++) {
            size_t len = batch->query_lens[b], row = len + index;
            pace_add(1);
            if (len != before && row < indices->limit && indices->seen[row])
                return refuse_twice(list, i, index);
            before = len;
        }
    }
    return true;
}

/* wire_integer_list.allow: an index that exists, and was not there before. */
static bool allow_index(struct wire_integer_list *list, size_t i, size_t index) {
    struct indices *indices = list->context;
    size_t limit = indices->limit, from_end = 0 - index;

    if (index < limit || (indices->from_end && from_end <= limit)) {
        bool *seen = &indices->seen[index < limit ? index : limit + from_end - 1];
        if (*seen)
            return refuse_twice(list, i, index);
        *seen = true;
        return true;
    }
    list->limit.least = indices->from_end ? -(int64_t)limit : 0;
    list->limit.max = limit - 1;
    snprintf(list->limit.text, sizeof list->limit.text, "there %s %zu %s%s%s",
             limit == 1 ? "is" : "are", limit, indices->from_end ? "row" : "head",
             plural_of(limit),
             indices->from_end ? " of queries in the shortest sequence" : "");
    return false;
}

bool wire_read_selection(struct wire_decoder *decoder, const struct wire_field *field,
                         const struct wire_value *value) {
    static const struct wire_form form = {1, {WIRE_AXIS_ANY}};
    struct wire_integer_list list = wire_integer_list_make(decoder, value, &form, 1);
    attn_request *batch = &decoder->request.batch;
    bool heads = field->id == WIRE_FIELD_WEIGHTS_HEADS;
    struct indices indices = {.from_end = !heads};

    indices.limit = heads ? attn_model_get_info(decoder->request.model)->num_heads
                          : results_shortest(batch->query_lens, batch->num_sequences);
    size_t marks = indices.limit * (heads ? 1 : 2);
    indices.seen = arena_alloc(decoder->source->input->arena, marks, sizeof(bool));
    if (indices.seen == NULL)
        return wire_problem_set_no_memory(decoder->source->problem);
    pace_clear(indices.seen, marks * sizeof(bool));

    list.from_end = indices.from_end;
    list.allow = allow_index;
    list.context = &indices;
    if (!wire_integer_list_read(&list))
        return false;
    if (heads) {
        batch->weights_heads = list.numbers;
        batch->num_weights_heads = list.count;
        return true;
    }
    batch->weights_queries = (const ptrdiff_t *)list.numbers;
    batch->num_weights_queries = list.count;
    return check_ends(&list, batch);
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

bool wire_selection_check(const struct wire_decoder *decoder) {
    const struct wire_request *request = &decoder->request;
    struct wire_problem *problem = decoder->source->problem;
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
        return wire_problem_set(problem, WIRE_E_NOTHING_TO_SELECT_FROM, "weights_heads",
                                "weights_heads selects heads of the weights, and of what "
                                "is made of them; %s, or leave it out",
                                every);
    if (batch->weights_queries != NULL && need == ATTN_WEIGHTS_NONE && !more)
        return wire_problem_set(
            problem, WIRE_E_NOTHING_TO_SELECT_FROM, "weights_queries",
            "weights_queries selects rows of the weights, and of what "
            "is made of them; %s, or leave it out",
            any);
    return true;
}
