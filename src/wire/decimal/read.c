/* SPDX-License-Identifier: Apache-2.0 */
/* read.c: converts decimals to float32.
 *
 * A decimal is w * 10^p, where w has up to 19 digits. w times the first 64 bits of 10^p
 * gives the first 62 bits of the value. These suffice to round to the 24 bits of a
 * float32, unless the value is very close to the middle of two float32. Then strtod()
 * decides: about once in 10^8 random numbers, and for every number exactly in the middle.
 * It also reads numbers that are not a normal float32. So the arithmetic here need not be
 * exact; it must only detect when it may be wrong. */
#include "wire/decimal/read.h"

#include "wire/decimal/bytes.h"
#include "wire/decimal/powers.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 uint128;

/* Halfway from the largest float32 to 2^128: numbers from here on round to infinity. */
#define FLOAT_OVERFLOW 0x1.ffffffp127

#define WORD_DIGITS     7  /* digits that are read at a time */
#define FAST_INT_DIGITS 5  /* before the point; two words more fit in 64 bits */
#define FAST_NUMBER     44 /* bytes of a number that read_fast() reads */
#define FAST_BYTES      48 /* with its comma and a space */
#define DIGITS_MAX      19 /* that always fit in a uint64_t */
/* DIGITS_MAX digits times a power up to this, from WIRE_POWERS_MIN on, give every normal
 * float32. */
#define POWER_MAX 38
/* An exponent past this is out of range for any number of digits that a text can have. */
#define EXPONENT_MAX INT64_C(1000000000000000)

static const uint64_t ten_to[WORD_DIGITS + 1] = {1,     10,     100,     1000,
                                                 10000, 100000, 1000000, 10000000};

/* w * ten_to[n] + n digits fit in 64 bits when w is less than w_limits[n]. */
static const uint64_t w_limits[WORD_DIGITS + 1] = {
    UINT64_MAX,
    UINT64_MAX / 10 - 1,
    UINT64_MAX / 100 - 1,
    UINT64_MAX / 1000 - 1,
    UINT64_MAX / 10000 - 1,
    UINT64_MAX / 100000 - 1,
    UINT64_MAX / 1000000 - 1,
    UINT64_MAX / 10000000 - 1,
};

/* Returns the values of the next eight digits, and values over 9 for other bytes. */
static inline uint64_t load_digits(const char *at, const char *end) {
    return wire_load_word(at, end) ^ WIRE_ALL_BYTES('0');
}

/* Returns how many digits come first, 0..7; the eighth byte does not count. */
static inline unsigned count_digits(uint64_t digits) {
    /* The top bit of each byte that is not a digit; exact up to the first of them. */
    uint64_t none =
        ((digits + WIRE_ALL_BYTES(0x80 - 10)) | digits) & WIRE_ALL_BYTES(0x80);
    return (unsigned)__builtin_ctzll(none | UINT64_C(1) << 63) / 8;
}

/* Returns the value of the first `count` digits, 0..7. Zeros are shifted in before them;
 * then pairs are added up, pairs of pairs, and all. */
static inline uint64_t digits_value(uint64_t digits, uint64_t count) {
    const uint64_t pairs = UINT64_C(0x000000FF000000FF);
    digits = digits << 8 << 8 * (WORD_DIGITS - count);
    digits = digits * 10 + (digits >> 8);
    return ((digits & pairs) * (100 + (UINT64_C(1000000) << 32)) +
            (digits >> 16 & pairs) * (1 + (UINT64_C(10000) << 32))) >>
           32;
}

/* Rounds w * 10^power. A w of 19 digits may be too small, by less than 1. Returns false
 * when strtod() must decide. */
static inline bool round_decimal(uint64_t w, int64_t power, bool negative,
                                 float *ret_number) {
    if (w == 0) {
        *ret_number = negative ? -0.0F : 0.0F;
        return true;
    }
    if (power < WIRE_POWERS_MIN || power > POWER_MAX)
        return false;

    int zeros = __builtin_clzll(w);
    uint64_t bits =
        (uint64_t)((uint128)(w << zeros) * wire_powers[power - WIRE_POWERS_MIN] >> 64);
    int half = (int)(~bits >> 63); /* factors begin with 1, the product with 1 or 01 */
    bits <<= half;
    /* 217706 / 2^16 is close enough to log2(10) for these powers. The first bit has the
     * value 2^exponent. */
    int exponent = (int)(power * 217706 >> 16) + 64 - zeros - half;
    /* The error is at most 24 in the last place. The last place of a double is 2^11 here:
     * within half of that, rounding to double first may give exactly the middle. */
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

/* Reads the first 19 significant digits of a decimal whose digits do not fit in 64 bits.
 * Returns the power of ten of the last of them. */
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

/* Reads the exponent after an 'e' and adds it to *power. Returns its end, or NULL when
 * there is none. */
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

/* Appends digits to *w, which wraps when there are too many. Returns false when there are
 * none. */
__attribute__((always_inline)) static inline bool
read_digits(const char **at, const char *end, uint64_t *w) {
    const char *first = *at;
    unsigned count;
    do {
        uint64_t digits = load_digits(*at, end);
        count = count_digits(digits);
        *w = *w * ten_to[count] + digits_value(digits, count);
        *at += count;
    } while (count == WORD_DIGITS);
    return *at > first;
}

/* Reads the decimal w * 10^power without its sign. Returns its end, or NULL when there is
 * none. Inlined like the above, so that only who needs the value computes it. */
__attribute__((always_inline)) static inline const char *
read_decimal(const char *at, const char *end, uint64_t *ret_w, int64_t *ret_power) {
    const char *first = at;
    *ret_w = 0;
    *ret_power = 0;

    /* The grammar: digits, a fraction, an exponent. */
    if (!read_digits(&at, end, ret_w) || (*first == '0' && at - first > 1))
        return NULL;
    if (wire_peek(at, end) == '.') {
        const char *point = ++at;
        if (!read_digits(&at, end, ret_w))
            return NULL;
        *ret_power = point - at;
    }
    if (at - first > DIGITS_MAX)
        *ret_power = cut_digits(first, at, ret_w);
    if ((wire_peek(at, end) | 0x20) == 'e')
        at = read_exponent(at + 1, end, ret_power);
    return at;
}

const char *wire_number_end(const char *at, const char *end) {
    uint64_t w;
    int64_t power;
    return read_decimal(at + (wire_peek(at, end) == '-'), end, &w, &power);
}

/* Reads any number and sets *at to its end, or leaves *at when there is no number. */
__attribute__((noinline)) static enum wire_stop
read_number(const char **at, const char *end, float *ret_number, double *ret_refused) {
    bool negative = wire_peek(*at, end) == '-';
    uint64_t w;
    int64_t power;

    const char *c = read_decimal(*at + negative, end, &w, &power);
    if (c == NULL)
        return WIRE_STOP_NO_NUMBER;
    if (!round_decimal(w, power, negative, ret_number)) {
        /* strtod() needs a byte to stop at. Without one the list has no end, and the
         * number does not matter. */
        double number = c < end ? strtod(*at, NULL) : 0;
        if (fabs(number) >= FLOAT_OVERFLOW) {
            *ret_refused = number;
            return WIRE_STOP_RANGE;
        }
        *ret_number = (float)number;
    }
    *at = c;
    return WIRE_STOP_CLOSED;
}

/* Appends the digits after a point to *w. Returns false when there are none, more than
 * 21, or more than fit in 64 bits. Seven are read at a time, because tools print 6 to
 * 9 digits or 15 to 19: each number of a text then takes the same branches. */
static inline bool read_fraction(const char **at, const char *end, uint64_t *w) {
    const char *c = *at;
    uint64_t digits = load_digits(c, end), sum = *w;
    unsigned count = count_digits(digits);
    for (int words = 0; count == WORD_DIGITS && words < 2; words++) {
        sum = sum * ten_to[WORD_DIGITS] + digits_value(digits, WORD_DIGITS);
        c += WORD_DIGITS;
        digits = load_digits(c, end);
        count = count_digits(digits);
    }
    if (sum >= w_limits[count] || c + count == *at)
        return false;
    *w = sum * ten_to[count] + digits_value(digits, count);
    *at = c + count;
    return true;
}

/* Reads a number of the usual form: not too long, and with a comma after it. There must
 * be FAST_BYTES at *at. Returns false when it has another form. */
static inline bool read_fast(const char **at, float *ret_number) {
    const char *c = *at, *const end = c + FAST_NUMBER;
    bool negative = *c == '-';
    c += negative;
    uint64_t w = (uint64_t)(unsigned char)*c - '0';
    int64_t power = 0;

    /* The digits before the point. A single digit is not loaded as a word. */
    if (c[1] == '.' && w < 10) {
        c++;
    } else if (c[1] == ',' && w < 10) {
        *ret_number = negative ? -(float)w : (float)w;
        *at = c + 1;
        return true;
    } else {
        uint64_t digits = load_digits(c, end);
        unsigned count = count_digits(digits);
        if (count == 0 || count > FAST_INT_DIGITS || (w == 0 && count > 1))
            return false;
        w = digits_value(digits, count);
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

/* Not inlined, since there is rarely anything to skip. */
__attribute__((noinline)) static const char *skip_run(const char *at, const char *end) {
    return wire_skip_space(at, end);
}

/* Reads numbers with their commas, as long as they have the usual form. */
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

        /* The first number that does not have the usual form. */
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
