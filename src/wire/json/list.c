/* SPDX-License-Identifier: Apache-2.0 */
/* list.c: reads lists of numbers, and refuses anything else. */
#include "wire/json/list.h"

#include "wire/decimal/read.h"

/* Numbers of up to 16 bytes fill a step of the pace. */
#define NUMBERS_PER_STEP (WIRE_PACE_STEP / 16)

bool wire_list_open(struct wire_cursor *cursor, struct wire_place *place, size_t levels) {
    if (wire_cursor_next(cursor) == '[') {
        cursor->at++;
        if (wire_cursor_next(cursor) != ']')
            return true;
        wire_cursor_locate(cursor, place);
        return wire_refuse_empty(place, cursor->problem);
    }
    if (wire_cursor_at_number(cursor)) {
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
    if (levels > max || (levels < min && wire_cursor_at_number(&ahead))) {
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

bool wire_list_next(struct wire_cursor *cursor, const struct wire_place *place,
                    bool *ret_more) {
    char c = wire_cursor_next(cursor);
    if (c != ',' && c != ']')
        return wire_refuse_syntax(cursor, place, "',' or ']' expected");
    cursor->at++;
    *ret_more = c == ',';
    return true;
}

/* Returns the value of the digits from `at` on, or SIZE_MAX when it is larger. */
static size_t parse_digits(const char *at, const char *end) {
    size_t value = 0;
    for (; at < end; at++) {
        size_t digit = (size_t)(*at - '0');
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return SIZE_MAX;
    }
    return value;
}

bool wire_uint_read(struct wire_cursor *cursor, struct wire_place *place, size_t levels,
                    size_t *ret_number, struct wire_span *ret_text) {
    bool minus = wire_cursor_next(cursor) == '-';
    if (wire_peek(cursor->at, cursor->end) == '[') {
        struct wire_cursor inner = *cursor;
        size_t got = place->depth + wire_cursor_levels(&inner);
        wire_cursor_locate(cursor, place);
        return wire_refuse_levels(place, levels, levels, got, cursor->problem);
    }

    const char *type = wire_cursor_type(cursor);
    if (type == NULL || strcmp(type, "integer") != 0)
        return wire_refuse_value_type(cursor, place, "integer");

    *ret_text =
        (struct wire_span){cursor->at, wire_number_end(cursor->at, cursor->end), 0, 0};
    *ret_number = parse_digits(ret_text->start + minus, ret_text->end);
    if (minus && *ret_number > 0)
        *ret_number = SIZE_MAX;
    wire_pace_add(cursor->pace, (size_t)(ret_text->end - cursor->at) + 1);
    cursor->at = ret_text->end;
    return true;
}

bool wire_refuse_uint_range(const struct wire_cursor *cursor, struct wire_place *place,
                            const struct wire_span *text, const char *limit, size_t max) {
    struct wire_cursor there = *cursor;
    there.at = text->start;
    wire_cursor_locate(&there, place);
    return wire_refuse_text_range(place, text->start, (size_t)(text->end - text->start),
                                  limit, max, cursor->problem);
}

/* Refuses the element at `place`, where reading the row has stopped because of `stop`. */
static bool refuse_element(const struct wire_cursor *cursor, struct wire_place *place,
                           enum wire_stop stop, double refused) {
    struct wire_cursor inner = *cursor;

    switch (stop) {
    case WIRE_STOP_NO_NUMBER:
        if (wire_peek(cursor->at, cursor->end) != '[')
            return wire_refuse_value_type(cursor, place, "number");
        wire_cursor_locate(cursor, place);
        return wire_refuse_levels(place, place->depth, place->depth,
                                  place->depth + wire_cursor_levels(&inner),
                                  cursor->problem);
    case WIRE_STOP_RANGE:
        wire_cursor_locate(cursor, place);
        return wire_refuse_float_range(place, refused, cursor->problem);
    case WIRE_STOP_CLOSED:
    case WIRE_STOP_NO_COMMA:
    case WIRE_STOP_FULL: /* impossible: there is room for one number more than commas */
        break;
    }
    return wire_refuse_syntax(cursor, place, "',' or ']' expected");
}

/* wire_floats_read() in pieces; `out_end` is the end of the whole room. */
static enum wire_stop read_numbers(struct wire_floats *floats, const float *out_end,
                                   struct wire_pace *pace) {
    enum wire_stop stop;
    do {
        const char *start = floats->at;
        size_t room = (size_t)(out_end - floats->out);
        floats->out_end =
            floats->out + (room < NUMBERS_PER_STEP ? room : NUMBERS_PER_STEP);
        stop = wire_floats_read(floats);
        wire_pace_add(pace, (size_t)(floats->at - start));
    } while (stop == WIRE_STOP_FULL && floats->out < out_end);
    return stop;
}

bool wire_row_read(struct wire_cursor *cursor, struct wire_place *place, float *out,
                   float *out_end, size_t *ret_count) {
    if (!wire_list_open(cursor, place, place->depth + 1))
        return false;

    struct wire_floats floats = {.at = cursor->at, .end = cursor->end, .out = out};
    enum wire_stop stop = read_numbers(&floats, out_end, cursor->pace);
    size_t count = (size_t)(floats.out - out);
    cursor->at = floats.at;
    if (stop != WIRE_STOP_CLOSED) {
        struct wire_place at = *place;
        at.index[at.depth++] = stop == WIRE_STOP_NO_COMMA ? count - 1 : count;
        return refuse_element(cursor, &at, stop, floats.refused);
    }

    cursor->at++;
    *ret_count = count;
    return true;
}
