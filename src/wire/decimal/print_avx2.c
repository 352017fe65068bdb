/* SPDX-License-Identifier: Apache-2.0 */
/* print_avx2.c: the arithmetic of print.c, step by step, for four numbers in the four
 * 64-bit lanes of an AVX2 vector. No value but a product needs more than 33 bits, so
 * lanes can be compared as signed numbers. */
#include "wire/decimal/print_avx2.h"

#ifdef __x86_64__
#include "wire/decimal/powers.h"

#include <immintrin.h>
#include <string.h>

#define AVX2          __attribute__((target("avx2")))
#define LANES         4
#define ALL(x)        ((lanes){(x), (x), (x), (x)})
#define EXPONENT_BIAS UINT64_C(150) /* of c * 2^q with c an integer */
#define BIAS          UINT64_C(64)  /* added to powers of ten, to keep lanes positive */
#define LOG2_BIAS     UINT64_C(512) /* added to powers of two */
#define EIGHT_ZEROS   100000000
/* A product with one of these, shifted to the right, is a quotient. */
#define DIVIDE_BY_10   3435973837U /* >> 35 */
#define DIVIDE_BY_10_4 3518437209U /* >> 45 */
#define DIVIDE_BY_5_8  1441151881U /* >> 49; with the dividend >> 8, it is by 10^8 */

typedef uint64_t lanes __attribute__((vector_size(32)));
typedef int64_t signed_lanes __attribute__((vector_size(32)));
typedef uint32_t half_lanes __attribute__((vector_size(32)));
typedef uint16_t quarter_lanes __attribute__((vector_size(32)));

/* Returns lanes with all bits set where a > b, and with none elsewhere. */
AVX2 static inline lanes greater(lanes a, lanes b) {
    return (lanes)((signed_lanes)a > (signed_lanes)b);
}

/* Returns the product of the lower halves of the lanes. */
AVX2 static inline lanes multiply(lanes a, lanes b) {
    return (lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

/* Returns x * power / 2^64, made odd when there is a remainder. */
AVX2 static inline lanes scale_lanes(lanes power, lanes x) {
    lanes product = multiply(power >> 32, x) + (multiply(power, x) >> 32);
    return product >> 32 | (greater(product & UINT32_MAX, ALL(1)) & 1);
}

/* Returns the multiple of 10^(k+1) in the interval, or else the closest one of 10^k. */
AVX2 static inline lanes choose_decimal(lanes value, lanes low, lanes high) {
    lanes ones = value >> 2;
    lanes up = (greater((value & 3) + (ones & 1), ALL(2)) | greater(low, ones << 2)) & 1;
    lanes tens = multiply(ones, ALL(DIVIDE_BY_10)) >> 35;
    lanes forty = multiply(tens, ALL(40));
    lanes below = ~greater(low, forty), above = ~greater(forty + 40, high);
    lanes shorter = multiply(tens + (above & 1), ALL(10)), is_in = below | above;
    return (shorter & is_in) | ((ones + up) & ~is_in);
}

/* Returns the eight digits of values less than 10^8, one in each byte. */
AVX2 static inline lanes split_digit_lanes(lanes value) {
    lanes high = multiply(value, ALL(DIVIDE_BY_10_4)) >> 45;
    half_lanes fours = (half_lanes)(high | (value - multiply(high, ALL(10000))) << 32);
    half_lanes hundreds = (fours * 10486) >> 20;
    quarter_lanes pairs = (quarter_lanes)(hundreds | (fours - hundreds * 100) << 16);
    quarter_lanes tens = (pairs * 103) >> 10;
    return (lanes)(tens | (quarter_lanes)((pairs - tens * 10) << 8));
}

AVX2 static void find_four(const uint32_t *bits, uint64_t *ret_first, uint64_t *ret_rest,
                           int64_t *ret_exponent, uint64_t *ret_special) {
    /* c of c * 2^q, and the biased q. Special values take the q of the smallest normal
     * ones, because the table ends there. */
    __m128i four;
    memcpy(&four, bits, sizeof four);
    lanes number = (lanes)_mm256_cvtepu32_epi64(four) & INT32_MAX;
    lanes fraction = number & 0x7fffff, c = fraction | 0x800000;
    lanes special = ~greater(number >> 23, ALL(0));
    lanes exponent = (number >> 23) + (special & 1);
    lanes closer_below = ~greater(fraction, ALL(0)) & greater(exponent, ALL(1)) & 1;

    /* k is floor(log10(2^q)), or that of 3/4 * 2^q. Then the power and its shift, and the
     * interval in quarters of 10^k. */
    lanes k = (multiply(exponent, ALL(1262611)) + (BIAS << 22) - EXPONENT_BIAS * 1262611 -
               multiply(closer_below, ALL(524031))) >>
              22;
    lanes index = (BIAS - WIRE_POWERS_MIN) - k;
    lanes power = (lanes)_mm256_i64gather_epi64((const long long *)wire_powers,
                                                (__m256i)index, sizeof *wire_powers);
    power += 1; /* rounded up */
    lanes log2 =
        (multiply(2 * BIAS - k, ALL(1741647)) + (LOG2_BIAS << 19) - BIAS * 1741647) >> 19;
    lanes shift = exponent + log2 - (EXPONENT_BIAS + LOG2_BIAS - 1);
    lanes value = scale_lanes(power, (c << 2) << shift);
    lanes low = scale_lanes(power, ((c << 2) - 2 + closer_below) << shift) + (c & 1);
    lanes high = scale_lanes(power, ((c << 2) + 2) << shift) - (c & 1);

    /* Nine digits. There are at least seven, since c has 24 bits. */
    lanes digits = choose_decimal(value, low, high);
    lanes lacks_one = greater(ALL(EIGHT_ZEROS), digits);
    lanes lacks_two = greater(ALL(EIGHT_ZEROS / 10), digits);
    digits = multiply(digits, 1 + (lacks_one & 9) + (lacks_two & 90));
    lanes first = multiply(digits >> 8, ALL(DIVIDE_BY_5_8)) >> 49;
    lanes rest = split_digit_lanes(digits - multiply(first, ALL(EIGHT_ZEROS)));
    k += lacks_one + lacks_two + 8 - BIAS; /* lanes that lack a digit are -1 */

    memcpy(ret_first, &first, sizeof first);
    memcpy(ret_rest, &rest, sizeof rest);
    memcpy(ret_exponent, &k, sizeof k);
    memcpy(ret_special, &special, sizeof special);
}

#else
#define AVX2
#endif

bool wire_digits_available(void) {
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

AVX2 void wire_digits_find(const float values[WIRE_DIGITS_BATCH],
                           struct wire_digits *ret_digits) {
#ifdef __x86_64__
    uint32_t bits[WIRE_DIGITS_BATCH];
    memcpy(bits, values, sizeof bits);
    for (size_t i = 0; i < WIRE_DIGITS_BATCH; i += LANES)
        find_four(bits + i, ret_digits->first + i, ret_digits->rest + i,
                  ret_digits->exponent + i, ret_digits->special + i);
#else
    (void)values;
    (void)ret_digits;
#endif
}
