/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_check.c: checks queries, keys and values against the model and each other. */
#include "wire/fields/readers.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/pace.h"
#include "math/mask.h"
#include "math/model.h"
#include "wire/json/tensor.h"
#include "wire/models.h"

#include <stdio.h>
#include <string.h>

/* Prints [B,T,width] or [T,width] as JSON. */
static void print_tensor_shape(char ret_json[WIRE_SHAPE_PRINT_MAX], bool batched,
                               size_t sequences, size_t rows, size_t width) {
    const size_t shape[] = {sequences, rows, width};
    if (batched)
        wire_shape_print(ret_json, shape, 3);
    else
        wire_shape_print(ret_json, shape + 1, 2);
}

/* Refuses the width of the rows; `size_name` is what the model calls it. */
static bool refuse_width(const struct wire_decoder *decoder,
                         const struct wire_tensor *tensor, const char *field,
                         const char *size_name, size_t size) {
    struct wire_problem *problem = decoder->source->problem;

    wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, field,
                     "%s are %zu wide, but model '%s' has %s %zu; "
                     "check that the request is meant for this model",
                     field, tensor->width,
                     attn_model_get_info(decoder->request.model)->name, size_name, size);
    size_t rows = wire_tensor_len(tensor);
    print_tensor_shape(problem->expected, tensor->batched, tensor->num_sequences, rows,
                       size);
    print_tensor_shape(problem->got, tensor->batched, tensor->num_sequences, rows,
                       tensor->width);
    return false;
}

/* Whether there are as many sequences as of queries. */
static bool has_sequences(const struct wire_decoder *decoder,
                          const struct wire_tensor *tensor) {
    return tensor->num_sequences == decoder->tensors.queries.num_sequences;
}

static bool refuse_num_sequences(const struct wire_decoder *decoder,
                                 const struct wire_tensor *tensor, const char *field) {
    const struct wire_tensor *queries = &decoder->tensors.queries;
    struct wire_problem *problem = decoder->source->problem;

    wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, field,
                     "%s has %zu sequence%s, but queries has %zu; send the same number",
                     field, tensor->num_sequences, plural_of(tensor->num_sequences),
                     queries->num_sequences);
    size_t rows = wire_tensor_len(tensor);
    print_tensor_shape(problem->expected, true, queries->num_sequences, rows,
                       tensor->width);
    print_tensor_shape(problem->got, true, tensor->num_sequences, rows, tensor->width);
    return false;
}

/* Checks that every sequence has as many values as keys. */
static bool check_value_lens(const struct wire_decoder *decoder) {
    const struct wire_tensors *tensors = &decoder->tensors;
    const struct wire_tensor *keys = &tensors->keys, *values = &tensors->values;
    struct wire_problem *problem = decoder->source->problem;

    for (size_t b = 0; b < keys->num_sequences; b++) {
        pace_add(1);
        if (values->lens[b] == keys->lens[b])
            continue;
        wire_problem_set(
            problem, WIRE_E_SHAPE_MISMATCH, "values",
            "values has %zu row%s in sequence %zu (counted from 0), but %s has %zu; "
            "send one value for each key",
            values->lens[b], plural_of(values->lens[b]), b,
            tensors->keys_sent ? "keys" : "queries (used as keys)", keys->lens[b]);
        print_tensor_shape(problem->expected, keys->batched, keys->num_sequences,
                           keys->lens[b], values->width);
        print_tensor_shape(problem->got, keys->batched, keys->num_sequences,
                           values->lens[b], values->width);
        return false;
    }
    return true;
}

static bool check_context(const struct wire_decoder *decoder,
                          const struct wire_tensor *tensor, const char *field) {
    const attn_model_info *model = attn_model_get_info(decoder->request.model);
    struct wire_problem *problem = decoder->source->problem;

    for (size_t b = 0; b < tensor->num_sequences && model->context_length > 0; b++) {
        pace_add(1);
        if (tensor->lens[b] <= model->context_length)
            continue;
        wire_problem_set(problem, WIRE_E_TOO_MANY_TOKENS, field,
                         "%s has %zu tokens in sequence %zu (counted from 0), "
                         "but model '%s' has context_length %zu; shorten the sequence",
                         field, tensor->lens[b], b, model->name, model->context_length);
        wire_range_print(problem->expected, 1, model->context_length);
        snprintf(problem->got, sizeof problem->got, "%zu", tensor->lens[b]);
        return false;
    }
    return true;
}

bool wire_tensors_check_lens(const struct wire_decoder *decoder) {
    const struct wire_tensors *tensors = &decoder->tensors;

    if (!has_sequences(decoder, &tensors->keys))
        return refuse_num_sequences(decoder, &tensors->keys, "keys");
    if (!tensors->values_sent)
        return true;
    if (!has_sequences(decoder, &tensors->values))
        return refuse_num_sequences(decoder, &tensors->values, "values");
    return check_value_lens(decoder);
}

void wire_request_set_tensors(struct wire_decoder *decoder) {
    const struct wire_tensors *tensors = &decoder->tensors;
    attn_request *batch = &decoder->request.batch;

    decoder->request.batched = tensors->queries.batched;
    decoder->request.lens_sent = wire_is_sent(decoder->source, WIRE_FIELD_QUERY_LENS) ||
                                 wire_is_sent(decoder->source, WIRE_FIELD_KEY_LENS);
    batch->num_sequences = tensors->queries.num_sequences;
    batch->query_lens = tensors->queries.lens;
    batch->key_lens = tensors->keys.lens;
    batch->queries = tensors->queries.rows;
    batch->keys = tensors->keys.rows;
    batch->encoded_keys = tensors->keys.encoded;
    batch->keys_type = tensors->keys.type;
    batch->values = tensors->values.rows;
}

/* --- with a model --- */

/* A tensor of a request to a model. */
struct model_tensor {
    enum wire_field_id id;
    const char *field, *size_name; /* what the model calls its width */
    size_t width;
    struct wire_tensor *tensor;
    const struct wire_tensor *before; /* stands in when it is left out; NULL: none */
};

/* Takes the tensor before in the place of one that was left out. */
static bool stand_in(const struct wire_decoder *decoder, const struct model_tensor *at) {
    const attn_model_info *model = attn_model_get_info(decoder->request.model);
    struct wire_problem *problem = decoder->source->problem;

    if (at->before == NULL)
        return wire_problem_set(problem, WIRE_E_MISSING_KEY, at->field,
                                "%s is required; send it with shape [B, Tq, %zu] or "
                                "[Tq, %zu]",
                                at->field, at->width, at->width);
    if (at->id == WIRE_FIELD_KEYS && wire_model_needs_keys(model))
        return wire_problem_set(
            problem, WIRE_E_MISSING_KEY, "keys",
            "keys was left out, but model '%s' is a %s layer, whose "
            "keys are not its queries; send keys",
            model->name, wire_model_is_cross(model) ? "cross-attention" : "borrowing");
    *at->tensor = *at->before;
    return at->before->width == at->width ||
           wire_problem_set(problem, WIRE_E_MISSING_KEY, at->field,
                            "%s was left out, and %s cannot be used instead: "
                            "model '%s' needs %s of width %zu, not %zu; send %s",
                            at->field, decoder->tensors.keys_sent ? "keys" : "queries",
                            model->name, at->field, at->width, at->before->width,
                            at->field);
}

static bool read_model_tensor(const struct wire_decoder *decoder,
                              const struct model_tensor *at) {
    bool batched = decoder->tensors.queries.batched, first = at->before == NULL;
    size_t min = first || !batched ? WIRE_LEVELS_UNBATCHED : WIRE_LEVELS_BATCHED;
    size_t max = first || batched ? WIRE_LEVELS_BATCHED : WIRE_LEVELS_UNBATCHED;

    if (!wire_tensor_read_field(decoder->source, at->id, min, max, at->tensor))
        return false;
    if (!wire_is_sent(decoder->source, at->id))
        return stand_in(decoder, at);
    if (!has_sequences(decoder, at->tensor))
        return refuse_num_sequences(decoder, at->tensor, at->field);
    if (at->tensor->width != at->width)
        return refuse_width(decoder, at->tensor, at->field, at->size_name, at->width);
    return (at->id == WIRE_FIELD_VALUES ? check_value_lens(decoder)
                                        : check_context(decoder, at->tensor, at->field));
}

bool wire_tensors_read(struct wire_decoder *decoder) {
    const attn_model_info *model = attn_model_get_info(decoder->request.model);
    struct wire_tensors *tensors = &decoder->tensors;
    struct wire_tensor *queries = &tensors->queries, *keys = &tensors->keys;
    const struct model_tensor all[] = {
        {WIRE_FIELD_QUERIES, "queries", "query_size", model->width.query, queries, NULL},
        {WIRE_FIELD_KEYS, "keys", "key_size", model->width.key, keys, queries},
        {WIRE_FIELD_VALUES, "values", "value_size", model->width.value, &tensors->values,
         keys},
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!read_model_tensor(decoder, &all[i]))
            return false;
    }
    if (!wire_tensor_rows_read(decoder))
        return false;
    wire_request_set_tensors(decoder);
    decoder->request.note =
        model_find_note(decoder->request.model, queries->rows, queries->num_rows);
    return true;
}

/* --- finite numbers --- */

/* Steps of bisecting the keys of a query. */
#define REACH_STEPS 32

/* Between which rows of a sequence all are that its queries attend to. Where key
 * positions have no order, only lengths count: comparing all pairs could take minutes. */
struct reach {
    struct range keys, values;
};

static struct reach find_reach(const struct mask *mask, size_t num_queries) {
    struct reach reach = {{mask->key_len, 0}, {0, mask->key_len}};
    bool any_uniform = false;
    for (size_t row = 0; row < num_queries; row++) {
        const struct range keys = mask_bound_keys(mask, row);
        pace_add(REACH_STEPS);
        if (keys.first == keys.end) {
            any_uniform = true;
            continue;
        }
        if (keys.first < reach.keys.first)
            reach.keys.first = keys.first;
        if (keys.end > reach.keys.end)
            reach.keys.end = keys.end;
    }
    if (!any_uniform)
        reach.values = reach.keys;
    return reach;
}

/* Whether the mask lets a row of a tensor take part. */
static bool is_reached(const struct mask *mask, const struct reach *reach,
                       enum wire_field_id id, size_t row) {
    struct range rows = id == WIRE_FIELD_KEYS ? reach->keys : reach->values;
    if (id == WIRE_FIELD_QUERIES) {
        rows = mask_bound_keys(mask, row);
        pace_add(REACH_STEPS);
        return rows.first < rows.end;
    }
    return rows.first <= row && row < rows.end;
}

/* --- encoded numbers --- */

#define ENCODED_TOGETHER ((size_t)512) /* elements that are looked at together */

/* Returns the bits of an element that are all set in NaN and infinities. */
static uint16_t exponent_bits(const struct wire_tensor *tensor) {
    return strcmp(tensor->type, "BF16") == 0 ? 0x7f80 : 0x7c00;
}

/* Returns the index of the first of some elements that is not finite, or `count`. */
static size_t encoded_finite_end(const struct wire_tensor *tensor, size_t first,
                                 size_t count) {
    const unsigned char *bytes = (const unsigned char *)tensor->encoded + 2 * first;
    uint16_t read[ENCODED_TOGETHER], bits = exponent_bits(tensor);

    for (size_t i = 0; i < count; i += ENCODED_TOGETHER) {
        size_t size = count - i < ENCODED_TOGETHER ? count - i : ENCODED_TOGETHER,
               bad = 0;
        memcpy(read, bytes + 2 * i, 2 * size);
        for (size_t k = 0; k < size; k++)
            bad += (read[k] & bits) == bits;
        pace_add(size / 4);
        for (size_t k = 0; bad > 0 && k < size; k++) {
            if ((read[k] & bits) == bits)
                return i + k;
        }
    }
    return count;
}

/* Returns the index of the first number of some of a tensor that is not finite, or
 * `count`. */
static size_t finite_end(const struct wire_tensor *tensor, size_t first, size_t count) {
    if (tensor->stored)
        return count;
    return tensor->encoded != NULL ? encoded_finite_end(tensor, first, count)
                                   : pace_finite_end(tensor->rows + first, count);
}

/* Returns a number of a tensor. */
static float number_at(const struct wire_tensor *tensor, size_t i) {
    float number;
    if (tensor->encoded == NULL)
        return tensor->rows[i];
    dtype_find(tensor->type)
        ->to_float((const unsigned char *)tensor->encoded + 2 * i, 1, &number);
    return number;
}

/* Checks the rows of a tensor, the numbers of `value`, that the mask does not hide. What
 * was sent as text is finite, so only an array can be refused. */
static bool check_sequences(const struct wire_decoder *decoder,
                            const struct wire_tensor *tensor, enum wire_field_id id,
                            const struct wire_value *value) {
    const attn_request *batch = &decoder->request.batch;
    size_t first_query = 0, first_key = 0, width = tensor->width, at = 0;

    for (size_t b = 0; b < tensor->num_sequences; b++) {
        struct mask mask;
        mask_init(&mask, batch, b, first_query, first_key);
        const struct reach reach = find_reach(&mask, batch->query_lens[b]);
        for (size_t row = 0; row < tensor->lens[b]; row++, at += width) {
            bool reached = is_reached(&mask, &reach, id, row);
            size_t i = reached ? finite_end(tensor, at, width) : width;
            if (i < width) {
                const struct wire_place place =
                    wire_place_of(value->name, value->shape, value->rank, at + i);
                return wire_refuse_not_finite(&place, number_at(tensor, at + i),
                                              decoder->source->problem);
            }
            pace_add(1);
        }
        pace_add(REACH_STEPS);
        first_query += batch->query_lens[b];
        first_key += batch->key_lens[b];
    }
    return true;
}

static bool is_finite(const struct wire_tensor *tensor) {
    size_t count = tensor->num_rows * tensor->width;
    return finite_end(tensor, 0, count) == count;
}

static bool check_head_mask_finite(const struct wire_request *request,
                                   struct wire_problem *ret_problem) {
    const float *mask = request->batch.head_mask;
    size_t num_heads = attn_model_get_info(request->model)->num_heads, head;
    if (mask == NULL)
        return true;
    head = pace_finite_end(mask, num_heads);
    const struct wire_place place = {"head_mask", 1, {head}, 0, 0};
    return head == num_heads || wire_refuse_not_finite(&place, mask[head], ret_problem);
}

bool wire_finite_check(const struct wire_decoder *decoder) {
    const struct wire_tensors *tensors = &decoder->tensors;
    const struct wire_value *values = decoder->source->values;

    if (!check_head_mask_finite(&decoder->request, decoder->source->problem))
        return false;
    /* Nearly always, there is nothing to hide. */
    if (is_finite(&tensors->queries) &&
        (!tensors->keys_sent || is_finite(&tensors->keys)) &&
        (!tensors->values_sent || is_finite(&tensors->values)))
        return true;

    const struct wire_value *queries = &values[WIRE_FIELD_QUERIES];
    const struct wire_value *keys =
        tensors->keys_sent ? &values[WIRE_FIELD_KEYS] : queries;
    return check_sequences(decoder, &tensors->queries, WIRE_FIELD_QUERIES, queries) &&
           check_sequences(decoder, &tensors->keys, WIRE_FIELD_KEYS, keys) &&
           check_sequences(decoder, &tensors->values, WIRE_FIELD_VALUES,
                           tensors->values_sent ? &values[WIRE_FIELD_VALUES] : keys);
}
