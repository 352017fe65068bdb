/* SPDX-License-Identifier: Apache-2.0 */
/* bias.c: reads what a request adds to the scores: bias, or attn_mask as torch has it. */
#include "wire/fields/readers.h"

#include "base/pace.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHAPES "[Tk], [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk]"

/* The axes of scores. */
enum { SEQUENCES, HEADS, QUERIES, KEYS, NUM_AXES };
_Static_assert(NUM_AXES <= WIRE_SHAPED_RANK_MAX, "a shaped value has room for them");

/* --- numbers --- */

/* Whether the datatype that was stated is one of booleans, which a mask may have. */
static bool is_stated_boolean(const struct wire_field *field,
                              const struct wire_value *value) {
    return field->kind == WIRE_MASK && value->dtype != NULL &&
           strcmp(value->dtype->name, "BOOL") == 0;
}

/* Returns the words that a text has: booleans where its first element, or the datatype
 * that was stated, is one. */
static enum wire_words find_bias_words(const struct wire_source *source,
                                       const struct wire_field *field,
                                       const struct wire_value *value) {
    struct wire_cursor cursor = wire_value_cursor(source, value);

    if (field->kind != WIRE_MASK)
        return WIRE_NULLS;
    if (value->dtype != NULL)
        return is_stated_boolean(field, value) ? WIRE_BOOLEANS : WIRE_NULLS;
    wire_cursor_levels(&cursor);
    const char *type = wire_cursor_type(&cursor);
    return type != NULL && strcmp(type, "boolean") == 0 ? WIRE_BOOLEANS : WIRE_NULLS;
}

/* Reads an array of booleans, each a byte: all but 0 are true. */
static bool read_bias_bytes(const struct wire_source *source, struct wire_shaped *bias) {
    const struct wire_value *value = bias->value;

    if (!wire_rank_check(source, value, 1, NUM_AXES, SHAPES))
        return false;
    wire_shaped_take(bias);
    float *numbers = arena_alloc(source->input->arena, value->count, sizeof *numbers);
    if (numbers == NULL)
        return wire_problem_set_no_memory(source->problem);
    for (size_t i = 0, end; i < value->count;) {
        end = value->count - i < PACE_PIECE ? value->count : i + PACE_PIECE;
        pace_add(end - i);
        for (; i < end; i++)
            numbers[i] = value->bytes[i] != 0 ? 0 : -INFINITY;
    }
    bias->numbers = numbers;
    return true;
}

/* --- checks --- */

static bool refuse_bias(const struct wire_shaped *bias, const size_t expected[NUM_AXES],
                        struct wire_problem *ret_problem) {
    wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH, bias->value->name,
                     "%s has another shape than the scores, " SHAPES "; send these "
                     "sizes, of which all but Tk may be 1",
                     bias->value->name);
    wire_shape_print(ret_problem->expected, expected + NUM_AXES - bias->rank, bias->rank);
    wire_shape_print(ret_problem->got, bias->shape, bias->rank);
    return false;
}

/* How many numbers are neither finite nor -INFINITY, 0, and 1. */
struct bias_counts {
    uint32_t refused, zeros, ones; /* of a piece: as wide as a number, for vectors */
};

static struct bias_counts count_bias_numbers(const float *numbers, size_t count) {
    struct bias_counts counts = {0, 0, 0};

    for (size_t i = 0; i < count; i++) {
        counts.refused += !(numbers[i] <= FLT_MAX); /* NaN, too */
        counts.zeros += numbers[i] == 0;
        counts.ones += numbers[i] == 1;
    }
    return counts;
}

/* Refuses the first number from `i` on that is neither finite nor -INFINITY. */
static bool refuse_bias_number(const struct wire_shaped *bias, size_t i,
                               struct wire_problem *ret_problem) {
    while (bias->numbers[i] <= FLT_MAX)
        i++;
    const struct wire_place place =
        wire_place_of(bias->value->name, bias->shape, bias->rank, i);
    return wire_refuse_not_finite(&place, bias->numbers[i], ret_problem);
}

/* Checks that no number is NaN or infinite, but for -INFINITY. A mask of 0 and 1 alone
 * would not mask anything. */
static bool check_bias_numbers(const struct wire_shaped *bias, size_t count, bool mask,
                               struct wire_problem *ret_problem) {
    size_t zeros = 0, ones = 0;

    for (size_t i = 0, size; i < count; i += size) {
        size = count - i < PACE_PIECE ? count - i : PACE_PIECE;
        pace_add(size);
        const struct bias_counts piece = count_bias_numbers(bias->numbers + i, size);
        if (piece.refused > 0)
            return refuse_bias_number(bias, i, ret_problem);
        zeros += piece.zeros;
        ones += piece.ones;
    }
    return !mask || zeros == 0 || ones == 0 || zeros + ones < count ||
           wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, bias->value->name,
                            "%s has the numbers 0 and 1 alone, which would be added to "
                            "the scores; send booleans, where true is a key that the "
                            "query sees",
                            bias->value->name);
}

/* Sets the bias of a request whose tensors are set: Shape mismatch, Out of range. */
static bool set_sent_bias(struct wire_decoder *decoder, const struct wire_shaped *bias,
                          bool mask) {
    struct wire_problem *problem = decoder->source->problem;
    attn_request *batch = &decoder->request.batch;
    size_t sequences = batch->num_sequences;
    const size_t expected[NUM_AXES] = {
        sequences, attn_model_get_info(decoder->request.model)->num_heads,
        wire_common_len(batch->query_lens, sequences),
        wire_common_len(batch->key_lens, sequences)};
    size_t shape[NUM_AXES] = {1, 1, 1, 1};

    if (expected[QUERIES] == SIZE_MAX || expected[KEYS] == SIZE_MAX)
        return wire_problem_set(
            problem, WIRE_E_SHAPE_MISMATCH, bias->value->name,
            "%s was sent with sequences of several lengths; send one sequence at a time, "
            "or sequences of equal lengths",
            bias->value->name);
    for (size_t axis = 0; axis < bias->rank; axis++) {
        size_t i = NUM_AXES - bias->rank + axis, size = bias->shape[axis];
        if (size != expected[i] && (size != 1 || i == KEYS))
            return refuse_bias(bias, expected, problem);
        shape[i] = size;
    }

    size_t row = shape[KEYS], head = shape[QUERIES] * row, sequence = shape[HEADS] * head;
    batch->bias = bias->numbers;
    batch->bias_row_ld = shape[QUERIES] > 1 ? row : 0;
    batch->bias_head_ld = shape[HEADS] > 1 ? head : 0;
    batch->bias_sequence_ld = shape[SEQUENCES] > 1 ? sequence : 0;
    return check_bias_numbers(bias, shape[SEQUENCES] * sequence, mask, problem);
}

bool wire_read_bias(struct wire_decoder *decoder, const struct wire_field *field,
                    const struct wire_value *value) {
    const struct wire_source *source = decoder->source;
    struct wire_shaped bias = {.value = value};

    if (wire_is_sent(source, WIRE_FIELD_BIAS) &&
        wire_is_sent(source, WIRE_FIELD_ATTN_MASK))
        return wire_problem_set(source->problem, WIRE_E_UNKNOWN_KEY, "attn_mask",
                                "attn_mask and bias are both added to the scores; remove "
                                "one of them");
    if (source->input->targets_alone)
        return wire_problem_set(source->problem, WIRE_E_UNKNOWN_KEY, value->name,
                                "what heads do is found without %s; leave it out",
                                value->name);
    bool booleans =
        value->bytes != NULL && value->count > 0 && is_stated_boolean(field, value);
    return (booleans ? read_bias_bytes(source, &bias)
                     : wire_shaped_read(source, find_bias_words(source, field, value),
                                        NUM_AXES, SHAPES, &bias)) &&
           set_sent_bias(decoder, &bias, field->kind == WIRE_MASK);
}
