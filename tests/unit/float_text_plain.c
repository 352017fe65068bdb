/* SPDX-License-Identifier: Apache-2.0 */
/* float_text_plain.c: finds the shortest decimal of a float32 with the C library only.
 *
 * It is plain on purpose: it tries numbers of digits with printf, and reads the text back
 * by strtof. */
#include "float_text_plain.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX     9 /* enough for every float32 (FLT_DECIMAL_DIG) */
#define DIGITS_USUAL   8 /* most results need 8 or 9: where the search starts */
#define POSITIONAL_MIN (-5)
#define POSITIONAL_MAX 12

/* 0.d1d2d3... * 10^(exponent + 1): the digits without a point; the first is not 0. */
struct decimal {
    char digits[DIGITS_MAX + 1]; /* terminated */
    int count;
    int exponent; /* of the first digit */
};

static bool reads_back(const struct decimal *decimal, float value) {
    char text[32];
    snprintf(text, sizeof text, "%c.%se%d", decimal->digits[0], decimal->digits + 1,
             decimal->exponent);
    return strtof(text, NULL) == value;
}

static void strip_zeros(struct decimal *decimal) {
    while (decimal->count > 1 && decimal->digits[decimal->count - 1] == '0')
        decimal->digits[--decimal->count] = '\0';
}

/* Finds the decimal with `count` digits that is closest to `value`, a positive number. */
static void round_to(float value, int count, struct decimal *ret_decimal) {
    char text[32];
    snprintf(text, sizeof text, "%.*e", count - 1, (double)value);
    ret_decimal->count = 0;
    const char *c = text;
    for (; *c != 'e'; c++) {
        if (*c != '.')
            ret_decimal->digits[ret_decimal->count++] = *c;
    }
    ret_decimal->digits[ret_decimal->count] = '\0';
    ret_decimal->exponent = atoi(c + 1);
}

/* Sets the next larger decimal with as many digits. */
static void step_up(struct decimal *decimal) {
    int i = decimal->count - 1;
    while (i >= 0 && decimal->digits[i] == '9')
        decimal->digits[i--] = '0';
    if (i >= 0) {
        decimal->digits[i]++;
    } else {
        decimal->digits[0] = '1'; /* 999 -> 100, one power of ten up */
        decimal->exponent++;
    }
}

/* Finds a decimal with `count` digits that reads back to `value`. If there is one, it is
 * the closest, except for powers of two: the floats below them are twice as dense as
 * those above, so the closest may be too low while the next larger one reads back. */
static bool find_decimal(float value, int count, struct decimal *ret_decimal) {
    struct decimal decimal;
    round_to(value, count, &decimal);
    if (!reads_back(&decimal, value)) {
        step_up(&decimal);
        if (!reads_back(&decimal, value))
            return false;
    }
    strip_zeros(&decimal);
    *ret_decimal = decimal;
    return true;
}

/* Decimals with n digits also have n + 1, so if a count fails, all lower ones do. */
static void find_shortest(float value, struct decimal *ret_decimal) {
    if (!find_decimal(value, DIGITS_USUAL, ret_decimal)) {
        find_decimal(value, DIGITS_MAX, ret_decimal);
        return;
    }
    while (ret_decimal->count > 1 &&
           find_decimal(value, ret_decimal->count - 1, ret_decimal))
        continue;
}

static char *put_zeros(char *out, int count) {
    for (int i = 0; i < count; i++)
        *out++ = '0';
    return out;
}

static char *put_digits(char *out, const char *digits, int count) {
    memcpy(out, digits, (size_t)count);
    return out + count;
}

static char *put_positional(char *out, const struct decimal *decimal) {
    int whole = decimal->exponent + 1; /* digits before the point */
    if (whole <= 0) {
        out = put_digits(out, "0.", 2);
        out = put_zeros(out, -whole);
        return put_digits(out, decimal->digits, decimal->count);
    }
    if (whole >= decimal->count) {
        out = put_digits(out, decimal->digits, decimal->count);
        out = put_zeros(out, whole - decimal->count);
        return put_digits(out, ".0", 2);
    }
    out = put_digits(out, decimal->digits, whole);
    *out++ = '.';
    return put_digits(out, decimal->digits + whole, decimal->count - whole);
}

static char *put_exponent(char *out, const struct decimal *decimal) {
    *out++ = decimal->digits[0];
    if (decimal->count > 1) {
        *out++ = '.';
        out = put_digits(out, decimal->digits + 1, decimal->count - 1);
    }
    char exponent[16];
    int length = snprintf(exponent, sizeof exponent, "e%+d", decimal->exponent);
    return put_digits(out, exponent, length);
}

size_t float_text_plain(float value, char text[WIRE_FLOAT_PRINT_MAX]) {
    char *out = text;
    if (__builtin_signbit(value)) {
        *out++ = '-';
        value = -value;
    }
    struct decimal decimal = {"0", 1, 0};
    if (value > 0)
        find_shortest(value, &decimal);
    if (decimal.exponent >= POSITIONAL_MIN && decimal.exponent <= POSITIONAL_MAX)
        out = put_positional(out, &decimal);
    else
        out = put_exponent(out, &decimal);
    return (size_t)(out - text);
}
