/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads options that are one word or one number. */
#include "wire/options.h"

#include "wire/json/list.h"
#include "wire/json/object.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A day. */
#define TIMEOUT_MS_MAX 86400000
#define TIMEOUT_US_MAX UINT64_C(86400000000)

bool wire_need_weights_read(const struct wire_cursor *cursor,
                            const struct wire_span *span, attn_need_weights *ret_need) {
    struct wire_place place = {.field = "need_weights"};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    char word[WIRE_WORD_MAX + 1] = "";
    if (span->start == NULL)
        return true;

    const char *type = wire_cursor_type(&there);
    if (type == NULL)
        return wire_refuse_value_type(&there, &place, "boolean");
    if (strcmp(type, "boolean") == 0) {
        *ret_need = *span->start == 't' ? ATTN_WEIGHTS_ALL : ATTN_WEIGHTS_NONE;
        return true;
    }
    if (strcmp(type, "string") == 0 && !wire_word_read(cursor, span, place.field, word))
        return false;
    if (strcmp(word, "mean") != 0)
        return wire_refuse_need_weights(type, cursor->problem);
    *ret_need = ATTN_WEIGHTS_MEAN;
    return true;
}

static bool refuse_timeout_ms(const struct wire_cursor *cursor, struct wire_place *place,
                              const char *text) {
    struct wire_problem *problem = cursor->problem;
    wire_cursor_locate(cursor, place);
    wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, place->field,
                     "line %zu, column %zu: timeout_ms is %s; send a number of "
                     "milliseconds above 0 and up to %d, or leave it out",
                     place->line, place->column, text, TIMEOUT_MS_MAX);
    wire_range_print(problem->expected, 0, TIMEOUT_MS_MAX);
    return false;
}

bool wire_timeout_ms_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns) {
    struct wire_place place = {.field = "timeout_ms"};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    size_t size = (size_t)(span->end - span->start);
    char text[WIRE_WORD_MAX + 1];
    if (span->start == NULL)
        return true;
    if (!wire_cursor_at_number(&there))
        return wire_refuse_value_type(&there, &place, "number");
    if (size > WIRE_WORD_MAX)
        return refuse_timeout_ms(&there, &place, "a number of too many digits");

    memcpy(text, span->start, size);
    text[size] = '\0';
    double milliseconds =
        strtod(text, NULL); /* in the C locale, as nobody sets another */
    if (!(milliseconds > 0 && milliseconds <= TIMEOUT_MS_MAX))
        return refuse_timeout_ms(&there, &place, text);
    *ret_ns = (int64_t)ceil(milliseconds * 1e6);
    return true;
}

/* Reads an integer of 0..`max`. */
static bool read_uint_option(const struct wire_cursor *cursor,
                             const struct wire_span *span, const char *field,
                             const char *limit, uint64_t max, uint64_t *ret_number) {
    struct wire_place place = {.field = field};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_span text;
    size_t number;
    if (!wire_uint_read(&there, &place, 0, &number, &text))
        return false;
    if (number > max)
        return wire_refuse_uint_range(&there, &place, &text, limit, max);
    *ret_number = number;
    return true;
}

bool wire_timeout_us_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns) {
    uint64_t microseconds = 0;
    if (span->start == NULL)
        return true;
    if (!read_uint_option(cursor, span, "timeout",
                          "it is a number of microseconds, at most a day", TIMEOUT_US_MAX,
                          &microseconds))
        return false;
    *ret_ns = (int64_t)microseconds * 1000;
    return true;
}

bool wire_priority_read(const struct wire_cursor *cursor, const struct wire_span *span,
                        uint32_t *ret_priority) {
    uint64_t priority = 0;
    if (span->start == NULL)
        return true;
    if (!read_uint_option(cursor, span, "priority",
                          "it is a place in the order, of which 1 is first", INT32_MAX,
                          &priority))
        return false;
    *ret_priority = (uint32_t)priority;
    return true;
}
