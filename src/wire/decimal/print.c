/* SPDX-License-Identifier: Apache-2.0 */
/* print.c: finds the shortest decimal of a float32 by Schubfach (Raffaello Giulietti,
 * "The Schubfach way to render doubles", 2020), and writes its text.
 *
 * A float is c * 2^q. The numbers between the midpoints to its neighbours read back to
 * it. The width of that interval is 2^q; let 10^k <= 2^q < 10^(k+1). Then the interval
 * has at least one multiple of 10^k, and at most one of 10^(k+1). The shortest decimal is
 * the latter if there is one, and otherwise the closest multiple of 10^k. So no digits
 * have to be tried one by one. */
#include "wire/decimal/print.h"

#include "wire/decimal/powers.h"
#include "wire/decimal/print_avx2.h"

#include <stdbool.h>
#include <string.h>

#define FRACTION_BITS  23
#define EXPONENT_BIAS  150 /* of c * 2^q with c an integer */
#define DIGITS_MAX     9   /* enough for every float32 (FLT_DECIMAL_DIG) */
#define POSITIONAL_MIN (-5)
#define POSITIONAL_MAX 12
#define EIGHT_ZEROS    UINT64_C(0x3030303030303030) /* characters */

__extension__ typedef unsigned __int128 uint128;

/* digits * 10^power */
struct decimal {
    uint32_t digits; /* below 10^9; may end in zeros */
    int power;
};

/* The next three are floor(log10(2^q)), floor(log10(3/4 * 2^q)) and floor(log2(10^e)).
 * The logarithms are integers over powers of two, and the results are exact for every
 * exponent of a float32 (sections 5 and 6 of the paper; the tests print all exponents).
 * Shifts are arithmetic. */
static int log10_of_power_of_two(int q) {
    return (q * 1262611) >> 22;
}

static int log10_of_three_quarters(int q) {
    return (q * 1262611 - 524031) >> 22;
}

static int log2_of_power_of_ten(int e) {
    return (e * 1741647) >> 19;
}

/* Returns x * power / 2^64, made odd when there is a remainder. The result is in
 * quarters, so comparing it gives the same result as comparing the exact product. `power`
 * was rounded up, so a remainder of 1 is ignored. */
static uint32_t scale_by_power(uint64_t power, uint32_t x) {
    uint128 product = (uint128)power * x;
    return (uint32_t)(product >> 64) | ((uint32_t)(product >> 32) > 1);
}

/* Returns the shortest decimal of a positive finite float, given as its bits. No
 * branch depends on the data: a wrong prediction costs as much as all the rest. */
static struct decimal find_shortest_digits(uint32_t bits) {
    uint32_t fraction = bits & ((UINT32_C(1) << FRACTION_BITS) - 1);
    uint32_t exponent = bits >> FRACTION_BITS;
    uint32_t c = exponent > 0 ? fraction | UINT32_C(1) << FRACTION_BITS : fraction;
    int q = (int)(exponent > 0 ? exponent : 1) - EXPONENT_BIAS;
    bool closer_below = fraction == 0 && exponent > 1; /* a power of two */

    int k = closer_below ? log10_of_three_quarters(q) : log10_of_power_of_two(q);
    uint64_t power = wire_powers[-k - WIRE_POWERS_MIN] + 1; /* rounded up */
    uint32_t unit = UINT32_C(1) << (q + log2_of_power_of_ten(-k) + 1);
    /* The value and the ends of its interval, in quarters of 10^k. The ends themselves
     * read back when c is even, since reading rounds to even. */
    uint32_t value = scale_by_power(power, 4 * c * unit);
    uint32_t low = scale_by_power(power, (4 * c - 2 + closer_below) * unit) + (c & 1);
    uint32_t high = scale_by_power(power, (4 * c + 2) * unit) - (c & 1);

    /* The closer multiple of 10^k, ties to even. It may be outside the interval where
     * that is shorter below the value; then the one above is used. */
    uint32_t ones = value / 4;
    bool up = (value % 4 + ones % 2 > 2) | (low > 4 * ones);
    uint32_t digits = ones + up;

    /* The multiple of 10^(k+1), if there is one. */
    uint32_t tens = ones / 10;
    bool below = low <= 40 * tens, above = 40 * tens + 40 <= high;
    uint32_t mask = -(uint32_t)(below | above);
    digits = (10 * (tens + above) & mask) | (digits & ~mask);
    return (struct decimal){digits, k};
}

/* Returns the decimal with nine digits, the first of them not 0, and with the power of
 * the first digit. Only subnormals have fewer than seven digits, since c has 24 bits. */
static struct decimal normalise(struct decimal decimal) {
    static const uint32_t factors[] = {1, 10, 100};
    while (__builtin_expect(decimal.digits < 1000000, 0)) {
        decimal.digits *= 10;
        decimal.power--;
    }
    int missing = (decimal.digits < 10000000) + (decimal.digits < 100000000);
    return (struct decimal){decimal.digits * factors[missing],
                            decimal.power + DIGITS_MAX - 1 - missing};
}

/* Returns the eight digits of a value less than 10^8, one in each byte, the first in the
 * lowest. The lanes of a word are halved three times: 8 digits, 4 and 4, ... (SWAR). */
static uint64_t split_digits(uint32_t value) {
    uint64_t lanes = value / 10000 | (uint64_t)(value % 10000) << 32;
    uint64_t high = ((lanes * 10486) >> 20) & UINT64_C(0x0000007F0000007F); /* / 100 */
    lanes = high | (lanes - high * 100) << 16;
    high = ((lanes * 103) >> 10) & UINT64_C(0x000F000F000F000F); /* / 10 */
    return high | (lanes - high * 10) << 8;
}

static void put_eight(char *out, uint64_t characters) {
    memcpy(out, &characters, sizeof characters);
}

/* How a positional number is written, by the exponent of its first digit. */
static const struct positions {
    uint8_t first; /* offset of the first digit; the other eight follow it */
    uint8_t point; /* offset of the point */
    uint8_t tail;  /* offset of the digits after the point, which are written again */
    uint8_t skip;  /* bits of the eight digits that are before the point */
    uint8_t min;   /* size, with one digit after the point */
    uint8_t added; /* characters besides the digits of the decimal */
} positions[] = {{6, 1, 7, 0, 0, 6},  {5, 1, 6, 0, 0, 5},  {4, 1, 5, 0, 0, 4},
                 {3, 1, 4, 0, 0, 3},  {2, 1, 3, 0, 0, 2},  {0, 1, 2, 0, 3, 1},
                 {0, 2, 3, 8, 4, 1},  {0, 3, 4, 16, 5, 1}, {0, 4, 5, 24, 6, 1},
                 {0, 5, 6, 32, 7, 1}, {0, 6, 7, 40, 8, 1}, {0, 7, 8, 48, 9, 1},
                 {0, 8, 9, 56, 10, 1}};

/* Writes a number such as "123456789000.0": zeros before the point, and one after it. */
static char *put_large(char *out, char first, uint64_t rest, int exponent) {
    out[0] = first;
    put_eight(out + 1, rest);
    put_eight(out + DIGITS_MAX, EIGHT_ZEROS);
    out[exponent + 1] = '.';
    out[exponent + 2] = '0';
    return out + exponent + 3;
}

/* Writes a number such as "1.5e+20"; it has `count` digits without zeros at the end. */
static char *put_exponent(char *out, char first, uint64_t rest, int count, int exponent) {
    out[0] = first;
    out[1] = '.';
    put_eight(out + 2, rest);
    out += count > 1 ? count + 1 : 1;
    *out++ = 'e';
    *out++ = exponent < 0 ? '-' : '+';
    int size = exponent < 0 ? -exponent : exponent;
    if (size >= 10)
        *out++ = (char)('0' + size / 10);
    *out++ = (char)('0' + size % 10);
    return out;
}

/* Writes first.rest * 10^exponent; `rest` is eight digits, one in each byte. */
static inline char *put_decimal(char *out, char first, uint64_t rest, int exponent) {
    int count = DIGITS_MAX - __builtin_clzll(rest | 1) / 8; /* without zeros at the end */
    count -= rest == 0;
    rest |= EIGHT_ZEROS;

    if (__builtin_expect(exponent >= POSITIONAL_MIN && exponent < 8, 1)) {
        const struct positions *at = &positions[exponent - POSITIONAL_MIN];
        put_eight(out, EIGHT_ZEROS);
        out[at->first] = first;
        put_eight(out + at->first + 1, rest);
        put_eight(out + at->tail, rest >> at->skip);
        out[at->point] = '.';
        int size = count + at->added;
        return out + (size > at->min ? size : at->min);
    }
    if (exponent >= 8 && exponent <= POSITIONAL_MAX)
        return put_large(out, first, rest, exponent);
    return put_exponent(out, first, rest, count, exponent);
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

size_t wire_float_print(float value, char text[WIRE_FLOAT_PRINT_ROOM]) {
    uint32_t bits = bits_of(value);
    char *out = text;

    *out = '-';
    out += bits >> 31;
    bits &= INT32_MAX;
    if (bits == 0) {
        put_eight(out, EIGHT_ZEROS);
        out[1] = '.';
        return (size_t)(out + 3 - text);
    }

    struct decimal decimal = normalise(find_shortest_digits(bits));
    char first = (char)('0' + decimal.digits / 100000000);
    out =
        put_decimal(out, first, split_digits(decimal.digits % 100000000), decimal.power);
    return (size_t)(out - text);
}

/* Prints a batch, whose digits are found together. */
static char *put_batch(char *out, const float *values) {
    struct wire_digits digits;
    wire_digits_find(values, &digits);

    for (size_t i = 0; i < WIRE_DIGITS_BATCH; i++) {
        if (__builtin_expect(digits.special[i] != 0, 0)) {
            out += wire_float_print(values[i], out);
        } else {
            *out = '-';
            out += bits_of(values[i]) >> 31;
            out = put_decimal(out, (char)('0' + digits.first[i]), digits.rest[i],
                              (int)digits.exponent[i]);
        }
        *out++ = ',';
    }
    return out;
}

char *wire_floats_print(const float *values, size_t count, char *text) {
    size_t i = 0;
    for (; i + WIRE_DIGITS_BATCH <= count && wire_digits_available();
         i += WIRE_DIGITS_BATCH)
        text = put_batch(text, values + i);
    for (; i < count; i++) {
        text += wire_float_print(values[i], text);
        *text++ = ',';
    }
    return text;
}
