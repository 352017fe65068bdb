/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_oracle.c: reads tensors in two passes over jansson's values, and compares. */
#include "tensor_oracle.h"

#include "base/size.h"
#include "wire/json/object.h"
#include "wire/json/tensor.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the name of a value's type, as wire_cursor_type() does. */
static const char *type_of(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "object",   [JSON_ARRAY] = "array", [JSON_STRING] = "string",
        [JSON_INTEGER] = "integer", [JSON_REAL] = "number", [JSON_TRUE] = "boolean",
        [JSON_FALSE] = "boolean",   [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

/* Halfway from the largest float32 to 2^128: numbers from here on round to infinity. */
#define FLOAT_OVERFLOW 0x1.ffffffp127

/* Returns how many lists are nested along the first elements, 0 when there is no list.
 * *ret_leaf, borrowed, is the first element of the innermost, or NULL if there is
 * none. */
static size_t count_levels(const json_t *value, const json_t **ret_leaf) {
    size_t levels = 0;
    for (; value != NULL && json_is_array(value); levels++)
        value = json_array_get(value, 0);
    *ret_leaf = value;
    return levels;
}

static struct wire_place place_inside(const struct wire_place *outer, size_t index) {
    struct wire_place inner = *outer;
    inner.index[inner.depth++] = index;
    return inner;
}

static bool check_list(const json_t *value, const struct wire_place *place, size_t levels,
                       struct wire_problem *ret_problem) {
    if (json_is_number(value))
        return wire_refuse_levels(place, levels, levels, place->depth, ret_problem);
    if (!json_is_array(value))
        return wire_refuse_type(place, "array", type_of(value), ret_problem);
    if (json_array_size(value) == 0)
        return wire_refuse_empty(place, ret_problem);
    return true;
}

static bool read_row(const json_t *row, const struct wire_place *place,
                     float *ret_numbers, struct wire_problem *ret_problem) {
    for (size_t i = 0; i < json_array_size(row); i++) {
        const json_t *value = json_array_get(row, i);
        struct wire_place at = place_inside(place, i);
        const json_t *leaf;
        if (json_is_array(value))
            return wire_refuse_levels(&at, at.depth, at.depth,
                                      at.depth + count_levels(value, &leaf), ret_problem);
        if (!json_is_number(value))
            return wire_refuse_type(&at, "number", type_of(value), ret_problem);
        double number = json_number_value(value);
        if (fabs(number) >= FLOAT_OVERFLOW)
            return wire_refuse_float_range(&at, number, (double)FLT_MAX, ret_problem);
        ret_numbers[i] = (float)number;
    }
    return true;
}

/* Checks the levels along the first elements: they decide if there is a batch axis. */
static bool find_levels(const json_t *value, const char *field, size_t min, size_t max,
                        size_t *ret_levels, struct wire_problem *ret_problem) {
    struct wire_place place = {.field = field};
    const json_t *leaf;
    size_t levels = count_levels(value, &leaf);

    bool number = leaf != NULL && json_is_number(leaf);
    if (levels > max || (levels < min && number))
        return wire_refuse_levels(&place, min, max, levels, ret_problem);
    if (leaf == NULL) {
        place.depth = levels - 1;
        return wire_refuse_empty(&place, ret_problem);
    }
    if (levels < min) {
        place.depth = levels;
        return wire_refuse_type(&place, "array", type_of(leaf), ret_problem);
    }
    *ret_levels = levels;
    return true;
}

/* Returns sequence b of a tensor, and its place. */
static const json_t *get_sequence(const json_t *value, const char *field, bool batched,
                                  size_t b, struct wire_place *ret_place) {
    struct wire_place tensor = {.field = field};
    *ret_place = batched ? place_inside(&tensor, b) : tensor;
    return batched ? json_array_get(value, b) : value;
}

/* Checks the lists of one sequence. The first row of the tensor decides the width. */
static bool check_sequence(const json_t *sequence, const struct wire_place *place,
                           size_t levels, size_t *width,
                           struct wire_problem *ret_problem) {
    if (!check_list(sequence, place, levels, ret_problem))
        return false;
    for (size_t t = 0; t < json_array_size(sequence); t++) {
        const json_t *row = json_array_get(sequence, t);
        struct wire_place at = place_inside(place, t);
        if (!check_list(row, &at, levels, ret_problem))
            return false;
        if (*width == 0)
            *width = json_array_size(row);
        if (json_array_size(row) != *width)
            return wire_refuse_uneven(&at, *width, json_array_size(row),
                                      "all rows must be as wide as the first",
                                      ret_problem);
    }
    return true;
}

/* First pass: sets everything but the numbers. */
static bool read_shape(const json_t *value, const char *field, struct arena *arena,
                       struct wire_tensor *tensor, struct wire_problem *ret_problem) {
    size_t levels = tensor->batched ? WIRE_LEVELS_BATCHED : WIRE_LEVELS_UNBATCHED;
    tensor->num_sequences = tensor->batched ? json_array_size(value) : 1;
    tensor->lens = arena_alloc(arena, tensor->num_sequences, sizeof *tensor->lens);
    if (tensor->lens == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }

    for (size_t b = 0; b < tensor->num_sequences; b++) {
        struct wire_place place;
        const json_t *sequence = get_sequence(value, field, tensor->batched, b, &place);
        if (!check_sequence(sequence, &place, levels, &tensor->width, ret_problem))
            return false;
        tensor->lens[b] = json_array_size(sequence);
        tensor->num_rows += tensor->lens[b]; /* these lists exist: cannot wrap */
    }
    return true;
}

/* Second pass: the numbers. */
static bool fill_rows(const json_t *value, const char *field, struct wire_tensor *tensor,
                      struct wire_problem *ret_problem) {
    float *out = (float *)(uintptr_t)tensor->rows; /* allocated here, so not const */
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        struct wire_place place;
        const json_t *sequence = get_sequence(value, field, tensor->batched, b, &place);
        for (size_t t = 0; t < tensor->lens[b]; t++, out += tensor->width) {
            struct wire_place at = place_inside(&place, t);
            if (!read_row(json_array_get(sequence, t), &at, out, ret_problem))
                return false;
        }
    }
    return true;
}

bool oracle_tensor_read(const json_t *value, const char *field, size_t min, size_t max,
                        struct arena *arena, struct wire_tensor *ret_tensor,
                        struct wire_problem *ret_problem) {
    struct wire_tensor tensor = {0};
    size_t levels = 0, floats;
    if (!find_levels(value, field, min, max, &levels, ret_problem))
        return false;
    tensor.batched = levels == WIRE_LEVELS_BATCHED;
    if (!read_shape(value, field, arena, &tensor, ret_problem))
        return false;
    if (size_mul(tensor.num_rows, tensor.width, &floats))
        tensor.rows = arena_alloc(arena, floats, sizeof *tensor.rows);
    if (tensor.rows == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }
    if (!fill_rows(value, field, &tensor, ret_problem))
        return false;
    *ret_tensor = tensor;
    return true;
}

bool oracle_read_text(const char *text, size_t size, struct arena *arena,
                      struct wire_tensor *ret_tensor, struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {text, text, text + size, ret_problem};
    struct wire_span span;
    wire_cursor_next(&cursor);
    if (!wire_cursor_skip(&cursor, 1, &span))
        return false;
    wire_cursor_next(&cursor);
    if (cursor.at != cursor.end)
        return wire_refuse_syntax(&cursor, NULL, "end of file expected");
    const struct wire_tensor_form form = {WIRE_LEVELS_UNBATCHED, WIRE_LEVELS_BATCHED,
                                          false, false};
    return wire_tensor_read(&cursor, &span, "t", &form, arena, ret_tensor);
}

static const char *compare_tensors(const struct wire_tensor *got,
                                   const struct wire_tensor *expected) {
    if (got->batched != expected->batched ||
        got->num_sequences != expected->num_sequences ||
        got->num_rows != expected->num_rows || got->width != expected->width)
        return "another shape";
    if (memcmp(got->lens, expected->lens, got->num_sequences * sizeof *got->lens) != 0)
        return "other lengths";
    for (size_t i = 0; i < got->num_rows * got->width; i++) {
        float a = got->rows[i], b = expected->rows[i];
        if ((a != 0 || b != 0) && memcmp(&a, &b, sizeof a) != 0)
            return "another number";
    }
    return NULL;
}

/* Returns whether the problem is one that such a text can have. */
static bool is_plausible(const struct wire_problem *problem, bool is_json) {
    return problem->status == 400 && strncmp(problem->detail, "line ", 5) == 0 &&
           /* Another error may come before the place that is not JSON. */
           (is_json || strcmp(problem->title, "Malformed JSON") == 0 ||
            strcmp(problem->title, "Nested too deeply") == 0 ||
            problem->field[0] != '\0');
}

const char *oracle_check(const char *text, size_t size, struct arena arenas[2],
                         bool *ret_accepted) {
    struct wire_tensor got, expected;
    struct wire_problem problem, oracle_problem;
    json_error_t error;
    char *exact = malloc(size > 0 ? size : 1); /* so that a read past its end is found */
    memcpy(exact, text, size);

    arena_reset(&arenas[0]);
    arena_reset(&arenas[1]);
    bool accepted = oracle_read_text(exact, size, &arenas[0], &got, &problem);
    json_t *root =
        json_loadb(exact, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    bool oracle = root != NULL && oracle_tensor_read(root, "t", WIRE_LEVELS_UNBATCHED,
                                                     WIRE_LEVELS_BATCHED, &arenas[1],
                                                     &expected, &oracle_problem);
    bool overflow =
        root == NULL && json_error_code(&error) == json_error_numeric_overflow;
    if (memchr(exact, '\0', size) != NULL) /* jansson 2.14 overlooks it after a number */
        oracle = false;

    const char *wrong = NULL;
    if (accepted != oracle && !(accepted && overflow))
        wrong = accepted ? "accepted" : "refused";
    else if (!accepted && !is_plausible(&problem, root != NULL || overflow))
        wrong = "refused with another problem";
    else if (accepted && oracle)
        wrong = compare_tensors(&got, &expected);
    json_decref(root);
    free(exact);
    *ret_accepted = accepted;
    return wrong;
}
