/* SPDX-License-Identifier: Apache-2.0 */
/* reserve.c: bounds the memory that reading the fields of a request needs. */
#include "wire/fields/readers.h"

#include "base/size.h"
#include "math/model.h"
#include "wire/fields/integer_list.h"
#include "wire/json/tensor.h"

/* Returns the most rows that queries can have, in all sequences. */
static size_t count_rows(const struct wire_value *queries) {
    size_t width = 1;

    if (queries->shape == NULL)
        return queries->text.start != NULL ? queries->text.commas + 1 : 0;
    if (queries->rank > 0 && queries->shape[queries->rank - 1] > 0)
        width = queries->shape[queries->rank - 1];
    return queries->count / width;
}

/* Returns how many sequences the rows of a field have: the queries, or for key_positions
 * the keys. 0 without a batch axis. */
static size_t count_sequences(const struct wire_source *source, enum wire_field_id id) {
    const struct wire_value *rows = &source->values[WIRE_FIELD_QUERIES];

    if (id == WIRE_FIELD_KEY_POSITIONS && wire_is_sent(source, WIRE_FIELD_KEYS))
        rows = &source->values[WIRE_FIELD_KEYS];
    if (wire_value_rank(rows) !=
        WIRE_LEVELS_BATCHED + (size_t)wire_has_heads_axis(source))
        return 0;
    return rows->shape != NULL ? rows->shape[0] : rows->text.lists;
}

/* Returns the most bytes that a list of integers needs, which may be one for all
 * sequences. */
static size_t integers_cost(const struct wire_source *source, enum wire_field_id id) {
    const struct wire_value *value = &source->values[id];
    size_t numbers = wire_integers_most(value, id == WIRE_FIELD_TARGETS);
    size_t bytes = ARENA_ALIGNMENT, lists = 1;

    if ((id == WIRE_FIELD_TARGETS && wire_value_rank(value) < WIRE_LEVELS_BATCHED) ||
        ((id == WIRE_FIELD_POSITIONS || id == WIRE_FIELD_KEY_POSITIONS ||
          id == WIRE_FIELD_TOKEN_IDS) &&
         wire_value_rank(value) == 1))
        lists += count_sequences(source, id);
    size_add_mul_saturating(&bytes, numbers, sizeof(size_t));
    size_t all = 0;
    size_add_mul_saturating(&all, lists, bytes);
    return all;
}

/* Returns the most bytes that floats need: their numbers, and lengths of sequences. */
static size_t floats_cost(const struct wire_source *source,
                          const struct wire_value *value) {
    size_t bytes = (size_t)2 * ARENA_ALIGNMENT;

    if (value->text.start != NULL)
        bytes = wire_tensor_cost(&value->text);
    else if (!wire_value_is_in_place(source, value))
        size_add_mul_saturating(&bytes, value->count, sizeof(float));
    if (value->shape == NULL || value->rank == 0)
        return bytes;
    size_add_mul_saturating(&bytes, value->shape[0], sizeof(size_t));
    size_add_saturating(&bytes, ARENA_ALIGNMENT);
    return bytes;
}

/* Returns the most bytes that one field needs. */
static size_t field_cost(const struct wire_source *source, const struct wire_field *field,
                         size_t num_heads) {
    const struct wire_value *value = &source->values[field->id];
    size_t bytes = 0, size = (size_t)(value->text.end - value->text.start);

    switch (field->kind) {
    case WIRE_OPTION:
        if (size <= WIRE_WORD_MAX + 2 && !wire_has_strings(source)) /* else not read */
            bytes = wire_json_cost(size);
        return bytes;
    case WIRE_TENSOR:
    case WIRE_FLOATS:
    case WIRE_MASK:
        return floats_cost(source, value);
    case WIRE_LENS: /* read at most once each for queries, keys and values */
        bytes = (size_t)3 * ARENA_ALIGNMENT;
        size_add_mul_saturating(&bytes, value->count, 3 * sizeof(size_t));
        return bytes;
    case WIRE_INTEGERS:
        break;
    }

    bytes = integers_cost(source, field->id);
    /* A mark of a byte for each head, and two for each row, finds what appears twice. */
    size_add_saturating(&bytes, ARENA_ALIGNMENT);
    if (field->id == WIRE_FIELD_WEIGHTS_HEADS)
        size_add_saturating(&bytes, num_heads);
    if (field->id == WIRE_FIELD_WEIGHTS_QUERIES)
        size_add_mul_saturating(&bytes, count_rows(&source->values[WIRE_FIELD_QUERIES]),
                                2);
    return bytes;
}

bool wire_fields_reserve(struct wire_decoder *decoder, size_t extra) {
    const struct wire_source *source = decoder->source;
    const struct wire_value *queries = &source->values[WIRE_FIELD_QUERIES];
    size_t bytes = extra, num_heads;
    uint64_t left = source->sent;

    if (!wire_is_given(source)) {
        num_heads = attn_model_get_info(decoder->request.model)->num_heads;
    } else { /* at most as many as the queries have numbers */
        num_heads = queries->shape != NULL ? queries->count : queries->text.commas + 1;
        size_add_saturating(&bytes, sizeof(attn_model) + ARENA_ALIGNMENT);
    }
    for (const struct wire_field *field; (field = wire_field_next(&left)) != NULL;) {
        size_add_saturating(&bytes, field_cost(source, field, num_heads));
        if ((field->kind & (WIRE_TENSOR | WIRE_FLOATS | WIRE_MASK)) != 0 &&
            wire_value_is_in_place(source, &source->values[field->id]))
            decoder->request.in_body = true;
    }
    return source->input->reserve(source->input->context, bytes, source->problem);
}
