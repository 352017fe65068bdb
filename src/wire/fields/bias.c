/* SPDX-License-Identifier: Apache-2.0 */
/* bias.c: reads what a request adds to the scores. */
#include "wire/fields/readers.h"

#include "base/pace.h"
#include "wire/json/list.h"
#include "wire/json/tensor.h"

#include <float.h>
#include <string.h>

/* A bias as it was sent: [Tq][Tk], [H][Tq][Tk] or [B][H][Tq][Tk]. */
struct sent_bias {
    size_t rank, shape[4];
    const float *numbers;
};

/* Reads lists of 2 to 4 levels, as rows: in 4 levels these have two axes. */
static bool read_nested_bias(const struct wire_source *source,
                             const struct wire_value *value, struct sent_bias *ret_bias) {
    struct wire_cursor cursor = wire_value_cursor(source, value);
    struct wire_tensor tensor;
    size_t levels;

    if (!wire_levels_read(&cursor, value->name, 2, 4, &levels))
        return false;
    const struct wire_tensor_form form = {
        .min = 2, .max = 3, .heads = levels == 4, .nulls = true};
    if (!wire_tensor_read(&cursor, &value->text, value->name, &form, source->input->arena,
                          &tensor))
        return false;
    if (wire_tensor_len(&tensor) == WIRE_SHAPE_ANY)
        return wire_problem_set(source->problem, WIRE_E_UNEVEN_ROWS, value->name,
                                "bias has lists of several lengths on one level; send "
                                "as many everywhere");

    size_t rows = tensor.lens[0], width = tensor.width, first = tensor.num_sequences;
    struct sent_bias bias = {2, {rows, width}, tensor.rows};
    if (levels == 3)
        bias = (struct sent_bias){3, {first, rows, width}, tensor.rows};
    if (levels == 4)
        bias = (struct sent_bias){
            4, {first, rows, tensor.heads, width / tensor.heads}, tensor.rows};
    *ret_bias = bias;
    return true;
}

/* Reads a bias: [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk]. */
static bool read_whole_bias(const struct wire_source *source,
                            const struct wire_value *value, struct sent_bias *ret_bias) {
    if (value->shape == NULL)
        return read_nested_bias(source, value, ret_bias);
    if (!wire_rank_check(source, value, 2, 4, "[Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk]"))
        return false;
    ret_bias->rank = value->rank;
    memcpy(ret_bias->shape, value->shape, value->rank * sizeof *value->shape);
    return wire_numbers_read(source, value, &ret_bias->numbers);
}

static bool refuse_bias(const struct sent_bias *bias, const size_t expected[4],
                        struct wire_problem *ret_problem) {
    wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH, "bias",
                     "bias has another shape than the scores, [Tq, Tk], [H, Tq, Tk] or "
                     "[B, H, Tq, Tk]; send these sizes, of which H and Tq may be 1");
    wire_shape_print(ret_problem->expected, expected + 4 - bias->rank, bias->rank);
    wire_shape_print(ret_problem->got, bias->shape, bias->rank);
    return false;
}

/* Checks that no number is NaN or infinite, but for -INFINITY. */
static bool check_bias_numbers(const struct sent_bias *bias, size_t count,
                               struct wire_problem *ret_problem) {
    for (size_t i = 0; i < count; i++) {
        struct wire_place place = {.field = "bias", .depth = bias->rank};
        if (i % PACE_PIECE == 0)
            pace_add(count - i < PACE_PIECE ? count - i : PACE_PIECE);
        if (bias->numbers[i] <= FLT_MAX) /* false for NaN */
            continue;
        for (size_t axis = bias->rank, rest = i; axis-- > 0; rest /= bias->shape[axis])
            place.index[axis] = rest % bias->shape[axis];
        return wire_refuse_not_finite(&place, bias->numbers[i], ret_problem);
    }
    return true;
}

/* Sets the bias of a request whose tensors are set: Shape mismatch, Out of range. */
static bool set_sent_bias(struct wire_decoder *decoder, const struct sent_bias *bias) {
    struct wire_problem *problem = decoder->source->problem;
    attn_request *batch = &decoder->request.batch;
    const size_t expected[4] = {batch->num_sequences,
                                attn_model_get_info(decoder->request.model)->num_heads,
                                batch->query_lens[0], batch->key_lens[0]};
    size_t shape[4] = {batch->num_sequences, 1, 1, 1};

    for (size_t b = 1; b < batch->num_sequences; b++) {
        pace_add(1);
        if (batch->query_lens[b] != expected[2] || batch->key_lens[b] != expected[3])
            return wire_problem_set(
                problem, WIRE_E_SHAPE_MISMATCH, "bias",
                "bias was sent with sequences of several lengths; send one sequence at a "
                "time, or sequences of equal lengths");
    }
    for (size_t axis = 0; axis < bias->rank; axis++) {
        size_t i = 4 - bias->rank + axis, size = bias->shape[axis];
        if (size != expected[i] && !(size == 1 && (i == 1 || i == 2)))
            return refuse_bias(bias, expected, problem);
        shape[i] = size;
    }

    size_t row = shape[3], head = shape[2] * row, sequence = shape[1] * head;
    batch->bias = bias->numbers;
    batch->bias_row_ld = shape[2] > 1 ? row : 0;
    batch->bias_head_ld = shape[1] > 1 ? head : 0;
    batch->bias_sequence_ld = bias->rank == 4 ? sequence : 0;
    return check_bias_numbers(bias, bias->rank == 4 ? shape[0] * sequence : sequence,
                              problem);
}

bool wire_read_bias(struct wire_decoder *decoder, const struct wire_field *field,
                    const struct wire_value *value) {
    struct sent_bias bias;

    (void)field;
    return read_whole_bias(decoder->source, value, &bias) &&
           set_sent_bias(decoder, &bias);
}
