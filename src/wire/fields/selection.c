/* SPDX-License-Identifier: Apache-2.0 */
/* selection.c: reads which heads and queries are selected. */
#include "wire/fields/readers.h"

#include "base/error.h"
#include "base/pace.h"
#include "math/plan/results.h"
#include "wire/fields/integer_list.h"

#include <stdio.h>
#include <string.h>

/* The indices of one list, which are checked one by one. */
struct indices {
    const char *field; /* "weights_heads", "weights_queries"; constant */
    const char *thing; /* what it selects, in the singular: "head" */
    const char *where; /* " of queries in the shortest sequence", or "" */
    size_t limit;      /* every index is less than this */
    bool from_end;     /* -1..-limit count from the end, and are these modulo 2^64 */
    bool *seen;        /* [limit], and [limit] from the end, in the arena */
};

/* Returns whether an index is allowed. */
static bool has_index(const struct indices *indices, size_t index) {
    return index < indices->limit || (indices->from_end && 0 - index <= indices->limit);
}

/* Returns the least index that is allowed. */
static int64_t least_index(const struct indices *indices) {
    return indices->from_end ? -(int64_t)indices->limit : 0;
}

static size_t shortest_query_len(const attn_request *batch) {
    size_t shortest = batch->query_lens[0];
    for (size_t b = 1; b < batch->num_sequences; b++) {
        pace_add(1);
        if (batch->query_lens[b] < shortest)
            shortest = batch->query_lens[b];
    }
    return shortest;
}

/* Prepares to check a list; allocates its marks. */
static bool indices_init(struct indices *indices, const struct wire_value *value,
                         bool heads, const struct wire_request *request,
                         const struct wire_source *source) {
    if (heads)
        *indices = (struct indices){
            .field = value->name,
            .thing = "head",
            .where = "",
            .limit = attn_model_get_info(request->model)->num_heads,
        };
    else
        *indices = (struct indices){
            .field = value->name,
            .thing = "row",
            .where = " of queries in the shortest sequence",
            .limit = shortest_query_len(&request->batch),
            .from_end = true,
        };

    size_t marks = indices->limit * (indices->from_end ? 2 : 1);
    indices->seen = arena_alloc(source->input->arena, marks, sizeof *indices->seen);
    if (indices->seen == NULL)
        return wire_problem_set_no_memory(source->problem);
    pace_clear(indices->seen, marks * sizeof *indices->seen);
    return true;
}

static bool refuse_twice(const struct indices *indices, size_t i, size_t index,
                         struct wire_problem *ret_problem) {
    return wire_problem_set(ret_problem, WIRE_E_DUPLICATE_INDEX, indices->field,
                            "%s[%zu] is %td, which duplicates an earlier index; "
                            "send each index once",
                            indices->field, i, (ptrdiff_t)index);
}

/* Adds element `i` of the list, an index that is allowed, and was not there before. */
static bool add_index(struct indices *indices, size_t i, size_t index,
                      struct wire_problem *ret_problem) {
    size_t mark = index < indices->limit ? index : indices->limit + (0 - index) - 1;
    if (indices->seen[mark])
        return refuse_twice(indices, i, index, ret_problem);
    indices->seen[mark] = true;
    return true;
}

/* Checks that no sequence has a row that is selected from both its ends. */
static bool check_ends(const struct indices *indices, const size_t *list, size_t count,
                       const attn_request *batch, struct wire_problem *ret_problem) {
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

/* wire_integer_list.allow: an index that exists, and was not there before. */
static bool allow_index(struct wire_integer_list *list, size_t i, size_t index,
                        struct wire_limit *ret_limit) {
    struct indices *indices = list->context;

    if (has_index(indices, index))
        return add_index(indices, i, index, list->source->problem);
    ret_limit->least = least_index(indices);
    ret_limit->max = indices->limit - 1;
    snprintf(ret_limit->text, sizeof ret_limit->text, "there %s %zu %s%s%s",
             indices->limit == 1 ? "is" : "are", indices->limit, indices->thing,
             plural_of(indices->limit), indices->where);
    return false;
}

bool wire_read_selection(struct wire_decoder *decoder, const struct wire_field *field,
                         const struct wire_value *value) {
    static const struct wire_form form = {1, {WIRE_AXIS_ANY}};
    struct wire_integer_list list = wire_integer_list_make(decoder, value, &form, 1);
    attn_request *batch = &decoder->request.batch;
    bool heads = field->id == WIRE_FIELD_WEIGHTS_HEADS;
    struct indices indices;

    if (!indices_init(&indices, value, heads, &decoder->request, decoder->source))
        return false;
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
    return check_ends(&indices, list.numbers, list.count, batch,
                      decoder->source->problem);
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
