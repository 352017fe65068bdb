/* SPDX-License-Identifier: Apache-2.0 */
/* source.c: checks shapes and types of values. */
#include "wire/fields/source.h"

#include "base/dtype.h"
#include "base/error.h"

#include <stdio.h>

#define FLOAT_TYPES   "F32, F16, BF16 or F64"
#define INTEGER_TYPES "I64, I32, F64 or F32"

size_t wire_value_rank(const struct wire_value *value) {
    struct wire_cursor cursor = {.at = value->text.start, .end = value->text.end};
    return value->shape != NULL ? value->rank : wire_cursor_levels(&cursor);
}

bool wire_value_is_in_place(const struct wire_source *source,
                            const struct wire_value *value) {
    const char *type = value->bytes != NULL ? value->dtype->name : "";
    bool encoded = wire_is_given(source) && value == &source->values[WIRE_FIELD_KEYS] &&
                   (strcmp(type, "BF16") == 0 || strcmp(type, "F16") == 0);
    return value->bytes != NULL && (encoded || dtype_is_float_array(type, value->bytes));
}

bool wire_integers_allow(const char *dtype) {
    static const char *const allowed[] = {"I64", "I32", "F64", "F32"};
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        if (strcmp(allowed[i], dtype) == 0)
            return true;
    }
    return false;
}

/* --- refusals --- */

bool wire_refuse_shape(const struct wire_source *source, const struct wire_value *value,
                       size_t min, size_t max, const size_t *expected,
                       const char *wanted) {
    bool fits = value->rank >= min && value->rank <= max;
    bool shown = value->rank <= WIRE_PLACE_DEPTH_MAX;
    char shape[WIRE_SHAPE_PRINT_MAX];

    if (shown)
        wire_shape_print(shape, value->shape, value->rank);
    else
        snprintf(shape, sizeof shape, "%zu", value->rank);
    wire_problem_set(source->problem, fits ? WIRE_E_SHAPE_MISMATCH : WIRE_E_WRONG_RANK,
                     value->name, "%s has %s %s; send it with shape %s", value->name,
                     shown ? "shape" : "rank", shape, wanted);
    if (fits) {
        wire_shape_print(source->problem->expected, expected, value->rank);
        snprintf(source->problem->got, sizeof source->problem->got, "%s", shape);
    } else {
        wire_levels_print(source->problem->expected, min, max);
        snprintf(source->problem->got, sizeof source->problem->got, "%zu", value->rank);
    }
    return false;
}

bool wire_rank_check(const struct wire_source *source, const struct wire_value *value,
                     size_t min, size_t max, const char *wanted) {
    return (value->rank >= min && value->rank <= max) ||
           wire_refuse_shape(source, value, min, max, NULL, wanted);
}

static bool refuse_dtype(const struct wire_source *source, const struct wire_value *value,
                         bool integers) {
    const char *type = value->dtype->name, *wanted, *expected, *remedy = NULL;
    struct wire_problem *problem = source->problem;
    bool mask = value == &source->values[WIRE_FIELD_ATTN_MASK];

    wanted = integers ? INTEGER_TYPES : mask ? "BOOL, " FLOAT_TYPES : FLOAT_TYPES;
    expected = integers ? "[\"I64\",\"I32\",\"F64\",\"F32\"]"
               : mask   ? "[\"BOOL\",\"F32\",\"F16\",\"BF16\",\"F64\"]"
                        : "[\"F32\",\"F16\",\"BF16\",\"F64\"]";
    if (strcmp(type, "BOOL") == 0)
        remedy = wire_type_remedy(value->name, "boolean");
    wire_problem_set(problem, WIRE_E_WRONG_DTYPE, value->name,
                     "%s has dtype %s; send %s%s%s", value->name, type,
                     remedy == NULL ? "it as " : "", remedy == NULL ? wanted : remedy,
                     strcmp(type, "U16") == 0 ? "; bits of bfloat16 are BF16" : "");
    snprintf(problem->expected, sizeof problem->expected, "%s", expected);
    snprintf(problem->got, sizeof problem->got, "\"%s\"", type);
    return false;
}

bool wire_array_check(const struct wire_source *source, const struct wire_value *value,
                      bool integers) {
    if (integers ? !wire_integers_allow(value->dtype->name)
                 : value->dtype->to_float == NULL)
        return refuse_dtype(source, value, integers);
    return value->count > 0 ||
           wire_problem_set(
               source->problem, WIRE_E_EMPTY_TENSOR, value->name,
               "%s has a dimension of 0; send at least one element, or leave it out",
               value->name);
}

bool wire_refuse_data(const struct wire_source *source, const struct wire_value *value,
                      const char *got) {
    char shape[WIRE_SHAPE_PRINT_MAX];

    wire_shape_print(shape, value->shape, value->rank);
    return wire_problem_set(source->problem, WIRE_E_SHAPE_MISMATCH, value->name,
                            "%s has shape %s, which is %zu element%s, but its data %s; "
                            "correct one of them",
                            value->name, shape, value->count, plural_of(value->count),
                            got);
}

bool wire_data_is_flat(const struct wire_source *source, const struct wire_value *value,
                       bool *ret_flat) {
    struct wire_cursor cursor = wire_value_cursor(source, value), ahead = cursor;
    struct wire_place place = {.field = value->name};
    size_t levels = wire_cursor_levels(&ahead);

    *ret_flat = levels == 1;
    if (levels == 0)
        return wire_refuse_value_type(&cursor, &place, "array");
    return levels == 1 || levels == value->rank ||
           wire_problem_set(
               source->problem, WIRE_E_WRONG_RANK, value->name,
               "%s has data with %zu level%s of lists, but a shape of %zu dimension%s; "
               "send the data flat (1 level) or nested like the shape",
               value->name, levels, plural_of(levels), value->rank,
               plural_of(value->rank));
}
