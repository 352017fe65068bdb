/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/native_lens.h"

#include "wire/json_value.h"
#include "wire/tensor_json.h"

static const char *const lens_field = "valid_lens";

/* What is read from and written to. */
struct reader {
    const struct wire_tensor *queries, *keys;
    size_t levels; /* of lists that valid_lens has */
    size_t *out;   /* the next length to be written */
    struct wire_problem *ret_problem;
};

static bool read_length(struct reader *reader, const json_t *value,
                        const struct wire_place *place, size_t sequence) {
    const json_t *leaf;
    size_t most = reader->keys->lens[sequence];
    if (json_is_array(value))
        return wire_refuse_levels(place, reader->levels, reader->levels,
                                  place->depth + wire_json_levels(value, &leaf),
                                  reader->ret_problem);
    if (!json_is_integer(value))
        return wire_refuse_type(place, "integer", wire_json_type(value),
                                reader->ret_problem);
    json_int_t length = json_integer_value(value);
    if (length < 0 || (unsigned long long)length > most)
        return wire_refuse_length(place, most, length, reader->ret_problem);
    *reader->out++ = (size_t)length;
    return true;
}

/* Reads a list of one length per query of `sequence`. */
static bool read_query_lengths(struct reader *reader, const json_t *row,
                               const struct wire_place *place, size_t sequence) {
    size_t expected = reader->queries->lens[sequence];
    if (!wire_list_check(row, place, reader->levels, reader->ret_problem))
        return false;
    if (json_array_size(row) != expected)
        return wire_refuse_uneven(place, expected, json_array_size(row),
                                  "one for each query of its sequence",
                                  reader->ret_problem);
    struct wire_place at = *place;
    at.depth++;
    for (size_t t = 0; t < expected; t++) {
        at.index[place->depth] = t;
        if (!read_length(reader, json_array_get(row, t), &at, sequence))
            return false;
    }
    return true;
}

/* Reads a list of one element per sequence: a length, or a list of one per query. */
static bool read_batch(struct reader *reader, const json_t *value, bool per_query) {
    size_t sequences = reader->queries->num_sequences, got = json_array_size(value);
    if (got != sequences) {
        wire_problem_set(
            reader->ret_problem, 400, "Shape mismatch", lens_field,
            "valid_lens has %zu elements, but queries has %zu sequences; send "
            "one element for each",
            got, sequences);
        const size_t expected[] = {sequences, WIRE_SHAPE_ANY},
                     shape[] = {got, WIRE_SHAPE_ANY};
        wire_shape_print(reader->ret_problem->expected, expected, reader->levels);
        wire_shape_print(reader->ret_problem->got, shape, reader->levels);
        return false;
    }
    for (size_t b = 0; b < sequences; b++) {
        struct wire_place at = {.field = lens_field, .depth = 1, .index = {b}};
        const json_t *element = json_array_get(value, b);
        if (per_query ? !read_query_lengths(reader, element, &at, b)
                      : !read_length(reader, element, &at, b))
            return false;
    }
    return true;
}

/* Checks the levels along the first elements. */
static bool find_levels(const json_t *value, bool batched, size_t *ret_levels,
                        struct wire_problem *ret_problem) {
    struct wire_place place = {.field = lens_field};
    size_t least = batched ? 1 : 0;
    const json_t *leaf;
    size_t levels = wire_json_levels(value, &leaf);
    if (levels > least + 1 || (levels < least && json_is_number(leaf)))
        return wire_refuse_levels(&place, least, least + 1, levels, ret_problem);
    if (leaf == NULL) {
        place.depth = levels - 1;
        return wire_refuse_empty(&place, ret_problem);
    }
    if (levels < least)
        return wire_refuse_type(&place, "array", wire_json_type(leaf), ret_problem);
    *ret_levels = levels;
    return true;
}

bool wire_lens_read(const json_t *value, const struct wire_tensor *queries,
                    const struct wire_tensor *keys, struct arena *arena,
                    attn_request *request, struct wire_problem *ret_problem) {
    struct reader reader = {queries, keys, 0, NULL, ret_problem};
    if (!find_levels(value, queries->batched, &reader.levels, ret_problem))
        return false;
    bool per_query = reader.levels == (queries->batched ? 2 : 1);
    size_t count = per_query ? queries->num_rows : queries->num_sequences;
    size_t *lens = arena_alloc(arena, count, sizeof *lens);
    if (lens == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }
    reader.out = lens;
    const struct wire_place whole = {.field = lens_field};
    bool read = queries->batched ? read_batch(&reader, value, per_query)
                : per_query      ? read_query_lengths(&reader, value, &whole, 0)
                                 : read_length(&reader, value, &whole, 0);
    if (!read)
        return false;
    request->valid_lens = lens;
    request->valid_lens_per_query = per_query;
    return true;
}
