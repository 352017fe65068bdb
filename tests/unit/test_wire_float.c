/* SPDX-License-Identifier: Apache-2.0 */
/* Printed float32: exact, shortest, JSON, and the same text as the plain printer's. */
#include "wire/decimal/print.h"
#include "wire/decimal/print_avx2.h"

#include "float_text_plain.h"
#include "sample.h"
#include "seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void print(float value, char text[WIRE_FLOAT_PRINT_ROOM + 1]) {
    memset(text, '#', WIRE_FLOAT_PRINT_ROOM + 1);
    size_t length = wire_float_print(value, text);
    assert_true(length <= WIRE_FLOAT_PRINT_MAX);
    assert_int_equal(text[WIRE_FLOAT_PRINT_ROOM], '#');
    text[length] = '\0';
}

/* Returns whether the whole text is a number by RFC 8259, section 6. */
static int is_json_number(const char *text) {
    const char *c = text + (*text == '-');
    size_t whole = strspn(c, "0123456789");
    if (whole == 0 || (whole > 1 && *c == '0'))
        return 0;

    c += whole;
    if (*c == '.') {
        size_t fraction = strspn(c + 1, "0123456789");
        if (fraction == 0)
            return 0;
        c += 1 + fraction;
    }

    if (*c == 'e') {
        c += 1 + (c[1] == '-' || c[1] == '+');
        size_t exponent = strspn(c, "0123456789");
        if (exponent == 0)
            return 0;
        c += exponent;
    }
    return *c == '\0';
}

/* Splits a text into its significant digits, as an integer, and the power of ten of the
 * last of them. */
static void take_apart(const char *text, long *ret_digits, int *ret_power) {
    char digits[WIRE_FLOAT_PRINT_MAX + 1];
    int count = 0, power = 0;
    const char *c = text + (*text == '-');

    for (int past_point = 0; *c != '\0' && *c != 'e'; c++) {
        if (*c == '.') {
            past_point = 1;
        } else {
            digits[count++] = *c;
            power -= past_point;
        }
    }
    if (*c == 'e')
        power += atoi(c + 1);

    for (; count > 1 && digits[count - 1] == '0'; count--)
        power++;
    digits[count] = '\0';
    *ret_digits = atol(digits);
    *ret_power = power;
}

static int reads_back(long digits, int power, float value) {
    char text[40];
    snprintf(text, sizeof text, "%lde%d", digits, power);
    return strtof(text, NULL) == value;
}

/* Checks that the text is exact and JSON, and that the two decimals with one digit fewer
 * around it are other floats. Any other such decimal is beyond one of the two, so it is
 * another float as well. */
static void check_printed(float value) {
    char text[WIRE_FLOAT_PRINT_ROOM + 1];
    long digits;
    int power;

    print(value, text);
    if (to_bits(strtof(text, NULL)) != to_bits(value))
        fail_msg("%a printed as %s reads back as %a", (double)value, text,
                 (double)strtof(text, NULL));
    if (!is_json_number(text))
        fail_msg("%a printed as %s is not a JSON number", (double)value, text);

    take_apart(text, &digits, &power);
    if (digits < 10)
        return;
    value = fabsf(value);
    if (reads_back(digits / 10, power + 1, value) ||
        reads_back(digits / 10 + 1, power + 1, value))
        fail_msg("%a printed as %s could be shorter", (double)value, text);

    /* Among decimals with as many digits it is the closest that reads back. Ties may
     * differ, since these differences are rounded. */
    long double error = fabsl((long double)value - strtold(text + (*text == '-'), NULL));
    for (long other = digits - 1; other <= digits + 1; other += 2) {
        char other_text[40];
        snprintf(other_text, sizeof other_text, "%lde%d", other, power);
        if (strtof(other_text, NULL) == value &&
            fabsl((long double)value - strtold(other_text, NULL)) < error * 0.999999L)
            fail_msg("%a printed as %s is closer to %s", (double)value, text, other_text);
    }
}

static void test_random_floats_are_exact_and_shortest(void **state) {
    (void)state;
    uint64_t random = unit_seed(88172645463325252u); /* xorshift64 (Marsaglia 2003) */
    int count = 100000 / (int)sample_step(1);
    for (int i = 0; i < count;) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        float value = from_bits((uint32_t)(random >> 32));
        if (!isfinite(value))
            continue;
        check_printed(value);
        i++;
    }
}

static void check_against_plain(uint32_t bits) {
    float value = from_bits(bits);
    if (!isfinite(value))
        return;
    char text[WIRE_FLOAT_PRINT_ROOM + 1], plain[WIRE_FLOAT_PRINT_MAX + 1];
    print(value, text);
    plain[float_text_plain(value, plain)] = '\0';
    assert_string_equal(text, plain);
}

/* Three million patterns, or fewer by UNIT_SAMPLE, evenly distributed over all 2^32. */
static void test_sampled_patterns_print_as_the_plain_printer_prints_them(void **state) {
    (void)state;
    uint32_t step = sample_step(1287);
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step)
        check_against_plain((uint32_t)bits);
}

/* Lists are printed in batches of 16: 61 numbers are three batches and 13 more. */
static void check_many(const float values[61]) {
    char texts[61 * (WIRE_FLOAT_PRINT_MAX + 1) + WIRE_FLOAT_PRINT_ROOM];
    char one[WIRE_FLOAT_PRINT_ROOM];
    const char *end = wire_floats_print(values, 61, texts), *at = texts;
    for (size_t i = 0; i < 61; i++) {
        size_t length = wire_float_print(values[i], one);
        if (memcmp(at, one, length) != 0 || at[length] != ',')
            fail_msg("%a printed as %.20s", (double)values[i], at);
        at += length + 1;
    }
    assert_ptr_equal(at, end);
}

static void test_lists_print_as_single_numbers_do(void **state) {
    (void)state;
    float values[61];
    size_t count = 0;
    uint32_t step =
        sample_step(wire_digits_available() ? 211 : 100003); /* else the same code */
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
        values[count] = from_bits((uint32_t)bits);
        count += isfinite(values[count]) ? 1 : 0;
        if (count == 61) {
            check_many(values);
            count = 0;
        }
    }
    print_message("in vectors: %s\n", wire_digits_available() ? "yes" : "no");
}

static void
test_smallest_subnormals_print_as_the_plain_printer_prints_them(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 100000; bits++)
        check_against_plain(bits);
}

static void
test_floats_around_powers_of_ten_print_as_the_plain_printer_prints_them(void **state) {
    (void)state;
    for (int power = -45; power <= 38; power++) {
        char decimal[16];
        snprintf(decimal, sizeof decimal, "1e%d", power);
        uint32_t bits = to_bits(strtof(decimal, NULL));
        for (uint32_t near = bits < 50 ? 0 : bits - 50; near <= bits + 50; near++)
            check_against_plain(near);
    }
}

static void
test_ties_and_ends_of_the_interval_print_as_the_plain_printer_prints_them(void **state) {
    (void)state;
    static const struct {
        float value;
        const char *text;
    } cases[] = {
        /* Halfway between two decimals with as many digits: the even one. */
        {2097152.25f, "2097152.2"},
        {2097152.75f, "2097152.8"},
        {4194303.25f, "4194303.2"},
        {-4194303.75f, "-4194303.8"},
        /* 8590400000 is halfway between two floats, and reads back to the even one. */
        {8590399488.0f, "8590400000.0"},
        {8590400512.0f, "8590401000.0"},
        {8591040512.0f, "8591040000.0"},
        /* Subnormals, which have fewer than seven digits. */
        {0x1p-149f, "1e-45"},
        {0x1p-148f, "3e-45"},
        {0x7p-149f, "1e-44"}, /* 9.8e-45 */
        {0x1.fffffcp-127f, "1.1754942e-38"},
        {0x1p-126f, "1.1754944e-38"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[WIRE_FLOAT_PRINT_ROOM + 1];
        print(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
        check_against_plain(to_bits(cases[i].value));
    }
}

static void test_powers_of_two_and_their_neighbours_are_exact_and_shortest(void **state) {
    (void)state;
    for (int exponent = -149; exponent <= 127; exponent++) {
        float power = ldexpf(1.0f, exponent);
        check_printed(power);
        check_printed(-power);
        check_printed(nextafterf(power, 0.0f));
        check_printed(nextafterf(power, INFINITY));
    }
    check_printed(from_bits(0x7F7FFFFF)); /* the largest */
    check_printed(0.0f);
    check_printed(-0.0f);
}

static void test_decimals_of_one_digit_stay_short(void **state) {
    (void)state;
    for (int power = -44; power <= 38; power++) {
        for (int digit = 1; digit <= 9; digit++) {
            char text[WIRE_FLOAT_PRINT_ROOM + 1], decimal[32];
            long digits;
            snprintf(decimal, sizeof decimal, "%de%d", digit, power);
            float value = strtof(decimal, NULL);
            if (!isfinite(value))
                continue;
            print(value, text);
            take_apart(text, &digits, &(int){0});
            assert_in_range(digits, 1, 9);
        }
    }
}

static void test_texts_are_positional_from_1e_5_to_1e12(void **state) {
    (void)state;
    static const struct {
        float value;
        const char *text;
    } cases[] = {
        {0.5f, "0.5"},
        {1.0f, "1.0"},
        {0.0f, "0.0"},
        {-0.0f, "-0.0"},
        {0.1f, "0.1"},
        {-123.25f, "-123.25"},
        {16777216.0f, "16777216.0"},
        {123456789.0f, "123456790.0"},
        {1e12f, "1000000000000.0"},
        {-9.999999e12f, "-9999999000000.0"},
        {1e13f, "1e+13"},
        {1.5e20f, "1.5e+20"},
        {1e-5f, "0.00001"},
        {-1.17549435e-5f, "-0.000011754943"},
        {1e-6f, "1e-6"},
        {1e-20f, "1e-20"},
        {-1.17549435e-38f, "-1.1754944e-38"},
        {1e-45f, "1e-45"},
        {3.40282347e38f, "3.4028235e+38"},
        {9.5367431640625e-7f, "9.536743e-7"}, /* 2^-20 */
        {9007199254740992.0f, "9.007199e+15"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[WIRE_FLOAT_PRINT_ROOM + 1];
        print(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
    }
}

/* The closest decimal with as many digits is too low then. Exactness is checked above. */
static void
test_power_of_two_takes_the_upper_neighbour_when_only_that_reads_back(void **state) {
    (void)state;
    int taken = 0;
    for (int exponent = -126; exponent <= 127; exponent++) {
        char text[WIRE_FLOAT_PRINT_ROOM + 1], closest[32];
        float value = ldexpf(1.0f, exponent);
        long digits;
        int power, count = 0;
        print(value, text);
        take_apart(text, &digits, &power);
        for (long rest = digits; rest > 0; rest /= 10)
            count++;
        snprintf(closest, sizeof closest, "%.*e", count - 1, (double)value);
        taken += strtof(closest, NULL) != value;
    }
    assert_true(taken > 0); /* else this test has not met the case */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_floats_are_exact_and_shortest),
        cmocka_unit_test(test_sampled_patterns_print_as_the_plain_printer_prints_them),
        cmocka_unit_test(test_lists_print_as_single_numbers_do),
        cmocka_unit_test(test_smallest_subnormals_print_as_the_plain_printer_prints_them),
        cmocka_unit_test(
            test_floats_around_powers_of_ten_print_as_the_plain_printer_prints_them),
        cmocka_unit_test(
            test_ties_and_ends_of_the_interval_print_as_the_plain_printer_prints_them),
        cmocka_unit_test(test_powers_of_two_and_their_neighbours_are_exact_and_shortest),
        cmocka_unit_test(test_decimals_of_one_digit_stay_short),
        cmocka_unit_test(test_texts_are_positional_from_1e_5_to_1e12),
        cmocka_unit_test(
            test_power_of_two_takes_the_upper_neighbour_when_only_that_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
