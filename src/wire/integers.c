/* SPDX-License-Identifier: Apache-2.0 */
/* integers.c: reads integers that are stored as integers or as floats. */
#include "wire/integers.h"

#include "wire/refuse.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_BYTES 32 /* of a printed number */

bool wire_integers_allow(const char *dtype) {
    static const char *const allowed[] = {"I64", "I32", "F64", "F32"};
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        if (strcmp(allowed[i], dtype) == 0)
            return true;
    }
    return false;
}

static const unsigned char *integer_bytes(const struct wire_integers *tensor, size_t i) {
    return tensor->bytes + i * (tensor->dtype->bits / 8);
}

/* Returns number `i` of a tensor of floats. */
static double read_float(const struct wire_integers *tensor, size_t i) {
    double number;
    float narrow;
    if (tensor->dtype->bits == 64) {
        memcpy(&number, integer_bytes(tensor, i), sizeof number);
        return number;
    }
    memcpy(&narrow, integer_bytes(tensor, i), sizeof narrow);
    return (double)narrow;
}

static int64_t read_integer(const struct wire_integers *tensor, size_t i) {
    return dtype_read_integer(integer_bytes(tensor, i), tensor->dtype->bits / 8);
}

/* Returns where number `i` is. */
static struct wire_place place_of(const struct wire_integers *tensor, size_t i) {
    struct wire_place place = {.field = tensor->field, .depth = tensor->rank};
    for (size_t axis = tensor->rank; axis-- > 0;) {
        place.index[axis] = i % tensor->shape[axis];
        i /= tensor->shape[axis];
    }
    return place;
}

/* Writes number `i`, and returns its size. */
static size_t print_integer(const struct wire_integers *tensor, size_t i,
                            char ret_text[NUMBER_BYTES]) {
    if (tensor->dtype->to_float == NULL)
        snprintf(ret_text, NUMBER_BYTES, "%" PRId64, read_integer(tensor, i));
    else if (isnan(read_float(tensor, i)))
        snprintf(ret_text, NUMBER_BYTES, "NaN"); /* without a sign */
    else
        snprintf(ret_text, NUMBER_BYTES, "%.17g", read_float(tensor, i));
    return strlen(ret_text);
}

bool wire_integers_read(const struct wire_integers *tensor, size_t i, size_t *ret_number,
                        struct wire_problem *ret_problem) {
    if (tensor->dtype->to_float == NULL) {
        int64_t integer = read_integer(tensor, i);
        *ret_number = integer < 0 ? SIZE_MAX : (size_t)integer;
        return true;
    }

    double number = read_float(tensor, i);
    if (!isfinite(number) || number != floor(number)) {
        const struct wire_place place = place_of(tensor, i);
        char text[NUMBER_BYTES];
        size_t digits = print_integer(tensor, i, text);
        return wire_refuse_fraction(&place, text, digits, ret_problem);
    }
    *ret_number = number >= 0 && number < 0x1p63 ? (size_t)number : SIZE_MAX;
    return true;
}

bool wire_integers_read_index(const struct wire_integers *tensor, size_t i,
                              size_t *ret_index, struct wire_problem *ret_problem) {
    if (!wire_integers_read(tensor, i, ret_index, ret_problem))
        return false;
    if (tensor->dtype->to_float == NULL)
        *ret_index = (size_t)read_integer(tensor, i);
    else if (fabs(read_float(tensor, i)) < 0x1p63)
        *ret_index = (size_t)(int64_t)read_float(tensor, i);
    else
        *ret_index = (size_t)PTRDIFF_MIN;
    return true;
}

bool wire_integers_refuse(const struct wire_integers *tensor, size_t i, const char *limit,
                          int64_t min, size_t max, struct wire_problem *ret_problem) {
    const struct wire_place place = place_of(tensor, i);
    char text[NUMBER_BYTES];
    size_t digits = print_integer(tensor, i, text);
    return wire_refuse_int_range(&place, text, digits, limit, min, max, ret_problem);
}
