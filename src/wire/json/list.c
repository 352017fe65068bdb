/* SPDX-License-Identifier: Apache-2.0 */
/* list.c: reads lists of numbers, and refuses anything else. */
#include "wire/json/list.h"

#include "base/pace.h"
#include "wire/decimal/read.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Numbers of up to 16 bytes fill a piece. */
#define NUMBERS_PER_STEP (PACE_PIECE / 16)

/* No text in memory has so many digits that its other exponents matter. */
#define EXPONENT_ENOUGH (INT64_MAX / 100)

/* Enters the list at `place`, which must have an element. */
static bool open_list(struct wire_cursor *cursor, struct wire_place *place,
                      size_t levels) {
    if (wire_cursor_next(cursor) == '[') {
        cursor->at++;
        if (wire_cursor_next(cursor) != ']')
            return true;
        wire_cursor_locate(cursor, place);
        return wire_refuse_empty(place, cursor->problem);
    }
    if (wire_cursor_number_end(cursor) != NULL) {
        wire_cursor_locate(cursor, place);
        return wire_refuse_levels(place, levels, levels, place->depth, cursor->problem);
    }
    return wire_refuse_value_type(cursor, place, "array");
}

bool wire_levels_read(const struct wire_cursor *cursor, const char *field, size_t min,
                      size_t max, size_t *ret_levels) {
    struct wire_cursor ahead = *cursor;
    struct wire_place place = {.field = field};

    size_t levels = wire_cursor_levels(&ahead);
    if (levels > max || (levels < min && wire_cursor_number_end(&ahead) != NULL)) {
        wire_cursor_locate(cursor, &place);
        return wire_refuse_levels(&place, min, max, levels, cursor->problem);
    }
    if (levels > 0 && wire_peek(ahead.at, ahead.end) == ']') {
        place.depth = levels - 1;
        wire_cursor_locate(&ahead, &place);
        return wire_refuse_empty(&place, cursor->problem);
    }

    place.depth = levels;
    if (levels < min)
        return wire_refuse_value_type(&ahead, &place, "array");
    *ret_levels = levels;
    return true;
}

/* Moves from the end of an element to the next one, or past the end of the list. */
static bool next_element(struct wire_cursor *cursor, const struct wire_place *place,
                         bool *ret_more) {
    char c = wire_cursor_next(cursor);
    if (c != ',' && c != ']')
        return wire_refuse_syntax(cursor, place, "',' or ']' expected");
    cursor->at++;
    *ret_more = c == ',';
    return true;
}

bool wire_elements_read(struct wire_cursor *cursor, const struct wire_place *place,
                        size_t expected, wire_element_reader *read, void *context,
                        size_t *ret_count) {
    struct wire_place at = *place;
    struct wire_span surplus;
    bool more = true;
    size_t count;

    at.depth++;
    for (count = 0; more; count++) {
        at.index[place->depth] = count;
        wire_cursor_next(cursor);
        if (!(count < expected ? read(cursor, &at, context)
                               : wire_cursor_skip(cursor, at.depth, &surplus)) ||
            !next_element(cursor, &at, &more))
            return false;
    }
    *ret_count = count;
    return true;
}

bool wire_list_read(struct wire_cursor *cursor, struct wire_place *place, size_t levels,
                    size_t expected, wire_element_reader *read, void *context,
                    size_t *ret_count) {
    return open_list(cursor, place, levels) &&
           wire_elements_read(cursor, place, expected, read, context, ret_count);
}

bool wire_list_check(struct wire_cursor *cursor, struct wire_place *place,
                     size_t expected, size_t count, const char *reason) {
    if (count == expected)
        return true;
    cursor->at--; /* to the bracket that came too early or too late */
    wire_cursor_locate(cursor, place);
    return wire_refuse_uneven(place, expected, count, reason, cursor->problem);
}

/* Returns value * 10^power, or SIZE_MAX when that is larger. */
static size_t scale_by_ten(size_t value, int64_t power) {
    for (; power > 0 && value > 0 && value < SIZE_MAX; power--) {
        if (__builtin_mul_overflow(value, 10, &value))
            value = SIZE_MAX;
    }
    return value;
}

/* Returns the exponent from `at` on, after the 'e', or one that is large enough. */
static int64_t parse_exponent(const char *at, const char *end) {
    int64_t exponent = 0;
    bool minus = *at == '-';
    for (at += *at == '-' || *at == '+'; at < end && exponent < EXPONENT_ENOUGH; at++)
        exponent = exponent * 10 + (*at - '0');
    return minus ? -exponent : exponent;
}

/* Returns whether a number without its sign is whole, exactly. *ret_value is SIZE_MAX
 * when the number is larger. */
static bool parse_whole(const char *at, const char *end, size_t *ret_value) {
    size_t value = 0;
    int64_t zeros = 0, power = 0; /* zeros at the end are a power of ten: 30e-1 is 3 */
    bool fraction = false;

    for (; at < end && (*at | 0x20) != 'e'; at++) {
        if (*at == '.') {
            fraction = true;
            continue;
        }
        power -= fraction;
        zeros++;
        if (*at != '0') {
            value = scale_by_ten(value, zeros);
            if (__builtin_add_overflow(value, (size_t)(*at - '0'), &value))
                value = SIZE_MAX;
            zeros = 0;
        }
    }

    power += zeros + (at < end ? parse_exponent(at + 1, end) : 0);
    *ret_value = scale_by_ten(value, power);
    return value == 0 || power >= 0;
}

bool wire_integer_read(struct wire_cursor *cursor, struct wire_place *place,
                       size_t levels, bool from_end, size_t *ret_number,
                       struct wire_span *ret_text) {
    bool minus = wire_cursor_next(cursor) == '-';
    if (wire_peek(cursor->at, cursor->end) == '[') {
        struct wire_cursor inner = *cursor;
        size_t got = place->depth + wire_cursor_levels(&inner);
        wire_cursor_locate(cursor, place);
        return wire_refuse_levels(place, levels, levels, got, cursor->problem);
    }

    const char *end = wire_cursor_number_end(cursor);
    if (end == NULL)
        return wire_refuse_value_type(cursor, place, "integer");

    *ret_text = (struct wire_span){cursor->at, end, 0, 0};
    if (!parse_whole(ret_text->start + minus, ret_text->end, ret_number)) {
        wire_cursor_locate(cursor, place);
        return wire_refuse_fraction(place, ret_text->start,
                                    (size_t)(ret_text->end - ret_text->start),
                                    cursor->problem);
    }
    if (from_end && *ret_number > PTRDIFF_MAX)
        *ret_number = (size_t)PTRDIFF_MIN;
    if (minus && *ret_number > 0)
        *ret_number = from_end ? 0 - *ret_number : SIZE_MAX;
    pace_add((size_t)(end - cursor->at) + 1);
    cursor->at = end;
    return true;
}

bool wire_refuse_index_range(const struct wire_cursor *cursor, struct wire_place *place,
                             const struct wire_span *text, const char *limit, int64_t min,
                             size_t max) {
    struct wire_cursor there = *cursor;
    there.at = text->start;
    wire_cursor_locate(&there, place);
    return wire_refuse_int_range(place, text->start, (size_t)(text->end - text->start),
                                 limit, min, max, cursor->problem);
}

/* Refuses the element at `place`, where reading the row has stopped because of `stop`. */
static bool refuse_element(const struct wire_cursor *cursor, struct wire_place *place,
                           enum wire_words words, enum wire_stop stop, double refused) {
    struct wire_cursor inner = *cursor;

    switch (stop) {
    case WIRE_STOP_NO_NUMBER:
        if (wire_peek(cursor->at, cursor->end) != '[')
            return wire_refuse_value_type(cursor, place,
                                          words == WIRE_BOOLEANS ? "boolean" : "number");
        wire_cursor_locate(cursor, place);
        return wire_refuse_levels(place, place->depth, place->depth,
                                  place->depth + wire_cursor_levels(&inner),
                                  cursor->problem);
    case WIRE_STOP_RANGE:
        wire_cursor_locate(cursor, place);
        return wire_refuse_float_range(place, refused, (double)FLT_MAX, cursor->problem);
    case WIRE_STOP_CLOSED:
    case WIRE_STOP_NO_COMMA:
    case WIRE_STOP_FULL: /* impossible: there is room for one number more than commas */
        break;
    }
    return wire_refuse_syntax(cursor, place, "',' or ']' expected");
}

/* wire_floats_read() in pieces; `out_end` is the end of the whole room. */
static enum wire_stop read_row_numbers(struct wire_floats *floats, const float *out_end) {
    enum wire_stop stop;
    do {
        const char *start = floats->at;
        size_t room = (size_t)(out_end - floats->out);
        floats->out_end =
            floats->out + (room < NUMBERS_PER_STEP ? room : NUMBERS_PER_STEP);
        stop = wire_floats_read(floats);
        pace_add((size_t)(floats->at - start));
    } while (stop == WIRE_STOP_FULL && floats->out < out_end);
    return stop;
}

/* Reads the word at the text, if it is one of `words`. */
static bool read_word(struct wire_floats *floats, enum wire_words words) {
    static const struct {
        enum wire_words words;
        const char *text;
        float number;
    } known[] = {{WIRE_NULLS, "null", -INFINITY},
                 {WIRE_BOOLEANS, "true", 0},
                 {WIRE_BOOLEANS, "false", -INFINITY}};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t size = strlen(known[i].text);
        if (known[i].words != words || (size_t)(floats->end - floats->at) < size ||
            memcmp(floats->at, known[i].text, size) != 0)
            continue;
        *floats->out++ = known[i].number;
        floats->at = wire_skip_space(floats->at + size, floats->end);
        pace_add(size);
        return true;
    }
    return false;
}

/* Reads words, and the comma after each. Returns why it has stopped: at what is none of
 * both. */
static enum wire_stop read_words(struct wire_floats *floats, enum wire_words words,
                                 const float *out_end) {
    while (floats->out < out_end) {
        if (!read_word(floats, words))
            return WIRE_STOP_NO_NUMBER;
        if (wire_peek(floats->at, floats->end) == ']')
            return WIRE_STOP_CLOSED;
        if (wire_peek(floats->at, floats->end) != ',')
            return WIRE_STOP_NO_COMMA;
        floats->at = wire_skip_space(floats->at + 1, floats->end);
    }
    return WIRE_STOP_FULL;
}

/* read_row_numbers() of a list that may have nulls. */
static enum wire_stop read_nullable(struct wire_floats *floats, const float *out_end) {
    enum wire_stop stop;
    const char *start;
    do {
        start = floats->at;
        stop = read_row_numbers(floats, out_end);
        if (stop == WIRE_STOP_NO_NUMBER)
            stop = read_words(floats, WIRE_NULLS, out_end);
    } while (stop == WIRE_STOP_NO_NUMBER && floats->at > start &&
             wire_number_end(floats->at, floats->end) != NULL);
    return stop;
}

static enum wire_stop read_row_elements(struct wire_floats *floats, enum wire_words words,
                                        const float *out_end) {
    switch (words) {
    case WIRE_NULLS:
        return read_nullable(floats, out_end);
    case WIRE_BOOLEANS:
        return read_words(floats, WIRE_BOOLEANS, out_end);
    case WIRE_NO_WORDS:
        break;
    }
    return read_row_numbers(floats, out_end);
}

bool wire_row_read(struct wire_cursor *cursor, struct wire_place *place,
                   enum wire_words words, float *out, float *out_end, size_t *ret_count) {
    if (!open_list(cursor, place, place->depth + 1))
        return false;

    struct wire_floats floats = {.at = cursor->at, .end = cursor->end, .out = out};
    enum wire_stop stop = read_row_elements(&floats, words, out_end);
    size_t count = (size_t)(floats.out - out);
    cursor->at = floats.at;
    if (stop != WIRE_STOP_CLOSED) {
        struct wire_place at = *place;
        at.index[at.depth++] = stop == WIRE_STOP_NO_COMMA ? count - 1 : count;
        return refuse_element(cursor, &at, words, stop, floats.refused);
    }

    cursor->at++;
    *ret_count = count;
    return true;
}
