/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: reads integers that belong to rows, and sets them in the request. */
#include "wire/fields/readers.h"

#include "base/error.h"
#include "base/pace.h"
#include "wire/fields/integer_list.h"
#include "wire/json/tensor.h"
#include "wire/models.h"

#include <stdio.h>

/* The axes as errors name them; PAIR is 2. */
#define B    WIRE_AXIS_SEQUENCES
#define T    WIRE_AXIS_ROWS
#define PAIR WIRE_AXIS_PAIR

/* --- valid_lens and prefix_lens --- */

/* The sequence that the next length belongs to. */
struct lens_state {
    const struct wire_tensors *tensors;
    size_t sequence, end; /* and, of lengths of queries, the index after its last */
};

/* wire_integer_list.allow: a length is at most that of the keys. */
static bool allow_len(struct wire_integer_list *list, size_t i, size_t number) {
    struct lens_state *state = list->context;

    if (!wire_form_has(list->form, WIRE_AXIS_ROWS))
        state->sequence = i;
    else if (i == state->end)
        state->end += state->tensors->queries.lens[++state->sequence];
    size_t max = state->tensors->keys.lens[state->sequence];
    if (number <= max)
        return true;
    list->limit.max = max;
    snprintf(list->limit.text, sizeof list->limit.text, "its sequence has %zu key%s", max,
             plural_of(max));
    return false;
}

/* Checks that valid_lens of queries do not look like a mask: 0 and 1 alone, where there
 * are as many queries as keys, and several. */
static bool check_no_mask(const attn_request *batch, struct wire_problem *ret_problem) {
    size_t most = 0, row = 0;
    for (size_t b = 0; b < batch->num_sequences; b++) {
        size_t queries = batch->query_lens[b];
        if (batch->valid_lens == NULL || !batch->valid_lens_per_query || queries < 2 ||
            queries != batch->key_lens[b])
            return true;
        for (size_t end = row + queries; row < end; row++)
            most = most > batch->valid_lens[row] ? most : batch->valid_lens[row];
        pace_add(queries);
    }
    return most != 1 ||
           wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, "valid_lens",
                            "valid_lens of the queries are all 0 or 1, as an "
                            "attention_mask, but they are lengths: how many keys each "
                            "query sees, from the first on; where padding is at the "
                            "end, send mask.sum(-1), one for each sequence");
}

bool wire_read_valid_lens(struct wire_decoder *decoder, const struct wire_field *field,
                          const struct wire_value *value) {
    static const struct wire_form batched[] = {{2, {B, T}}, {1, {B}}};
    static const struct wire_form single[] = {{1, {T}}, {1, {B}}, {0, {B}}};
    const struct wire_tensor *queries = &decoder->tensors.queries;
    attn_request *batch = &decoder->request.batch;
    struct lens_state state = {&decoder->tensors, 0, queries->lens[0]};
    struct wire_integer_list list =
        queries->batched ? wire_integer_list_make(decoder, value, batched, 2)
                         : wire_integer_list_make(decoder, value, single, 3);

    (void)field;
    list.allow = allow_len;
    list.context = &state;
    if (!wire_integer_list_read(&list))
        return false;
    batch->valid_lens = list.numbers;
    batch->valid_lens_per_query = wire_form_has(list.form, WIRE_AXIS_ROWS);
    return check_no_mask(batch, decoder->source->problem);
}

/* Without a causal mask all keys are seen already: most likely causal was forgotten. */
static bool check_causal_prefix(const struct wire_decoder *decoder,
                                const struct wire_value *value) {
    return decoder->request.batch.causal ||
           wire_problem_set(decoder->source->problem, WIRE_E_MISSING_KEY, "causal",
                            "%s has keys that a causal mask does not hide, but the "
                            "request is not causal; send \"causal\": true, or leave it "
                            "out",
                            value->name);
}

bool wire_read_prefix_lens(struct wire_decoder *decoder, const struct wire_field *field,
                           const struct wire_value *value) {
    static const struct wire_form batched = {1, {B}};
    static const struct wire_form single[] = {{1, {B}}, {0, {B}}};
    bool batch = decoder->tensors.queries.batched;
    struct lens_state state = {&decoder->tensors, 0, 0};
    struct wire_integer_list list =
        wire_integer_list_make(decoder, value, batch ? &batched : single, batch ? 1 : 2);

    (void)field;
    list.allow = allow_len;
    list.context = &state;
    if (!wire_integer_list_read(&list))
        return false;
    decoder->request.batch.prefix_lens = list.numbers;
    return check_causal_prefix(decoder, value);
}

/* --- positions --- */

/* Says why a number for each axis was refused. */
static bool explain_axes(const struct wire_value *value, size_t axes_rank, bool sections,
                         struct wire_problem *problem) {
    size_t used = strlen(problem->detail);

    if (wire_value_rank(value) == axes_rank && !sections &&
        problem->error == WIRE_E_WRONG_RANK)
        snprintf(problem->detail + used, sizeof problem->detail - used,
                 "; a number for each of three axes (time, row, column) is only for "
                 "layers whose rotation has sections");
    return false;
}

/* Makes the list of positions of rows. One list for all sequences is offered where these
 * are equally long, and three axes to layers whose rotation has sections. */
static struct wire_integer_list make_position_list(const struct wire_decoder *decoder,
                                                   const struct wire_value *value,
                                                   const struct wire_tensor *rows,
                                                   bool sections) {
    static const struct wire_form batched[] = {
        {1, {T}}, {2, {B, T}}, {3, {B, WIRE_AXIS_SECTIONS, T}}};
    static const struct wire_form single[] = {{1, {T}}, {2, {WIRE_AXIS_SECTIONS, T}}};
    bool shared = !rows->unpadded && wire_tensor_len(rows) != WIRE_SHAPE_ANY;
    struct wire_integer_list list =
        !rows->batched ? wire_integer_list_make(decoder, value, single, 1)
        : shared       ? wire_integer_list_make(decoder, value, batched, 2)
                       : wire_integer_list_make(decoder, value, batched + 1, 1);

    list.num_forms += sections;
    list.rows = rows;
    list.limit.max = ATTN_POSITION_MAX;
    strcpy(list.limit.text, "positions are counted from 0 and have 31 bits");
    return list;
}

bool wire_read_positions(struct wire_decoder *decoder, const struct wire_field *field,
                         const struct wire_value *value) {
    const struct wire_tensors *tensors = &decoder->tensors;
    const attn_model_info *info = attn_model_get_info(decoder->request.model);
    struct wire_problem *problem = decoder->source->problem;
    attn_request *batch = &decoder->request.batch;
    bool keys = field->id == WIRE_FIELD_KEY_POSITIONS;
    const struct wire_tensor *rows = keys ? &tensors->keys : &tensors->queries;
    bool sections = info->rotation.axes == ATTN_AXES;
    struct wire_integer_list list = make_position_list(decoder, value, rows, sections);

    list.thing = keys ? "key" : "query";
    if (!wire_integer_list_read(&list))
        return explain_axes(value, rows->batched && !rows->unpadded ? 3 : 2, sections,
                            problem);
    bool axes = wire_form_has(list.form, WIRE_AXIS_SECTIONS);
    if (rows->batched && list.form->rank == 1 && !wire_integer_list_repeat(&list))
        return false;
    if (wire_model_is_cross(info))
        return wire_problem_set(problem, WIRE_E_UNKNOWN_KEY, value->name,
                                "%s was sent, but model '%s' is a cross-attention "
                                "layer, which has no positions; leave it out",
                                value->name, info->name);
    if (!keys) {
        batch->positions = axes ? NULL : list.numbers;
        batch->axis_positions = axes ? list.numbers : NULL;
    }
    /* Keys that stand for the queries have their positions, unless they get their own. */
    if (keys || !tensors->keys_sent) {
        batch->key_positions = axes ? NULL : list.numbers;
        batch->axis_key_positions = axes ? list.numbers : NULL;
    }
    return true;
}

/* --- query_rows --- */

bool wire_read_query_rows(struct wire_decoder *decoder, const struct wire_field *field,
                          const struct wire_value *value) {
    static const struct wire_form form = {1, {PAIR}};
    struct wire_given *given = &decoder->given;
    struct wire_integer_list list = wire_integer_list_make(decoder, value, &form, 1);

    (void)field;
    list.pair = "the first row and the end";
    if (!wire_integer_list_read(&list))
        return false;
    memcpy(given->query_rows, list.numbers, sizeof given->query_rows);
    return true;
}
