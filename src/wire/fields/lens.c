/* SPDX-License-Identifier: Apache-2.0 */
/* lens.c: reads the lengths of batches of arrays. */
#include "wire/fields/lens.h"

#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "wire/fields/integer_list.h"

#include <stdio.h>

const struct wire_value *wire_lens_find(const struct wire_source *source,
                                        const struct wire_value *value) {
    bool queries = value == &source->values[WIRE_FIELD_QUERIES];
    enum wire_field_id id = !queries && wire_is_sent(source, WIRE_FIELD_KEY_LENS)
                                ? WIRE_FIELD_KEY_LENS
                                : WIRE_FIELD_QUERY_LENS;
    return wire_is_sent(source, id) ? &source->values[id] : NULL;
}

/* Checks that key_lens has keys or values that it belongs to, and is needed. */
static bool check_key_lens(const struct wire_source *source) {
    const struct wire_value *queries = &source->values[WIRE_FIELD_QUERIES];

    if (!wire_is_sent(source, WIRE_FIELD_KEYS) &&
        !wire_is_sent(source, WIRE_FIELD_VALUES))
        return wire_problem_set(source->problem, WIRE_E_MISSING_KEY, "keys",
                                "key_lens was sent without keys and values; "
                                "send one of them, or leave key_lens out");
    if (wire_value_is_sent(queries) &&
        queries->rank < WIRE_LEVELS_BATCHED + (size_t)source->heads_axis &&
        !wire_is_sent(source, WIRE_FIELD_QUERY_LENS))
        return wire_problem_set(
            source->problem, WIRE_E_MISSING_KEY, "query_lens",
            "key_lens makes a batch of the keys, but queries is a single "
            "sequence; send query_lens, or leave key_lens out");
    return true;
}

bool wire_lens_check_needed(const struct wire_source *source) {
    static const struct {
        enum wire_field_id lens, tensor;
    } pairs[] = {{WIRE_FIELD_QUERY_LENS, WIRE_FIELD_QUERIES},
                 {WIRE_FIELD_KEY_LENS, WIRE_FIELD_KEYS},
                 {WIRE_FIELD_KEY_LENS, WIRE_FIELD_VALUES}};
    size_t rank = WIRE_LEVELS_UNBATCHED + (size_t)source->heads_axis;

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const struct wire_value *tensor = &source->values[pairs[i].tensor];
        if (!wire_is_sent(source, pairs[i].lens))
            continue;
        if (pairs[i].lens == WIRE_FIELD_KEY_LENS && !check_key_lens(source))
            return false;
        if (wire_value_is_sent(tensor) &&
            !wire_rank_check(source, tensor, rank, rank,
                             "[sum of its lengths, width], without a batch axis, or "
                             "leave its lengths out"))
            return false;
    }
    return true;
}

bool wire_lens_check_rank(const struct wire_source *source,
                          const struct wire_value *value, const struct wire_value *lens) {
    const char *row = source->heads_axis ? "heads, head size" : "width";
    size_t axis = source->heads_axis;
    char wanted[120];

    snprintf(wanted, sizeof wanted, "[sum of %s, %s], or [B, T, %s]", lens->name, row,
             row);
    return wire_rank_check(source, value, WIRE_LEVELS_UNBATCHED + axis,
                           WIRE_LEVELS_BATCHED + axis, wanted);
}

/* Sum of lengths that are being read, of a tensor of so many rows. It is capped at
 * INT64_MAX: no tensor has so many rows, and many clients could not parse a larger
 * number in the reply. */
struct lens_sum {
    size_t sum, num_rows;
};

/* wire_integer_list.allow: at least 1. */
static bool add_len(struct wire_integer_list *list, size_t i, size_t len,
                    struct wire_limit *ret_limit) {
    struct lens_sum *sum = list->context;

    (void)i;
    if (len > 0 && len < SIZE_MAX) {
        if (!size_add(sum->sum, len, &sum->sum) || sum->sum > INT64_MAX)
            sum->sum = INT64_MAX;
        return true;
    }
    ret_limit->least = 1;
    ret_limit->max = sum->num_rows;
    snprintf(ret_limit->text, sizeof ret_limit->text, "its tensor has %zu row%s",
             sum->num_rows, plural_of(sum->num_rows));
    return false;
}

bool wire_lens_read(const struct wire_source *source, const struct wire_value *value,
                    const struct wire_value *lens, struct wire_tensor *tensor) {
    static const struct wire_form form = {1, {WIRE_AXIS_ANY}};
    struct wire_problem *problem = source->problem;
    struct lens_sum sum = {0, tensor->num_rows};
    struct wire_integer_list list = {.source = source,
                                     .value = lens,
                                     .forms = &form,
                                     .num_forms = 1,
                                     .allow = add_len,
                                     .context = &sum};

    if (!wire_integer_list_read(&list, source->input->arena))
        return false;
    tensor->num_sequences = list.count;
    tensor->lens = list.numbers;
    if (sum.sum == tensor->num_rows)
        return true;

    wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, value->name,
        "%s has %zu row%s, but %s add up to %zu%s; send one row for each token",
        value->name, tensor->num_rows, plural_of(tensor->num_rows), lens->name, sum.sum,
        sum.sum == INT64_MAX ? " or more" : "");
    const size_t expected[] = {sum.sum, tensor->width};
    wire_shape_print(problem->expected, expected, 2);
    wire_shape_print(problem->got, value->shape, 2);
    return false;
}

bool wire_lens_make(const struct wire_source *source, size_t num_sequences,
                    struct wire_tensor *tensor) {
    tensor->num_sequences = num_sequences;
    tensor->lens = arena_alloc(source->input->arena, num_sequences, sizeof *tensor->lens);
    if (tensor->lens == NULL)
        return wire_problem_set_no_memory(source->problem);
    for (size_t b = 0; b < num_sequences; b++) {
        tensor->lens[b] = tensor->num_rows / num_sequences;
        pace_add(sizeof(size_t));
    }
    return true;
}
