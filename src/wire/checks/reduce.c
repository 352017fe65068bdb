/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: checks of spans, top_k, top_in, targets and block. */
#include "wire/checks/reduce.h"

#include "base/error.h"
#include "base/pace.h"

#include <stdio.h>

#define NUMBER_BYTES 32 /* of a printed number */

bool wire_reduce_check_need(const struct wire_need *need,
                            const struct wire_reduce_options *options,
                            struct wire_problem *ret_problem) {
    const struct {
        const char *option, *word, *example;
        bool sent, wanted, optional;
    } pairs[] = {
        {"spans", "spans", "[[0,4],[4,9]], the first key of each span and its end",
         options->spans, need->has[RESULT_SPAN_WEIGHTS], false},
        {"top_k", "top", "how many of the largest weights of a row you want",
         options->top_k, need->has[RESULT_TOP_KEYS], false},
        {"top_in", "top", "", options->top_in, need->has[RESULT_TOP_KEYS], true},
        {"targets", "target", "a range [first,end] or null for each query",
         options->targets, need->has[RESULT_TARGET_WEIGHTS], false},
        {"block", "blocks", "how many queries and keys make a block", options->block,
         need->has[RESULT_BLOCK_WEIGHTS], false},
    };

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i].wanted && !pairs[i].sent && !pairs[i].optional)
            return wire_problem_set(ret_problem, WIRE_E_MISSING_KEY, pairs[i].option,
                                    "need has %s, but %s was left out; send %s, or leave "
                                    "%s out of need",
                                    pairs[i].word, pairs[i].option, pairs[i].example,
                                    pairs[i].word);
        if (pairs[i].sent && !pairs[i].wanted)
            return wire_problem_set(ret_problem, WIRE_E_OUTPUTS_DISAGREE, pairs[i].option,
                                    "%s was sent, but need does not have %s; list %s in "
                                    "need, or leave %s out",
                                    pairs[i].option, pairs[i].word, pairs[i].word,
                                    pairs[i].option);
    }
    return true;
}

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

/* Returns the keys of the shortest sequence. */
static size_t find_shortest(const attn_request *batch) {
    size_t shortest = SIZE_MAX;
    for (size_t b = 0; b < batch->num_sequences; b++) {
        pace_add(1);
        shortest = batch->key_lens[b] < shortest ? batch->key_lens[b] : shortest;
    }
    return shortest;
}

/* Checks all ranges. With `lens`, [num_sequences], each sequence has so many, and those
 * of 0, 0 are none. */
static bool check_ranges(const struct wire_ranges *ranges, const size_t *lens,
                         const attn_request *batch, struct wire_problem *ret_problem) {
    bool each = ranges->per_sequence || batch->num_sequences == 1;
    const char *of = each ? "its sequence" : "the shortest sequence";
    const size_t *range = ranges->list;
    size_t lists = ranges->per_sequence ? batch->num_sequences : 1, row = 0;

    for (size_t b = 0; b < lists; b++) {
        size_t count = lens != NULL ? lens[b] : ranges->count;
        size_t keys = ranges->per_sequence ? batch->key_lens[b] : find_shortest(batch);
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

bool wire_reduce_set_spans(const struct wire_ranges *spans, attn_request *batch,
                           struct wire_problem *ret_problem) {
    batch->reduce.spans = spans->list;
    batch->reduce.num_spans = spans->count;
    batch->reduce.spans_per_sequence = spans->per_sequence;
    return check_ranges(spans, NULL, batch, ret_problem);
}

bool wire_reduce_set_top_in(const struct wire_ranges *ranges, attn_request *batch,
                            struct wire_problem *ret_problem) {
    batch->reduce.top_in = ranges->list;
    batch->reduce.num_top_in = ranges->count;
    return check_ranges(ranges, NULL, batch, ret_problem);
}

bool wire_reduce_set_targets(const struct wire_ranges *targets, struct arena *arena,
                             attn_request *batch, struct wire_problem *ret_problem) {
    size_t numbers = 2 * batch->query_lens[0];
    batch->reduce.targets = targets->list;
    if (!check_ranges(targets, batch->query_lens, batch, ret_problem))
        return false;
    if (targets->per_sequence || batch->num_sequences == 1)
        return true;

    size_t *all = arena_alloc(arena, batch->num_sequences, numbers * sizeof *all);
    if (all == NULL)
        return wire_problem_set_no_memory(ret_problem);
    for (size_t b = 0; b < batch->num_sequences; b++)
        pace_copy(all + b * numbers, targets->list, numbers * sizeof *all);
    batch->reduce.targets = all;
    return true;
}

bool wire_reduce_check_top(const attn_request *batch, struct wire_problem *ret_problem) {
    const attn_reductions *reduce = &batch->reduce;
    size_t least = find_shortest(batch), k = reduce->top_k;
    bool ranges = reduce->top_in != NULL;

    for (size_t i = 0; ranges && i < reduce->num_top_in; i++) {
        size_t size = reduce->top_in[2 * i + 1] - reduce->top_in[2 * i];
        pace_add(1);
        least = size < least ? size : least;
    }
    if (reduce->num_top_in > ATTN_TOP_RANGES_MAX)
        return wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, "top_in",
                                "top_in has %zu ranges, but may have %d at most; send "
                                "the others in another request",
                                reduce->num_top_in, ATTN_TOP_RANGES_MAX);
    if (k <= least)
        return true;
    wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, "top_k",
                     "top_k is %zu, but %s has %zu key%s; send at most as many", k,
                     ranges ? "the shortest range of top_in" : "the shortest sequence",
                     least, plural_of(least));
    wire_range_print(ret_problem->expected, 1, least);
    snprintf(ret_problem->got, sizeof ret_problem->got, "%zu", k);
    return false;
}

bool wire_reduce_even_queries(const attn_request *batch) {
    for (size_t b = 1; b < batch->num_sequences; b++) {
        pace_add(1);
        if (batch->query_lens[b] != batch->query_lens[0])
            return false;
    }
    return true;
}
