/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/native_tensors.h"

#include "wire/tensor_text.h"

#include <stdio.h>

/* Prints [B,T,width] or [T,width]. */
static void print_sizes(char ret_json[128], bool batched, size_t sequences, size_t rows,
                        size_t width) {
    const size_t shape[] = {sequences, rows, width};
    wire_shape_print(ret_json, batched ? shape : shape + 1, batched ? 3 : 2);
}

/* Returns the length that all sequences have, or "any" when they differ. */
static size_t common_len(const struct wire_tensor *tensor) {
    for (size_t b = 1; b < tensor->num_sequences; b++) {
        if (tensor->lens[b] != tensor->lens[0])
            return WIRE_SHAPE_ANY;
    }
    return tensor->lens[0];
}

/* Checks the rows' width; `size_name` is what the model calls it. */
static bool check_width(const struct wire_tensor *tensor, const char *field,
                        const attn_model_info *model, const char *size_name, size_t size,
                        struct wire_problem *ret_problem) {
    if (tensor->width == size)
        return true;
    wire_problem_set(
        ret_problem, 400, "Shape mismatch", field,
        "%s are %zu wide, but model '%s' takes %s %zu; check that the request "
        "is meant for this model",
        field, tensor->width, model->name, size_name, size);
    size_t rows = common_len(tensor);
    print_sizes(ret_problem->expected, tensor->batched, tensor->num_sequences, rows,
                size);
    print_sizes(ret_problem->got, tensor->batched, tensor->num_sequences, rows,
                tensor->width);
    return false;
}

static bool check_num_sequences(const struct wire_tensor *tensor, const char *field,
                                const struct wire_tensor *queries,
                                struct wire_problem *ret_problem) {
    if (tensor->num_sequences == queries->num_sequences)
        return true;
    wire_problem_set(ret_problem, 400, "Shape mismatch", field,
                     "%s has %zu sequences, but queries has %zu; send as many of each",
                     field, tensor->num_sequences, queries->num_sequences);
    size_t rows = common_len(tensor);
    print_sizes(ret_problem->expected, true, queries->num_sequences, rows, tensor->width);
    print_sizes(ret_problem->got, true, tensor->num_sequences, rows, tensor->width);
    return false;
}

/* Checks that values has as many rows as keys in every sequence. */
static bool check_value_lens(const struct wire_tensors *tensors, bool keys_given,
                             struct wire_problem *ret_problem) {
    const struct wire_tensor *keys = &tensors->keys, *values = &tensors->values;
    for (size_t b = 0; b < keys->num_sequences; b++) {
        if (values->lens[b] == keys->lens[b])
            continue;
        wire_problem_set(
            ret_problem, 400, "Shape mismatch", "values",
            "values has %zu rows in sequence %zu (counted from 0), but %s has "
            "%zu; send one value for each key",
            values->lens[b], b, keys_given ? "keys" : "queries (left-out keys)",
            keys->lens[b]);
        print_sizes(ret_problem->expected, keys->batched, keys->num_sequences,
                    keys->lens[b], values->width);
        print_sizes(ret_problem->got, keys->batched, keys->num_sequences, values->lens[b],
                    values->width);
        return false;
    }
    return true;
}

static bool check_context(const struct wire_tensor *tensor, const char *field,
                          const attn_model_info *model,
                          struct wire_problem *ret_problem) {
    for (size_t b = 0; b < tensor->num_sequences && model->context_length > 0; b++) {
        if (tensor->lens[b] <= model->context_length)
            continue;
        wire_problem_set(
            ret_problem, 400, "Too many tokens", field,
            "%s has %zu tokens in sequence %zu (counted from 0), but model '%s' "
            "has context_length %zu; shorten the sequence",
            field, tensor->lens[b], b, model->name, model->context_length);
        snprintf(ret_problem->expected, sizeof ret_problem->expected, "[1,%zu]",
                 model->context_length);
        snprintf(ret_problem->got, sizeof ret_problem->got, "%zu", tensor->lens[b]);
        return false;
    }
    return true;
}

/* Refuses to let `field` default to `source`, whose rows have another width. */
static bool refuse_default(const char *field, const char *source,
                           const attn_model_info *model, size_t expected, size_t got,
                           struct wire_problem *ret_problem) {
    wire_problem_set(
        ret_problem, 400, "Missing key", field,
        "%s was left out and %s cannot stand in: model '%s' takes %s %zu wide, "
        "not %zu; send %s",
        field, source, model->name, field, expected, got, field);
    return false;
}

/* Reads keys or values, which have a batch axis if queries have. */
static bool read_like_queries(const char *body, const struct wire_span *span,
                              const char *field, const struct wire_tensor *queries,
                              struct arena *arena, struct wire_tensor *ret_tensor,
                              struct wire_problem *ret_problem) {
    size_t levels = queries->batched ? WIRE_LEVELS_BATCHED : WIRE_LEVELS_UNBATCHED;
    return wire_tensor_read(body, span, field, levels, levels, arena, ret_tensor,
                            ret_problem) &&
           check_num_sequences(ret_tensor, field, queries, ret_problem);
}

static bool read_keys(const char *body, const struct wire_span *span,
                      const attn_model_info *model, struct arena *arena,
                      struct wire_tensors *tensors, struct wire_problem *ret_problem) {
    if (span->start != NULL)
        return read_like_queries(body, span, "keys", &tensors->queries, arena,
                                 &tensors->keys, ret_problem) &&
               check_width(&tensors->keys, "keys", model, "key_size", model->key_size,
                           ret_problem) &&
               check_context(&tensors->keys, "keys", model, ret_problem);
    tensors->keys = tensors->queries;
    if (tensors->keys.width == model->key_size)
        return true;
    return refuse_default("keys", "queries", model, model->key_size, tensors->keys.width,
                          ret_problem);
}

static bool read_values(const char *body, const struct wire_span *span, bool keys_given,
                        const attn_model_info *model, struct arena *arena,
                        struct wire_tensors *tensors, struct wire_problem *ret_problem) {
    if (span->start != NULL)
        return read_like_queries(body, span, "values", &tensors->queries, arena,
                                 &tensors->values, ret_problem) &&
               check_width(&tensors->values, "values", model, "value_size",
                           model->value_size, ret_problem) &&
               check_value_lens(tensors, keys_given, ret_problem);
    tensors->values = tensors->keys;
    if (tensors->values.width == model->value_size)
        return true;
    return refuse_default("values", keys_given ? "keys" : "queries", model,
                          model->value_size, tensors->values.width, ret_problem);
}

bool wire_tensors_read(const char *body, const struct wire_span members[WIRE_NUM_MEMBERS],
                       const attn_model_info *model, struct arena *arena,
                       struct wire_tensors *ret_tensors,
                       struct wire_problem *ret_problem) {
    struct wire_tensors tensors;
    const struct wire_span *queries = &members[WIRE_QUERIES], *keys = &members[WIRE_KEYS];
    if (queries->start == NULL) {
        wire_problem_set(ret_problem, 400, "Missing key", "queries",
                         "queries is required; send numbers [B][Tq][%zu] or [Tq][%zu]",
                         model->query_size, model->query_size);
        return false;
    }
    if (!wire_tensor_read(body, queries, "queries", WIRE_LEVELS_UNBATCHED,
                          WIRE_LEVELS_BATCHED, arena, &tensors.queries, ret_problem) ||
        !check_width(&tensors.queries, "queries", model, "query_size", model->query_size,
                     ret_problem) ||
        !check_context(&tensors.queries, "queries", model, ret_problem) ||
        !read_keys(body, keys, model, arena, &tensors, ret_problem) ||
        !read_values(body, &members[WIRE_VALUES], keys->start != NULL, model, arena,
                     &tensors, ret_problem))
        return false;
    *ret_tensors = tensors;
    return true;
}
