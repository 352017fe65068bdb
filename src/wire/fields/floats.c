/* SPDX-License-Identifier: Apache-2.0 */
/* floats.c: reads floats from text and arrays. */
#include "wire/fields/readers.h"

#include "base/error.h"
#include "base/pace.h"
#include "wire/json/tensor.h"

#include <stdio.h>
#include <string.h>

/* --- numbers with a shape --- */

bool wire_flat_read(const struct wire_source *source, const struct wire_value *value,
                    enum wire_words words, const float **ret_list, size_t *ret_count) {
    struct wire_cursor cursor = wire_value_cursor(source, value);
    struct wire_place place = {.field = value->name};
    size_t room = value->text.commas + 1;
    float *list = arena_alloc(source->input->arena, room, sizeof *list);

    if (list == NULL)
        return wire_problem_set_no_memory(source->problem);
    if (!wire_row_read(&cursor, &place, words, list, list + room, ret_count))
        return false;
    *ret_list = list;
    return true;
}

/* Whether nested lists have the shape of their value. */
static bool has_value_shape(const struct wire_tensor *tensor,
                            const struct wire_value *value) {
    const size_t *shape = value->shape + value->rank - 2; /* rows, width */
    size_t sequences = value->rank == WIRE_LEVELS_BATCHED ? value->shape[0] : 1;
    bool same = tensor->num_sequences == sequences && tensor->width == shape[1];

    for (size_t b = 0; same && b < sequences; b++) {
        pace_add(1);
        same = tensor->lens[b] == shape[0];
    }
    return same;
}

/* Reads text that is flat, or nested like its shape. */
static bool read_data(const struct wire_source *source, const struct wire_value *value,
                      const float **ret_numbers) {
    struct wire_cursor cursor = wire_value_cursor(source, value);
    const struct wire_tensor_form form = {.min = value->rank, .max = value->rank};
    struct wire_tensor tensor;
    const float *list = NULL;
    bool flat = false;
    size_t count = 0;
    char got[48];

    if (!wire_data_is_flat(source, value, &flat))
        return false;
    if (flat) {
        if (!wire_flat_read(source, value, WIRE_NO_WORDS, &list, &count))
            return false;
        snprintf(got, sizeof got, "has %zu", count);
        *ret_numbers = list;
        return count == value->count || wire_refuse_data(source, value, got);
    }
    if (!wire_tensor_read(&cursor, &value->text, value->name, &form, source->input->arena,
                          &tensor))
        return false;
    *ret_numbers = tensor.rows;
    return has_value_shape(&tensor, value) ||
           wire_refuse_data(source, value, "is nested in another way");
}

bool wire_numbers_read(const struct wire_source *source, const struct wire_value *value,
                       const float **ret_numbers) {
    if (value->bytes == NULL)
        return read_data(source, value, ret_numbers);
    if (!wire_array_check(source, value, false))
        return false;
    if (wire_value_is_in_place(source, value)) {
        *ret_numbers = (const float *)(const void *)value->bytes;
        return true;
    }

    float *numbers = arena_alloc(source->input->arena, value->count, sizeof *numbers);
    if (numbers == NULL)
        return wire_problem_set_no_memory(source->problem);
    pace_to_float(value->dtype, value->bytes, value->count, numbers);
    *ret_numbers = numbers;
    return true;
}

/* --- numbers with any of some shapes --- */

/* Reads text of several levels, as rows: in 4 levels these have two axes. */
static bool read_lists(const struct wire_source *source, enum wire_words words,
                       size_t levels, struct wire_shaped *shaped) {
    const struct wire_cursor cursor = wire_value_cursor(source, shaped->value);
    const struct wire_tensor_form form = {
        .min = 2, .max = 3, .heads = levels == 4, .words = words};
    const char *name = shaped->value->name;
    struct wire_tensor tensor;

    if (!wire_tensor_read(&cursor, &shaped->value->text, name, &form,
                          source->input->arena, &tensor))
        return false;
    if (wire_tensor_len(&tensor) == WIRE_SHAPE_ANY)
        return wire_problem_set(source->problem, WIRE_E_UNEVEN_ROWS, name,
                                "%s has lists of several lengths on one level; send as "
                                "many everywhere",
                                name);

    size_t *shape = shaped->shape;
    if (levels > 2)
        *shape++ = tensor.num_sequences;
    *shape++ = tensor.lens[0];
    if (levels == 4)
        *shape++ = tensor.heads;
    *shape = levels == 4 ? tensor.width / tensor.heads : tensor.width;
    shaped->numbers = tensor.rows;
    return true;
}

/* Reads text, which may be flat where the request states its shape. */
static bool read_shaped_text(const struct wire_source *source, enum wire_words words,
                             size_t max, struct wire_shaped *shaped) {
    const struct wire_value *value = shaped->value;
    const struct wire_cursor cursor = wire_value_cursor(source, value);
    size_t levels, *shape = shaped->shape;
    bool flat = false;
    char got[48];

    if ((value->shape != NULL && !wire_data_is_flat(source, value, &flat)) ||
        !wire_levels_read(&cursor, value->name, 1, max, &levels) ||
        !(levels == 1 ? wire_flat_read(source, value, words, &shaped->numbers, shape)
                      : read_lists(source, words, levels, shaped)))
        return false;
    shaped->rank = levels;
    if (value->shape == NULL)
        return true;

    snprintf(got, sizeof got, "has %zu", shape[0]);
    if (flat ? shape[0] != value->count
             : memcmp(shape, value->shape, levels * sizeof *shape) != 0)
        return wire_refuse_data(source, value, flat ? got : "is nested in another way");
    wire_shaped_take(shaped);
    return true;
}

bool wire_shaped_read(const struct wire_source *source, enum wire_words words, size_t max,
                      const char *shapes, struct wire_shaped *shaped) {
    const struct wire_value *value = shaped->value;

    if (value->shape != NULL && !wire_rank_check(source, value, 1, max, shapes))
        return false;
    if (value->bytes == NULL || value->shape == NULL)
        return read_shaped_text(source, words, max, shaped);
    wire_shaped_take(shaped);
    return wire_numbers_read(source, value, &shaped->numbers);
}

/* --- a number for each head --- */

static bool read_head_list(const struct wire_source *source,
                           const struct wire_value *value, const float **ret_list,
                           size_t *ret_count) {
    if (value->shape == NULL)
        return wire_flat_read(source, value, WIRE_NO_WORDS, ret_list, ret_count);
    *ret_count = value->count;
    return wire_rank_check(source, value, 1, 1, "[H], one number for each head") &&
           wire_numbers_read(source, value, ret_list);
}

bool wire_read_head_numbers(struct wire_decoder *decoder, const struct wire_field *field,
                            const struct wire_value *value) {
    struct wire_head_list *to = wire_field_target(decoder, field);

    return read_head_list(decoder->source, value, &to->numbers, &to->count);
}

/* Checks that there is one number for each head. */
static bool check_head_mask_count(size_t count, const attn_model_info *model,
                                  struct wire_problem *ret_problem) {
    if (count == model->num_heads)
        return true;
    wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH, "head_mask",
                     "head_mask has %zu number%s, but model '%s' has %zu head%s; "
                     "send one number for each head",
                     count, plural_of(count), model->name, model->num_heads,
                     plural_of(model->num_heads));
    wire_shape_print(ret_problem->expected, &model->num_heads, 1);
    wire_shape_print(ret_problem->got, &count, 1);
    return false;
}

bool wire_read_head_mask(struct wire_decoder *decoder, const struct wire_field *field,
                         const struct wire_value *value) {
    const struct wire_source *source = decoder->source;
    size_t count = 0;

    (void)field;
    return read_head_list(source, value, &decoder->request.batch.head_mask, &count) &&
           check_head_mask_count(count, attn_model_get_info(decoder->request.model),
                                 source->problem);
}
