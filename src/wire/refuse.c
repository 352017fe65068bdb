/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/refuse.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PLACE_TEXT_MAX 96 /* bytes: a key of ours and three indices of 20 digits */

static void print_place(char ret_text[PLACE_TEXT_MAX], const struct wire_place *place) {
    int used = snprintf(ret_text, PLACE_TEXT_MAX, "%.15s", place->field);
    for (size_t i = 0; i < place->depth; i++)
        used += snprintf(ret_text + used, PLACE_TEXT_MAX - (size_t)used, "[%zu]",
                         place->index[i]);
}

void wire_shape_print(char ret_json[128], const size_t *shape, size_t levels) {
    assert(levels <= WIRE_PLACE_DEPTH_MAX);
    char *out = ret_json;
    for (size_t i = 0; i < levels; i++) {
        *out++ = i == 0 ? '[' : ',';
        if (shape[i] == WIRE_SHAPE_ANY)
            out += sprintf(out, "null");
        else
            out += sprintf(out, "%zu", shape[i]);
    }
    *out++ = ']';
    *out = '\0';
}

/* "an array", "a number" */
static const char *article(const char *type) {
    if (strcmp(type, "null") == 0)
        return "";
    return strchr("aeiou", type[0]) != NULL ? "an " : "a ";
}

bool wire_refuse_type(const struct wire_place *place, const char *expected,
                      const char *got, struct wire_problem *ret_problem) {
    char where[PLACE_TEXT_MAX];
    print_place(where, place);
    wire_problem_set(ret_problem, 400, "Wrong type", place->field,
                     "%s is %s%s; send %s%s there", where, article(got), got,
                     article(expected), expected);
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "\"%s\"", expected);
    snprintf(ret_problem->got, sizeof ret_problem->got, "\"%s\"", got);
    return false;
}

bool wire_refuse_levels(const struct wire_place *place, size_t least, size_t most,
                        size_t got, struct wire_problem *ret_problem) {
    char where[PLACE_TEXT_MAX], wanted[48], expected[48];
    print_place(where, place);
    if (least == most) {
        snprintf(wanted, sizeof wanted, "%zu", least);
        snprintf(expected, sizeof expected, "%zu", least);
    } else {
        snprintf(wanted, sizeof wanted, "%zu or %zu", least, most);
        snprintf(expected, sizeof expected, "[%zu,%zu]", least, most);
    }
    wire_problem_set(ret_problem, 400, "Wrong rank", place->field,
                     "%s makes %zu level%s of lists; send %s of %s level%s%s", where, got,
                     got == 1 ? "" : "s", place->field, wanted, most == 1 ? "" : "s",
                     least == most ? " here, all elements alike"
                                   : " (the higher with a batch axis)");
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "%s", expected);
    snprintf(ret_problem->got, sizeof ret_problem->got, "%zu", got);
    return false;
}

bool wire_refuse_empty(const struct wire_place *place, struct wire_problem *ret_problem) {
    char where[PLACE_TEXT_MAX];
    print_place(where, place);
    wire_problem_set(ret_problem, 400, "Empty tensor", place->field,
                     "%s is an empty list; send at least one element there", where);
    return false;
}

bool wire_refuse_uneven(const struct wire_place *place, size_t expected, size_t got,
                        const char *reason, struct wire_problem *ret_problem) {
    char where[PLACE_TEXT_MAX];
    print_place(where, place);
    wire_problem_set(ret_problem, 400, "Uneven rows", place->field,
                     "%s has %zu elements, but needs %zu: %s", where, got, expected,
                     reason);
    size_t shape[WIRE_PLACE_DEPTH_MAX] = {WIRE_SHAPE_ANY, WIRE_SHAPE_ANY, WIRE_SHAPE_ANY};
    shape[place->depth] = expected;
    wire_shape_print(ret_problem->expected, shape, place->depth + 1);
    shape[place->depth] = got;
    wire_shape_print(ret_problem->got, shape, place->depth + 1);
    return false;
}

bool wire_refuse_number(const struct wire_place *place, double got,
                        struct wire_problem *ret_problem) {
    char where[PLACE_TEXT_MAX];
    print_place(where, place);
    wire_problem_set(ret_problem, 400, "Out of range", place->field,
                     "%s is %.9g, which no float32 holds; send numbers within +-%.9g",
                     where, got, (double)FLT_MAX);
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "[%.9g,%.9g]",
             (double)-FLT_MAX, (double)FLT_MAX);
    snprintf(ret_problem->got, sizeof ret_problem->got, "%.17g", got);
    return false;
}

bool wire_refuse_length(const struct wire_place *place, size_t most, int64_t got,
                        struct wire_problem *ret_problem) {
    char where[PLACE_TEXT_MAX];
    print_place(where, place);
    wire_problem_set(ret_problem, 400, "Out of range", place->field,
                     "%s is %" PRId64 ", but its sequence has %zu keys; send 0 to %zu",
                     where, got, most, most);
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "[0,%zu]", most);
    snprintf(ret_problem->got, sizeof ret_problem->got, "%" PRId64, got);
    return false;
}
