/* SPDX-License-Identifier: Apache-2.0 */
/* refuse.c: the wording of errors that more than one reader finds. */
#include "wire/refuse.h"

#include "base/error.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_SHOWN 24 /* of a number that may have more; %.17g needs 24 */

struct wire_place wire_place_of(const char *field, const size_t *shape, size_t rank,
                                size_t i) {
    struct wire_place place = {.field = field, .depth = rank};
    while (rank-- > 0) {
        place.index[rank] = i % shape[rank];
        i /= shape[rank];
    }
    return place;
}

void wire_place_print(char *ret_text, size_t size, const struct wire_place *place) {
    size_t used = (size_t)snprintf(ret_text, size, "%.31s", place->field);
    for (size_t i = 0; i < place->depth && used < size; i++)
        used += (size_t)snprintf(ret_text + used, size - used, "[%zu]", place->index[i]);
}

void wire_place_describe(char ret_text[WIRE_PLACE_TEXT_MAX],
                         const struct wire_place *place) {
    int used = 0;
    if (place->line > 0)
        used = snprintf(ret_text, WIRE_PLACE_TEXT_MAX,
                        "line %zu, column %zu: ", place->line, place->column);
    wire_place_print(ret_text + used, WIRE_PLACE_TEXT_MAX - (size_t)used, place);
}

void wire_shape_print(char ret_json[WIRE_SHAPE_PRINT_MAX], const size_t *shape,
                      size_t levels) {
    char *out = ret_json;

    assert(levels <= WIRE_PLACE_DEPTH_MAX);
    *out++ = '[';
    for (size_t i = 0; i < levels; i++) {
        if (i > 0)
            *out++ = ',';
        if (shape[i] == WIRE_SHAPE_ANY)
            out += sprintf(out, "null");
        else
            out += sprintf(out, "%zu", shape[i]);
    }
    *out++ = ']';
    *out = '\0';
}

void wire_names_print(char *ret_text, size_t size, const char *const *names, size_t count,
                      const char *word) {
    size_t used = 0;

    for (size_t i = 0; i < count && used < size; i++) {
        used += (size_t)snprintf(ret_text + used, size - used, "%s", names[i]);
        if (i + 1 < count && used < size)
            used += (size_t)snprintf(ret_text + used, size - used,
                                     i + 2 < count ? ", " : " %s ", word);
    }
}

void wire_range_print(char ret_json[WIRE_SHAPE_PRINT_MAX], int64_t min, size_t max) {
    snprintf(ret_json, WIRE_SHAPE_PRINT_MAX, "[%" PRId64 ",%zu]", min, max);
}

void wire_levels_print(char ret_json[WIRE_SHAPE_PRINT_MAX], size_t min, size_t max) {
    if (min == max)
        snprintf(ret_json, WIRE_SHAPE_PRINT_MAX, "%zu", min);
    else
        wire_range_print(ret_json, (int64_t)min, max);
}

const char *wire_type_remedy(const char *field, const char *got) {
    static const struct {
        const char *field, *got, *remedy;
    } remedies[] = {
        {"bias", "boolean",
         "numbers, or booleans as attn_mask, where true is a key that the query sees"},
        {"attn_mask", "boolean",
         "lists of numbers alone, or of booleans alone, where true sees"},
        {"valid_lens", "boolean", "lengths; of an attention_mask they are mask.sum(-1)"},
        {"need", "string", "a list of words, such as [\"weights\"]"},
    };
    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++) {
        if (strcmp(field, remedies[i].field) == 0 && strcmp(got, remedies[i].got) == 0)
            return remedies[i].remedy;
    }
    return NULL;
}

/* Returns the article for a JSON type: "an " for array, "a " for number. */
static const char *article_of(const char *type) {
    if (strcmp(type, "null") == 0)
        return "";
    return strchr("aeiou", type[0]) != NULL ? "an " : "a ";
}

bool wire_refuse_type(const struct wire_place *place, const char *expected,
                      const char *got, struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX], instead[48];
    const char *remedy = wire_type_remedy(place->field, got);
    wire_place_describe(where, place);
    snprintf(instead, sizeof instead, "%s%s instead", article_of(expected), expected);
    wire_problem_set(ret_problem, WIRE_E_WRONG_TYPE, place->field, "%s is %s%s; send %s",
                     where, article_of(got), got, remedy != NULL ? remedy : instead);
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "\"%s\"", expected);
    snprintf(ret_problem->got, sizeof ret_problem->got, "\"%s\"", got);
    return false;
}

bool wire_refuse_levels(const struct wire_place *place, size_t min, size_t max,
                        size_t got, struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX], element_of[48] = "", wanted[64];
    const char *here = "", *everywhere = "";

    /* The levels of an element are counted from the outermost list. */
    wire_place_describe(where, place);
    if (place->depth > 0) {
        snprintf(element_of, sizeof element_of, ": %.31s", place->field);
        here = " here";
        everywhere = " everywhere";
    }

    if (min == max)
        snprintf(wanted, sizeof wanted, "%zu level%s%s", min, plural_of(min), everywhere);
    else if (max - min > 1)
        snprintf(wanted, sizeof wanted, "%zu to %zu levels", min, max);
    else
        snprintf(wanted, sizeof wanted,
                 "%zu or %zu levels (the higher with a batch axis)", min, max);
    wire_problem_set(ret_problem, WIRE_E_WRONG_RANK, place->field,
                     "%s%s has %zu level%s of lists%s; send %s with %s", where,
                     element_of, got, plural_of(got), here, place->field, wanted);

    wire_levels_print(ret_problem->expected, min, max);
    snprintf(ret_problem->got, sizeof ret_problem->got, "%zu", got);
    return false;
}

bool wire_refuse_empty(const struct wire_place *place, struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX];
    wire_place_describe(where, place);
    return wire_problem_set(ret_problem, WIRE_E_EMPTY_TENSOR, place->field,
                            "%s is an empty list; send at least one element", where);
}

bool wire_refuse_uneven(const struct wire_place *place, size_t expected, size_t got,
                        const char *reason, struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX];
    wire_place_describe(where, place);
    wire_problem_set(ret_problem, WIRE_E_UNEVEN_ROWS, place->field,
                     "%s has %zu element%s, but needs %zu: %s", where, got,
                     plural_of(got), expected, reason);

    size_t shape[WIRE_PLACE_DEPTH_MAX] = {WIRE_SHAPE_ANY, WIRE_SHAPE_ANY, WIRE_SHAPE_ANY,
                                          WIRE_SHAPE_ANY};
    shape[place->depth] = expected;
    wire_shape_print(ret_problem->expected, shape, place->depth + 1);
    shape[place->depth] = got;
    wire_shape_print(ret_problem->got, shape, place->depth + 1);
    return false;
}

static void print_float_range(double max, struct wire_problem *ret_problem) {
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "[%.9g,%.9g]", -max,
             max);
}

bool wire_refuse_float_range(const struct wire_place *place, double got, double max,
                             struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX], number[32] = "over the largest double";
    wire_place_describe(where, place);
    if (isfinite(got))
        snprintf(number, sizeof number, "%.9g", got);
    wire_problem_set(
        ret_problem, WIRE_E_OUT_OF_RANGE, place->field,
        "%s is %s, which is out of range for float32; send numbers within +-%.9g", where,
        number, max);
    print_float_range(max, ret_problem);
    if (isfinite(got)) /* JSON has no infinity */
        snprintf(ret_problem->got, sizeof ret_problem->got, "%.17g", got);
    return false;
}

/* Writes the text of a number as an error shows it. */
static void print_digits(char ret_text[DIGITS_SHOWN + 4], const char *number,
                         size_t digits) {
    bool all = digits <= DIGITS_SHOWN;
    snprintf(ret_text, DIGITS_SHOWN + 4, "%.*s%s", all ? (int)digits : DIGITS_SHOWN,
             number, all ? "" : "...");
}

/* Returns whether clients can read the number back: an integer in 64 bits, and what has a
 * point or an exponent as a double. */
static bool is_readable(const char *number) {
    errno = 0;
    if (strpbrk(number, ".eE") != NULL)
        return isfinite(strtod(number, NULL));
    strtoll(number, NULL, 10);
    return errno == 0;
}

bool wire_refuse_fraction(const struct wire_place *place, const char *got, size_t digits,
                          struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX], number[DIGITS_SHOWN + 4];
    wire_place_describe(where, place);
    print_digits(number, got, digits);
    wire_problem_set(ret_problem, WIRE_E_WRONG_TYPE, place->field,
                     "%s is %s; send a whole number", where, number);
    strcpy(ret_problem->expected, "\"integer\"");
    strcpy(ret_problem->got, "\"number\"");
    return false;
}

bool wire_refuse_int_range(const struct wire_place *place, const char *got, size_t digits,
                           const char *limit, int64_t min, size_t max,
                           struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX], number[DIGITS_SHOWN + 4];
    wire_place_describe(where, place);
    print_digits(number, got, digits);
    wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, place->field,
                     "%s is %s, but %s; send %" PRId64 " to %zu", where, number, limit,
                     min, max);
    wire_range_print(ret_problem->expected, min, max);
    if (digits <= DIGITS_SHOWN && is_readable(number))
        snprintf(ret_problem->got, sizeof ret_problem->got, "%s", number);
    return false;
}

bool wire_refuse_not_finite(const struct wire_place *place, float got,
                            struct wire_problem *ret_problem) {
    char where[WIRE_PLACE_TEXT_MAX];
    wire_place_describe(where, place);
    wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, place->field,
                     "%s is %s; send numbers within +-%.9g", where,
                     isnan(got) ? "not a number (NaN)"
                                : "infinite, or out of range for float32",
                     (double)FLT_MAX);
    print_float_range((double)FLT_MAX, ret_problem);
    return false;
}
