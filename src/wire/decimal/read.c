/* SPDX-License-Identifier: Apache-2.0 */
/* read.c: decimal to float32.
 *
 * The decimal is w * 10^p, w of up to 19 digits. w times the first 64 bits of 10^p gives
 * the first 62 bits of the value, more than enough to round to the 24 of a float32,
 * unless the value is next to the middle of two float32: then, about once in 10^8 random
 * numbers and for every number exactly in the middle, strtod() decides, as it does for
 * numbers that are not normal float32. So nothing here has to be exact, only on the safe
 * side. */
#include "wire/decimal/read.h"

#include "wire/decimal/bytes.h"
#include "wire/decimal/read_powers.h"

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 uint128;

/* Halfway from the largest float32 to 2^128: from here on rounding to nearest overflows.
 */
#define FLOAT_OVERFLOW 0x1.ffffffp127

#define WORD_DIGITS 7  /* that are read at a time */
#define FAST_WHOLE  5  /* digits before the point: two words more fit in 64 bits */
#define FAST_NUMBER 44 /* bytes that a number may take to be read fast */
#define FAST_BYTES  48 /* with its comma and a space */
#define DIGITS_MAX  19 /* that a uint64_t holds, whatever they are */
/* More digits than any text has: an exponent past it is out of range whatever they are.
 */
#define EXPONENT_MAX INT64_C(1000000000000000)

static const uint64_t ten_to[WORD_DIGITS + 1] = {1,     10,     100,     1000,
                                                 10000, 100000, 1000000, 10000000};

/* w * ten_to[n] + n digits fit in 64 bits when w is less than this. */
static const uint64_t room_for[WORD_DIGITS + 1] = {
    UINT64_MAX,
    UINT64_MAX / 10 - 1,
    UINT64_MAX / 100 - 1,
    UINT64_MAX / 1000 - 1,
    UINT64_MAX / 10000 - 1,
    UINT64_MAX / 100000 - 1,
    UINT64_MAX / 1000000 - 1,
    UINT64_MAX / 10000000 - 1,
};

/* Eight digits' values, or values over 9 for what else stands there. */
static inline uint64_t load_digits(const char *at, const char *end) {
    return wire_load_word(at, end) ^ WIRE_ALL_BYTES('0');
}

/* How many digits there are before anything else comes, 0..7; the eighth does not count.
 */
static inline unsigned count_digits(uint64_t digits) {
    /* The top bit of each byte that is none; right up to the first of them. */
    uint64_t none =
        ((digits + WIRE_ALL_BYTES(0x80 - 10)) | digits) & WIRE_ALL_BYTES(0x80);
    return (unsigned)__builtin_ctzll(none | UINT64_C(1) << 63) / 8;
}

/* The value of the first `count`, 0..7: zeros are moved in before them, then pairs are
 * added up, pairs of pairs, and all. */
static inline uint64_t value_of(uint64_t digits, uint64_t count) {
    const uint64_t pairs = UINT64_C(0x000000FF000000FF);
    digits = digits << 8 << 8 * (WORD_DIGITS - count);
    digits = digits * 10 + (digits >> 8);
    return ((digits & pairs) * (100 + (UINT64_C(1000000) << 32)) +
            (digits >> 16 & pairs) * (1 + (UINT64_C(10000) << 32))) >>
           32;
}

static const char *skip_digits(const char *at, const char *end) {
    unsigned count;
    do {
        count = count_digits(load_digits(at, end));
        at += count;
    } while (count == WORD_DIGITS);
    return at;
}

const char *wire_number_end(const char *at, const char *end) {
    at += wire_peek(at, end) == '-';
    const char *first = at;
    at = skip_digits(at, end);
    if (at == first || (*first == '0' && at - first > 1))
        return NULL;
    if (wire_peek(at, end) == '.') {
        first = ++at;
        at = skip_digits(at, end);
        if (at == first)
            return NULL;
    }
    if ((wire_peek(at, end) | 0x20) == 'e') {
        at++;
        at += wire_peek(at, end) == '-' || wire_peek(at, end) == '+';
        first = at;
        at = skip_digits(at, end);
        if (at == first)
            return NULL;
    }
    return at;
}

static locale_t c_locale; /* set once, before threads */

bool wire_floats_init(void) {
    if (c_locale == (locale_t)0)
        c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c_locale != (locale_t)0;
}

/* Reads the number at `at`, which something that is not part of it follows. */
static enum wire_stop read_by_library(const char *at, double *ret_number) {
    assert(c_locale != (locale_t)0); /* wire_init() was called */
    *ret_number = strtod_l(at, NULL, c_locale);
    return fabs(*ret_number) < FLOAT_OVERFLOW ? WIRE_STOP_CLOSED : WIRE_STOP_RANGE;
}

/* Rounds w * 10^power, or w plus less than one when w has 19 digits; false when that
 * takes more care. */
static inline bool round_decimal(uint64_t w, int64_t power, bool negative,
                                 float *ret_number) {
    if (w == 0) {
        *ret_number = negative ? -0.0F : 0.0F;
        return true;
    }
    if (power < WIRE_READ_POWERS_MIN || power > WIRE_READ_POWERS_MAX)
        return false;
    int zeros = __builtin_clzll(w);
    uint64_t bits = (uint64_t)((uint128)(w << zeros) *
                                   wire_read_powers[power - WIRE_READ_POWERS_MIN] >>
                               64);
    int half = (int)(~bits >> 63); /* the product of two that start with 1 */
    bits <<= half;
    /* 217706 / 2^16 is log2(10), close enough for these powers. The first bit counts
     * 2^exponent. */
    int exponent = (int)(power * 217706 >> 16) + 64 - zeros - half;
    /* The error is at most 24 in the last place, and a double's last place counts 2^11:
     * within half of that, rounding to double may land on the middle. */
    uint64_t from_middle = (bits << 24) - (UINT64_C(1) << 63) + (UINT64_C(1) << 35);
    if (from_middle < UINT64_C(1) << 36)
        return false;
    if (exponent < -126 || exponent > 126)
        return false;
    uint32_t fraction = (uint32_t)(bits >> 40) + (uint32_t)(bits >> 39 & 1);
    uint32_t number =
        ((uint32_t)negative << 31) + ((uint32_t)(exponent + 126) << 23) + fraction;
    memcpy(ret_number, &number, sizeof number);
    return true;
}

/* A decimal whose digits do not fit in 64 bits: takes 19 of them from `first` on and
 * returns the power of ten that the last of them counts. */
static int64_t cut_digits(const char *first, const char *end, uint64_t *ret_w) {
    uint64_t w = 0;
    int count = 0;
    int64_t power = 0;
    bool fraction = false;
    for (const char *c = first; c < end; c++) {
        if (*c == '.') {
            fraction = true;
        } else if (count < DIGITS_MAX) {
            w = w * 10 + (uint64_t)(*c - '0');
            count += w > 0;
            power -= fraction;
        } else {
            power += !fraction;
        }
    }
    *ret_w = w;
    return power;
}

/* Reads an exponent, past its 'e'; NULL when there is none. */
static const char *read_exponent(const char *at, const char *end, int64_t *power) {
    bool negative = wire_peek(at, end) == '-';
    at += negative || wire_peek(at, end) == '+';
    const char *first = at;
    int64_t exponent = 0;
    for (; (unsigned char)(wire_peek(at, end) - '0') < 10; at++) {
        if (exponent < EXPONENT_MAX)
            exponent = exponent * 10 + (*at - '0');
    }
    *power += negative ? -exponent : exponent;
    return at > first ? at : NULL;
}

/* Reads digits into *w, which wraps when they are too many; false when there are none. */
static bool read_digits(const char **at, const char *end, uint64_t *w) {
    const char *first = *at;
    unsigned count;
    do {
        uint64_t digits = load_digits(*at, end);
        count = count_digits(digits);
        *w = *w * ten_to[count] + value_of(digits, count);
        *at += count;
    } while (count == WORD_DIGITS);
    return *at > first;
}

/* Reads any number and sets *at to what follows it; leaves it there when there is none.
 */
__attribute__((noinline)) static enum wire_stop
read_number(const char **at, const char *end, float *ret_number, double *ret_refused) {
    const char *c = *at;
    bool negative = wire_peek(c, end) == '-';
    c += negative;
    const char *first = c;
    uint64_t w = 0;
    if (!read_digits(&c, end, &w) || (*first == '0' && c - first > 1))
        return WIRE_STOP_NO_NUMBER;
    int64_t power = 0;
    if (wire_peek(c, end) == '.') {
        const char *point = ++c;
        if (!read_digits(&c, end, &w))
            return WIRE_STOP_NO_NUMBER;
        power = point - c;
    }
    if (c - first > DIGITS_MAX)
        power = cut_digits(first, c, &w);
    if ((wire_peek(c, end) | 0x20) == 'e') {
        c = read_exponent(c + 1, end, &power);
        if (c == NULL)
            return WIRE_STOP_NO_NUMBER;
    }
    if (!round_decimal(w, power, negative, ret_number)) {
        /* strtod() needs something to stop at; a list that ends here has no end. */
        double number = 0;
        enum wire_stop stop = c < end ? read_by_library(*at, &number) : WIRE_STOP_CLOSED;
        if (stop != WIRE_STOP_CLOSED) {
            *ret_refused = number;
            return stop;
        }
        *ret_number = (float)number;
    }
    *at = c;
    return WIRE_STOP_CLOSED;
}

/* Reads the fraction after a point into *w; false when it has more than 21 digits or too
 * many for 64 bits, or none. Seven at a time, because what tools print has 15 to 19 or 6
 * to 9: each number of a text then takes the same branches. */
static inline bool read_fraction(const char **at, const char *end, uint64_t *w) {
    const char *c = *at;
    uint64_t digits = load_digits(c, end), sum = *w;
    unsigned count = count_digits(digits);
    for (int words = 0; count == WORD_DIGITS && words < 2; words++) {
        sum = sum * ten_to[WORD_DIGITS] + value_of(digits, WORD_DIGITS);
        c += WORD_DIGITS;
        digits = load_digits(c, end);
        count = count_digits(digits);
    }
    if (sum >= room_for[count] || c + count == *at)
        return false;
    *w = sum * ten_to[count] + value_of(digits, count);
    *at = c + count;
    return true;
}

/* Reads a number as most of them are, not too long and with a comma after it; `at` has
 * FAST_BYTES. False when it is another. */
static inline bool read_fast(const char **at, float *ret_number) {
    const char *c = *at, *const end = c + FAST_NUMBER;
    bool negative = *c == '-';
    c += negative;
    uint64_t w = (uint64_t)(unsigned char)*c - '0';
    int64_t power = 0;
    if (c[1] == '.' && w < 10) {
        c++;
    } else if (c[1] == ',' && w < 10) {
        *ret_number = negative ? -(float)w : (float)w;
        *at = c + 1;
        return true;
    } else {
        uint64_t digits = load_digits(c, end);
        unsigned count = count_digits(digits);
        if (count == 0 || count > FAST_WHOLE || (w == 0 && count > 1))
            return false;
        w = value_of(digits, count);
        c += count;
    }
    if (*c == '.') {
        const char *point = ++c;
        if (!read_fraction(&c, end, &w))
            return false;
        power = point - c;
    }
    if ((*c | 0x20) == 'e') {
        c = read_exponent(c + 1, end, &power);
        if (c == NULL)
            return false;
    }
    *at = c;
    return *c == ',' && round_decimal(w, power, negative, ret_number);
}

/* Not inlined, so that it stays out of the way where there is nothing to skip. */
__attribute__((noinline)) static const char *skip_run(const char *at, const char *end) {
    return wire_skip_space(at, end);
}

/* Reads numbers as long as they are as most are, each with its comma. */
static inline void read_many(struct wire_floats *floats) {
    const char *at = floats->at, *const last = floats->end - FAST_BYTES;
    float *out = floats->out, *const out_end = floats->out_end;
    while (at <= last && out < out_end) {
        const char *number = at;
        if (!read_fast(&at, out)) {
            at = number;
            break;
        }
        out++;
        at++;
        at += *at == ' ';
        if ((unsigned char)*at <= ' ')
            at = skip_run(at, floats->end);
    }
    floats->at = at;
    floats->out = out;
}

enum wire_stop wire_floats_read(struct wire_floats *floats) {
    const char *const end = floats->end;
    for (;;) {
        floats->at = skip_run(floats->at, end);
        if (end - floats->at > FAST_BYTES)
            read_many(floats);
        if (floats->out == floats->out_end)
            return WIRE_STOP_FULL;
        enum wire_stop stop =
            read_number(&floats->at, end, floats->out, &floats->refused);
        if (stop != WIRE_STOP_CLOSED)
            return stop;
        floats->out++;
        floats->at = skip_run(floats->at, end);
        if (wire_peek(floats->at, end) != ',')
            return wire_peek(floats->at, end) == ']' ? WIRE_STOP_CLOSED
                                                     : WIRE_STOP_NO_COMMA;
        floats->at++;
    }
}
