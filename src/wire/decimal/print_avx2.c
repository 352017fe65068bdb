/* SPDX-License-Identifier: Apache-2.0 */
/* print_avx2.c: the arithmetic of print.c, step by step the same, for four numbers
 * in the four 64-bit lanes of an AVX2 vector. No value needs more than 33 bits but the
 * products, so lanes may be compared as signed numbers. */
#include "wire/decimal/print_avx2.h"

#ifdef __x86_64__
#include "wire/decimal/print_powers.h"

#include <immintrin.h>
#include <string.h>

#define AVX2           __attribute__((target("avx2")))
#define LANES          4
#define ALL(x)         ((lanes){(x), (x), (x), (x)})
#define EXPONENT_BIAS  UINT64_C(150) /* of c * 2^q with c an integer */
#define BIAS           UINT64_C(64) /* added to powers of ten, so that lanes stay positive */
#define LOG2_BIAS      UINT64_C(512) /* likewise, to powers of two */
#define EIGHT_ZEROS    100000000
#define DIVIDE_BY_10   3435973837U /* >> 35 */
#define DIVIDE_BY_10_4 3518437209U /* >> 45 */
#define DIVIDE_BY_5_8  1441151881U /* >> 49, of 1/2^8 of the dividend: by 10^8 */

typedef uint64_t lanes __attribute__((vector_size(32)));
typedef int64_t signed_lanes __attribute__((vector_size(32)));
typedef uint32_t half_lanes __attribute__((vector_size(32)));
typedef uint16_t quarter_lanes __attribute__((vector_size(32)));

/* All bits of the lanes where a > b. */
AVX2 static inline lanes greater(lanes a, lanes b) {
    return (lanes)((signed_lanes)a > (signed_lanes)b);
}

/* The product of the lower halves. */
AVX2 static inline lanes multiply(lanes a, lanes b) {
    return (lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

/* x * power / 2^64, where any rest makes the result odd. */
AVX2 static inline lanes scale(lanes power, lanes x) {
    lanes product = multiply(power >> 32, x) + (multiply(power, x) >> 32);
    return product >> 32 | (greater(product & UINT32_MAX, ALL(1)) & 1);
}

/* The multiple of 10^k, or of 10^(k+1) if there is one, that is the shortest decimal. */
AVX2 static inline lanes choose(lanes value, lanes low, lanes high) {
    lanes ones = value >> 2;
    lanes up = (greater((value & 3) + (ones & 1), ALL(2)) | greater(low, ones << 2)) & 1;
    lanes tens = multiply(ones, ALL(DIVIDE_BY_10)) >> 35;
    lanes forty = multiply(tens, ALL(40));
    lanes below = ~greater(low, forty), above = ~greater(forty + 40, high);
    lanes shorter = multiply(tens + (above & 1), ALL(10)), is_in = below | above;
    return (shorter & is_in) | ((ones + up) & ~is_in);
}

/* Eight digits of values below 10^8, one in each byte. */
AVX2 static inline lanes split(lanes value) {
    lanes high = multiply(value, ALL(DIVIDE_BY_10_4)) >> 45;
    half_lanes fours = (half_lanes)(high | (value - multiply(high, ALL(10000))) << 32);
    half_lanes hundreds = (fours * 10486) >> 20;
    quarter_lanes pairs = (quarter_lanes)(hundreds | (fours - hundreds * 100) << 16);
    quarter_lanes tens = (pairs * 103) >> 10;
    return (lanes)(tens | (quarter_lanes)((pairs - tens * 10) << 8));
}

AVX2 static void find_four(const uint32_t *bits, uint64_t *ret_first, uint64_t *ret_rest,
                           int64_t *ret_exponent, uint64_t *ret_special) {
    __m128i four;
    memcpy(&four, bits, sizeof four);
    lanes number = (lanes)_mm256_cvtepu32_epi64(four) & INT32_MAX;
    lanes fraction = number & 0x7fffff, exponent = number >> 23, c = fraction | 0x800000;
    lanes closer_below = ~greater(fraction, ALL(0)) & greater(exponent, ALL(1)) & 1;

    /* k = floor(log10(2^q)), or of 3/4 * 2^q; then the power's shift, and the interval in
     * quarters of 10^k. */
    lanes k = (multiply(exponent, ALL(1262611)) + (BIAS << 22) - EXPONENT_BIAS * 1262611 -
               multiply(closer_below, ALL(524031))) >>
              22;
    lanes index = (BIAS - PRINT_POWERS_MIN) - k;
    lanes power = (lanes)_mm256_i64gather_epi64((const long long *)print_powers,
                                                (__m256i)index, sizeof *print_powers);
    lanes log2 =
        (multiply(2 * BIAS - k, ALL(1741647)) + (LOG2_BIAS << 19) - BIAS * 1741647) >> 19;
    lanes shift = exponent + log2 - (EXPONENT_BIAS + LOG2_BIAS - 1);
    lanes value = scale(power, (c << 2) << shift);
    lanes low = scale(power, ((c << 2) - 2 + closer_below) << shift) + (c & 1);
    lanes high = scale(power, ((c << 2) + 2) << shift) - (c & 1);

    /* Nine digits: there are seven at least, as c has 24 bits. */
    lanes digits = choose(value, low, high);
    lanes lacks_one = greater(ALL(EIGHT_ZEROS), digits);
    lanes lacks_two = greater(ALL(EIGHT_ZEROS / 10), digits);
    digits = multiply(digits, 1 + (lacks_one & 9) + (lacks_two & 90));
    lanes first = multiply(digits >> 8, ALL(DIVIDE_BY_5_8)) >> 49;
    lanes rest = split(digits - multiply(first, ALL(EIGHT_ZEROS)));
    k += lacks_one + lacks_two + 8 - BIAS; /* -1 each */
    lanes special = ~greater(exponent, ALL(0));
    memcpy(ret_first, &first, sizeof first);
    memcpy(ret_rest, &rest, sizeof rest);
    memcpy(ret_exponent, &k, sizeof k);
    memcpy(ret_special, &special, sizeof special);
}

bool wire_digits_available(void) {
    return __builtin_cpu_supports("avx2");
}

AVX2 void wire_digits_find(const float values[WIRE_DIGITS_BATCH],
                           struct wire_digits *ret_digits) {
    uint32_t bits[WIRE_DIGITS_BATCH];
    memcpy(bits, values, sizeof bits);
    for (size_t i = 0; i < WIRE_DIGITS_BATCH; i += LANES)
        find_four(bits + i, ret_digits->first + i, ret_digits->rest + i,
                  ret_digits->exponent + i, ret_digits->special + i);
}

#else

bool wire_digits_available(void) {
    return false;
}

void wire_digits_find(const float values[WIRE_DIGITS_BATCH],
                      struct wire_digits *ret_digits) {
    (void)values;
    (void)ret_digits;
}
#endif
