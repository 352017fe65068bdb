/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: reads what belongs to rows, and sets it in the request. */
#include "wire/fields/rows.h"

#include "base/error.h"
#include "wire/checks/reduce.h"
#include "wire/fields/floats.h"
#include "wire/fields/integer_list.h"
#include "wire/models.h"

#include <stdio.h>

/* The axes as errors name them; PAIR is 2. */
#define B    WIRE_AXIS_SEQUENCES
#define T    WIRE_AXIS_ROWS
#define N    WIRE_AXIS_ANY
#define PAIR WIRE_AXIS_PAIR

/* Returns a list of that value, without the rest. */
static struct wire_integer_list make_list(const struct wire_decoder *decoder,
                                          const struct wire_value *value,
                                          const struct wire_form *forms,
                                          size_t num_forms) {
    return (struct wire_integer_list){.source = decoder->source,
                                      .value = value,
                                      .rows = &decoder->tensors.queries,
                                      .thing = "query",
                                      .forms = forms,
                                      .num_forms = num_forms,
                                      .pair =
                                          "send a first key, and the key after the last"};
}

static bool read_list(const struct wire_decoder *decoder,
                      struct wire_integer_list *list) {
    return wire_integer_list_read(list, decoder->source->input->arena);
}

bool wire_read_head_mask(struct wire_decoder *decoder, const struct wire_field *field,
                         const struct wire_value *value) {
    const struct wire_source *source = decoder->source;
    size_t count;

    (void)field;
    return wire_head_list_read(source, value, &decoder->request.batch.head_mask,
                               &count) &&
           wire_head_mask_check(count, attn_model_get_info(decoder->request.model),
                                source->problem);
}

bool wire_read_bias(struct wire_decoder *decoder, const struct wire_field *field,
                    const struct wire_value *value) {
    struct wire_bias bias;

    (void)field;
    return wire_bias_read(decoder->source, value, &bias) &&
           wire_given_set_bias(&bias, &decoder->request, decoder->source->problem);
}

/* --- valid_lens --- */

/* The sequence that the next length belongs to. */
struct lens_state {
    const struct wire_tensors *tensors;
    size_t sequence, end; /* and, of lengths of queries, the index after its last */
};

/* wire_integer_list.allow: a length is at most that of the keys. */
static bool allow_len(struct wire_integer_list *list, size_t i, size_t number,
                      struct wire_limit *ret_limit) {
    struct lens_state *state = list->context;

    if (!wire_form_has(list->form, WIRE_AXIS_ROWS))
        state->sequence = i;
    else if (i == state->end)
        state->end += state->tensors->queries.lens[++state->sequence];
    size_t max = state->tensors->keys.lens[state->sequence];
    if (number <= max)
        return true;
    ret_limit->least = 0;
    ret_limit->max = max;
    wire_lens_limit(ret_limit->text, max);
    return false;
}

bool wire_read_valid_lens(struct wire_decoder *decoder, const struct wire_field *field,
                          const struct wire_value *value) {
    static const struct wire_form batched[] = {{2, {B, T}}, {1, {B}}};
    static const struct wire_form single[] = {{1, {T}}, {1, {B}}, {0, {B}}};
    const struct wire_tensor *queries = &decoder->tensors.queries;
    attn_request *batch = &decoder->request.batch;
    struct lens_state state = {&decoder->tensors, 0, queries->lens[0]};
    struct wire_integer_list list = queries->batched
                                        ? make_list(decoder, value, batched, 2)
                                        : make_list(decoder, value, single, 3);

    (void)field;
    list.allow = allow_len;
    list.context = &state;
    if (!read_list(decoder, &list))
        return false;
    batch->valid_lens = list.numbers;
    batch->valid_lens_per_query = wire_form_has(list.form, WIRE_AXIS_ROWS);
    return wire_valid_lens_check(batch, decoder->source->problem);
}

/* --- positions --- */

/* wire_integer_list.allow */
static bool allow_position(struct wire_integer_list *list, size_t i, size_t number,
                           struct wire_limit *ret_limit) {
    (void)list;
    (void)i;
    if (number <= ATTN_POSITION_MAX)
        return true;
    ret_limit->least = 0;
    ret_limit->max = ATTN_POSITION_MAX;
    strcpy(ret_limit->text, "positions are counted from 0 and have 31 bits");
    return false;
}

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
    struct wire_integer_list list = !rows->batched ? make_list(decoder, value, single, 1)
                                    : shared       ? make_list(decoder, value, batched, 2)
                                             : make_list(decoder, value, batched + 1, 1);

    list.num_forms += sections;
    list.rows = rows;
    list.allow = allow_position;
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
    if (!read_list(decoder, &list))
        return explain_axes(value, rows->batched && !rows->unpadded ? 3 : 2, sections,
                            problem);
    const size_t *numbers = list.numbers;
    bool axes = wire_form_has(list.form, WIRE_AXIS_SECTIONS);
    if (rows->batched && list.form->rank == 1 &&
        !wire_positions_repeat(rows, numbers, decoder->source->input->arena, &numbers,
                               problem))
        return false;
    if (wire_model_is_cross(info))
        return wire_problem_set(problem, WIRE_E_UNKNOWN_KEY, value->name,
                                "%s was sent, but model '%s' is a cross-attention "
                                "layer, which has no positions; leave it out",
                                value->name, info->name);
    if (!keys) {
        batch->positions = axes ? NULL : numbers;
        batch->axis_positions = axes ? numbers : NULL;
    }
    /* Keys that stand for the queries have their positions, unless they get their own. */
    if (keys || !tensors->keys_sent) {
        batch->key_positions = axes ? NULL : numbers;
        batch->axis_key_positions = axes ? numbers : NULL;
    }
    return true;
}

/* --- weights_heads and weights_queries --- */

/* wire_integer_list.allow: an index that exists, and was not there before. */
static bool allow_index(struct wire_integer_list *list, size_t i, size_t index,
                        struct wire_limit *ret_limit) {
    struct wire_indices *indices = list->context;

    if (wire_indices_allow(indices, index))
        return wire_indices_add(indices, i, index, list->source->problem);
    ret_limit->least = wire_indices_least(indices);
    ret_limit->max = indices->limit - 1;
    wire_indices_limit(indices, ret_limit->text);
    return false;
}

bool wire_read_selection(struct wire_decoder *decoder, const struct wire_field *field,
                         const struct wire_value *value) {
    static const struct wire_form form = {1, {N}};
    enum wire_selected which = field->id == WIRE_FIELD_WEIGHTS_HEADS
                                   ? WIRE_SELECTED_HEADS
                                   : WIRE_SELECTED_QUERIES;
    struct wire_request *request = &decoder->request;
    struct wire_problem *problem = decoder->source->problem;
    struct wire_integer_list list = make_list(decoder, value, &form, 1);
    struct wire_indices indices;

    if (!wire_indices_init(&indices, request, which, decoder->source->input->arena,
                           problem))
        return false;
    list.from_end = indices.from_end;
    list.allow = allow_index;
    list.context = &indices;
    if (!read_list(decoder, &list))
        return false;
    wire_selection_set(request, which, list.numbers, list.count);
    return wire_indices_check_ends(&indices, list.numbers, list.count, &request->batch,
                                   problem);
}

/* --- ranges --- */

/* Returns the ranges of a list that was read. */
static struct wire_ranges get_ranges(const struct wire_integer_list *list) {
    return (struct wire_ranges){.field = list->value->name,
                                .list = list->numbers,
                                .count = list->any > 0 ? list->any : 1,
                                .levels = list->levels - 1,
                                .per_sequence =
                                    list->form->axes[0] == WIRE_AXIS_SEQUENCES};
}

bool wire_read_spans(struct wire_decoder *decoder, const struct wire_field *field,
                     const struct wire_value *value) {
    static const struct wire_form forms[] = {{2, {N, PAIR}}, {3, {B, N, PAIR}}};
    struct wire_integer_list list =
        make_list(decoder, value, forms, decoder->request.batched ? 2 : 1);

    (void)field;
    if (!read_list(decoder, &list))
        return false;
    const struct wire_ranges ranges = get_ranges(&list);
    return wire_reduce_set_spans(&ranges, &decoder->request.batch,
                                 decoder->source->problem);
}

bool wire_read_top_in(struct wire_decoder *decoder, const struct wire_field *field,
                      const struct wire_value *value) {
    static const struct wire_form forms[] = {{1, {PAIR}}, {2, {N, PAIR}}};
    struct wire_integer_list list = make_list(decoder, value, forms, 2);

    (void)field;
    if (!read_list(decoder, &list))
        return false;
    const struct wire_ranges ranges = get_ranges(&list);
    return wire_reduce_set_top_in(&ranges, &decoder->request.batch,
                                  decoder->source->problem);
}

/* Reads targets: of the queries of each sequence, or of one sequence for all. */
bool wire_read_targets(struct wire_decoder *decoder, const struct wire_field *field,
                       const struct wire_value *value) {
    static const struct wire_form forms[] = {{3, {B, T, PAIR}}, {2, {T, PAIR}}};
    const struct wire_request *request = &decoder->request;
    bool shared = !request->lens_sent && wire_reduce_even_queries(&request->batch);
    struct wire_tensor rows = decoder->tensors.queries;
    struct wire_integer_list list = make_list(decoder, value, forms, shared ? 2 : 1);

    (void)field;
    if (!request->batched)
        list = make_list(decoder, value, forms + 1, 1);
    rows.unpadded = request->lens_sent;
    list.rows = &rows;
    list.nulls = true;
    if (!read_list(decoder, &list))
        return false;
    const struct wire_ranges ranges = get_ranges(&list);
    return wire_reduce_set_targets(&ranges, decoder->source->input->arena,
                                   &decoder->request.batch, decoder->source->problem);
}

/* --- query_rows --- */

bool wire_read_query_rows(struct wire_decoder *decoder, const struct wire_field *field,
                          const struct wire_value *value) {
    static const struct wire_form form = {1, {PAIR}};
    struct wire_given *given = &decoder->given;
    struct wire_integer_list list = make_list(decoder, value, &form, 1);

    (void)field;
    list.pair = "the first row and the end";
    if (!read_list(decoder, &list))
        return false;
    given->rows_sent = true;
    memcpy(given->query_rows, list.numbers, sizeof given->query_rows);
    return true;
}
