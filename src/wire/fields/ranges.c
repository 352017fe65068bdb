/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.c: reads and checks what says how weights are reduced: ranges of keys, top_k,
 * row_weights. */
#include "wire/fields/readers.h"

#include "base/error.h"
#include "base/pace.h"
#include "wire/fields/integer_list.h"
#include "wire/json/tensor.h"

#include <stdio.h>
#include <string.h>

/* The axes as errors name them; PAIR is 2. */
#define B    WIRE_AXIS_SEQUENCES
#define T    WIRE_AXIS_ROWS
#define N    WIRE_AXIS_ANY
#define PAIR WIRE_AXIS_PAIR

#define NUMBER_BYTES 32 /* of a printed number */

bool wire_reduce_check_need(const struct wire_decoder *decoder) {
    static const struct {
        enum wire_field_id id;
        enum result_id result;
        const char *option, *example; /* an example NULL: it may be left out */
    } pairs[] = {
        {WIRE_FIELD_SPANS, RESULT_SPAN_WEIGHTS, "spans",
         "[[0,4],[4,9]], the first key of each span and its end"},
        {WIRE_FIELD_TOP_K, RESULT_TOP_KEYS, "top_k",
         "how many of the largest weights of a row you want"},
        {WIRE_FIELD_TOP_IN, RESULT_TOP_KEYS, "top_in", NULL},
        {WIRE_FIELD_TARGETS, RESULT_TARGET_WEIGHTS, "targets",
         "a range [first,end] or null for each query"},
        {WIRE_FIELD_BLOCK, RESULT_BLOCK_WEIGHTS, "block",
         "how many queries and keys make a block"},
        {WIRE_FIELD_ROW_WEIGHTS, RESULT_RECEIVED, "row_weights", NULL},
    };
    struct wire_problem *problem = decoder->source->problem;

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        bool sent = wire_is_sent(decoder->source, pairs[i].id);
        bool wanted = decoder->needs[pairs[i].result] ||
                      (pairs[i].id == WIRE_FIELD_TARGETS && sent &&
                       decoder->source->input->targets_alone);
        const char *option = pairs[i].option, *word = result_table[pairs[i].result].word;
        if (wanted && !sent && pairs[i].example != NULL)
            return wire_problem_set(problem, WIRE_E_MISSING_KEY, option,
                                    "need has %s, but %s was left out; send %s, or leave "
                                    "%s out of need",
                                    word, option, pairs[i].example, word);
        if (sent && !wanted)
            return wire_problem_set(problem, WIRE_E_OUTPUTS_DISAGREE, option,
                                    "%s was sent, but need does not have %s; list %s in "
                                    "need, or leave %s out",
                                    option, word, word, option);
    }
    return true;
}

/* A list of ranges [count][2], each a first key and an end: of each sequence, or of all.
 * A number is SIZE_MAX when it is negative or larger. */
struct ranges {
    const char *field;
    const size_t *list; /* borrowed until the reply is written */
    size_t count;       /* of each sequence; of targets, as many as queries */
    size_t levels;      /* that a range is inside of, in the request: 0, 1 or 2 */
    bool per_sequence;
};

/* Prints a number of a range, which is SIZE_MAX where it is negative or larger. */
static void print_number(size_t number, char ret_text[NUMBER_BYTES]) {
    if (number < SIZE_MAX)
        snprintf(ret_text, NUMBER_BYTES, "%zu", number);
    else
        snprintf(ret_text, NUMBER_BYTES, "a number out of range");
}

/* Checks the range first..end of a sequence of `keys` keys; `of` says which sequence it
 * is: "its sequence". */
static bool check_range(const struct wire_place *place, size_t first, size_t end,
                        size_t keys, const char *of, struct wire_problem *ret_problem) {
    char where[128], begins[NUMBER_BYTES], ends[NUMBER_BYTES];
    if (first < end && end <= keys)
        return true;

    wire_place_print(where, sizeof where, place);
    print_number(first, begins);
    print_number(end, ends);
    wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, place->field,
                     "%s begins at %s and ends before %s; send the first key and the "
                     "key after the last one, at most %zu: %s has %zu key%s",
                     where, begins, ends, keys, of, keys, plural_of(keys));
    wire_range_print(ret_problem->expected, 0, keys);
    if (first < SIZE_MAX && end < SIZE_MAX)
        snprintf(ret_problem->got, sizeof ret_problem->got, "[%zu,%zu]", first, end);
    return false;
}

/* Checks all ranges. With `lens`, [num_sequences], each sequence has so many, and those
 * of 0, 0 are none. */
static bool check_ranges(const struct ranges *ranges, const size_t *lens,
                         const attn_request *batch, struct wire_problem *ret_problem) {
    bool each = ranges->per_sequence || batch->num_sequences == 1;
    const char *of = each ? "its sequence" : "the shortest sequence";
    const size_t *range = ranges->list;
    size_t lists = ranges->per_sequence ? batch->num_sequences : 1, row = 0;

    for (size_t b = 0; b < lists; b++) {
        size_t count = lens != NULL ? lens[b] : ranges->count;
        size_t keys = ranges->per_sequence
                          ? batch->key_lens[b]
                          : results_shortest(batch->key_lens, batch->num_sequences);
        for (size_t i = 0; i < count; i++, row++, range += 2) {
            struct wire_place place = {ranges->field, ranges->levels, {row}, 0, 0};
            pace_add(2 * sizeof(size_t));
            if (ranges->levels == 2)
                place = (struct wire_place){ranges->field, 2, {b, i}, 0, 0};
            if (!(lens != NULL && range[0] == 0 && range[1] == 0) &&
                !check_range(&place, range[0], range[1], keys, of, ret_problem))
                return false;
        }
    }
    return true;
}

/* Returns the ranges of a list that was read. */
static struct ranges get_ranges(const struct wire_integer_list *list) {
    return (struct ranges){.field = list->value->name,
                           .list = list->numbers,
                           .count = list->any > 0 ? list->any : 1,
                           .levels = list->levels - 1,
                           .per_sequence = list->form->axes[0] == WIRE_AXIS_SEQUENCES};
}

bool wire_read_spans(struct wire_decoder *decoder, const struct wire_field *field,
                     const struct wire_value *value) {
    static const struct wire_form forms[] = {{2, {N, PAIR}}, {3, {B, N, PAIR}}};
    attn_request *batch = &decoder->request.batch;
    struct wire_integer_list list =
        wire_integer_list_make(decoder, value, forms, decoder->request.batched ? 2 : 1);

    (void)field;
    if (!wire_integer_list_read(&list))
        return false;
    const struct ranges spans = get_ranges(&list);
    batch->reduce.spans = spans.list;
    batch->reduce.num_spans = spans.count;
    batch->reduce.spans_per_sequence = spans.per_sequence;
    return check_ranges(&spans, NULL, batch, decoder->source->problem);
}

bool wire_read_top_in(struct wire_decoder *decoder, const struct wire_field *field,
                      const struct wire_value *value) {
    static const struct wire_form forms[] = {{1, {PAIR}}, {2, {N, PAIR}}};
    attn_request *batch = &decoder->request.batch;
    struct wire_integer_list list = wire_integer_list_make(decoder, value, forms, 2);

    (void)field;
    if (!wire_integer_list_read(&list))
        return false;
    const struct ranges ranges = get_ranges(&list);
    batch->reduce.top_in = ranges.list;
    batch->reduce.num_top_in = ranges.count;
    return check_ranges(&ranges, NULL, batch, decoder->source->problem);
}

/* Returns a list with an item for each query: forms are those of each sequence, and of
 * one for all, which must then be as long. `rows` is where the list looks for them. */
static struct wire_integer_list make_by_query(const struct wire_decoder *decoder,
                                              const struct wire_value *value,
                                              const struct wire_form forms[2],
                                              struct wire_tensor *rows) {
    const struct wire_request *request = &decoder->request;
    *rows = decoder->tensors.queries;
    bool shared = !request->lens_sent && wire_tensor_len(rows) != WIRE_SHAPE_ANY;
    struct wire_integer_list list =
        request->batched ? wire_integer_list_make(decoder, value, forms, shared ? 2 : 1)
                         : wire_integer_list_make(decoder, value, forms + 1, 1);

    rows->unpadded = request->lens_sent;
    list.rows = rows;
    return list;
}

/* Reads targets: of the queries of each sequence, or of one sequence for all. */
bool wire_read_targets(struct wire_decoder *decoder, const struct wire_field *field,
                       const struct wire_value *value) {
    static const struct wire_form forms[] = {{3, {B, T, PAIR}}, {2, {T, PAIR}}};
    attn_request *batch = &decoder->request.batch;
    struct wire_tensor rows;
    struct wire_integer_list list = make_by_query(decoder, value, forms, &rows);

    (void)field;
    list.nulls = true;
    if (!wire_integer_list_read(&list))
        return false;
    const struct ranges targets = get_ranges(&list);
    if (!check_ranges(&targets, rows.lens, batch, decoder->source->problem) ||
        (!targets.per_sequence && !wire_integer_list_repeat(&list)))
        return false;
    batch->reduce.targets = list.numbers;
    return true;
}

/* Reads ids of tokens, which only the analysis of heads uses. */
bool wire_read_token_ids(struct wire_decoder *decoder, const struct wire_field *field,
                         const struct wire_value *value) {
    static const struct wire_form forms[] = {{2, {B, T}}, {1, {T}}};
    struct wire_tensor rows;
    struct wire_integer_list list = make_by_query(decoder, value, forms, &rows);

    if (!decoder->source->input->targets_alone)
        return wire_problem_set(decoder->source->problem, WIRE_E_OUTPUTS_DISAGREE,
                                field->name,
                                "token_ids say what heads attend to, which this route "
                                "does not; leave them out, or ask POST /v1/heads");
    list.limit.max = INT32_MAX;
    strcpy(list.limit.text, "an id is a number of a token");
    if (!wire_integer_list_read(&list) ||
        (!wire_form_has(list.form, B) && !wire_integer_list_repeat(&list)))
        return false;
    decoder->request.batch.reduce.token_ids = list.numbers;
    return true;
}

bool wire_reduce_check_top(const struct wire_decoder *decoder) {
    struct wire_problem *problem = decoder->source->problem;
    const attn_request *batch = &decoder->request.batch;
    const attn_reductions *reduce = &batch->reduce;
    size_t least = results_top_max(batch), k = reduce->top_k;
    bool ranges = reduce->top_in != NULL;

    if (reduce->num_top_in > ATTN_TOP_RANGES_MAX)
        return wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, "top_in",
                                "top_in has %zu ranges, but may have %d at most; send "
                                "the others in another request",
                                reduce->num_top_in, ATTN_TOP_RANGES_MAX);
    if (k <= least)
        return true;
    wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, "top_k",
                     "top_k is %zu, but %s has %zu key%s; send at most as many", k,
                     ranges ? "the shortest range of top_in" : "the shortest sequence",
                     least, plural_of(least));
    wire_range_print(problem->expected, 1, least);
    snprintf(problem->got, sizeof problem->got, "%zu", k);
    return false;
}

/* --- a number for each row --- */

/* Checks that there is a finite number for each query of every sequence, or for each of
 * every head. */
static bool check_row_weights(const struct wire_decoder *decoder, const float *list,
                              const size_t *shape, size_t rank) {
    const size_t expected[] = {attn_model_get_info(decoder->request.model)->num_heads,
                               wire_tensor_len(&decoder->tensors.queries)};
    struct wire_problem *problem = decoder->source->problem;
    size_t heads = rank == 2 ? shape[0] : 1, rows = shape[rank - 1];

    if (expected[1] == WIRE_SHAPE_ANY)
        return wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, "row_weights",
                                "row_weights was sent with sequences of several lengths; "
                                "send one sequence at a time, or sequences of equal "
                                "lengths");
    if (rows != expected[1] || (rank == 2 && heads != expected[0])) {
        wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, "row_weights",
                         "row_weights has another shape than [Tq] or [H, Tq]; send a "
                         "number for each of %zu quer%s, or for each of %zu head%s a "
                         "list of these, also where some are selected",
                         expected[1], expected[1] == 1 ? "y" : "ies", expected[0],
                         plural_of(expected[0]));
        wire_shape_print(problem->expected, expected + 2 - rank, rank);
        wire_shape_print(problem->got, shape, rank);
        return false;
    }
    size_t i = pace_finite_end(list, heads * rows);
    if (i == heads * rows)
        return true;
    const struct wire_place place = wire_place_of("row_weights", shape, rank, i);
    return wire_refuse_not_finite(&place, list[i], problem);
}

bool wire_read_row_weights(struct wire_decoder *decoder, const struct wire_field *field,
                           const struct wire_value *value) {
    attn_reductions *reduce = &decoder->request.batch.reduce;
    struct wire_shaped list = {.value = value};

    (void)field;
    if (!wire_shaped_read(decoder->source, WIRE_NO_WORDS, 2, "[Tq] or [H, Tq]", &list))
        return false;
    reduce->row_weights = list.numbers;
    reduce->row_weights_per_head = list.rank == 2;
    return check_row_weights(decoder, list.numbers, list.shape, list.rank);
}
