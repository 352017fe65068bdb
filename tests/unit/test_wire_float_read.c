/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers are read to the same bits as by strtod(), and only in the grammar of JSON. */
#include "wire/decimal/powers.h"
#include "wire/decimal/read.h"
#include "wire_fixture.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define RANDOM_NUMBERS 300000
#define NUMBER_MAX     2000 /* bytes */

/* A text in memory of exactly its size, so that a read past its end is found. */
struct text {
    char *copy;
    struct wire_floats floats;
};

static enum wire_stop read_text(struct text *text, const char *bytes, size_t size,
                                float *out, size_t room) {
    text->copy = malloc(size > 0 ? size : 1);
    memcpy(text->copy, bytes, size);
    text->floats = (struct wire_floats){
        .at = text->copy, .end = text->copy + size, .out = out, .out_end = out + room};
    return wire_floats_read(&text->floats);
}

/* Compares a number with strtod(). It is read four times in one list, since numbers close
 * to the end of the text are read by other code. */
static void check_number(const char *number) {
    char list[4 * NUMBER_MAX + 16];
    int size =
        snprintf(list, sizeof list, "%s,%s, %s ,%s]", number, number, number, number);
    assert_in_range(size, 1, (int)sizeof list - 1);
    float got[4];
    struct text text;
    double exact = strtod(number, NULL);
    float expected = (float)exact;

    enum wire_stop stop = read_text(&text, list, (size_t)size, got, 4);
    if (isinf(expected)) {
        if (stop != WIRE_STOP_RANGE)
            fail_msg("%s: accepted", number);
        assert_true(text.floats.refused == exact);
    } else {
        if (stop != WIRE_STOP_CLOSED || text.floats.out != got + 4)
            fail_msg("%s: stop %d after %td", number, (int)stop, text.floats.out - got);
        assert_ptr_equal(text.floats.at, text.copy + size - 1);
        for (int i = 0; i < 4; i++) {
            if (memcmp(&got[i], &expected, sizeof expected) != 0)
                fail_msg("%s: number %d is %.9g, not %.9g", number, i, (double)got[i],
                         (double)expected);
        }
    }
    free(text.copy);
}

static const char *const numbers[] = {
    "0",
    "-0",
    "0.0",
    "-0.0",
    "0e5",
    "-0E-5",
    "0.000000000000000000000000000000",
    "1",
    "-1",
    "9",
    "10",
    "12345678",
    "123456789012345678901234567890",
    "1.5",
    "-1.5",
    "12.5",
    "1e0",
    "1E+00",
    "1e-00",
    "1e05",
    "1.0e-5",
    "123.456e3",
    "0.1",
    "0.12345",
    "0.1234567",
    "0.12345678",
    "0.12345678955316544",
    "-0.12345678901234",
    "0.3",
    /* from 14 to 24 digits */
    "1.12345678901234",
    "1.123456789012345",
    "1.1234567890123456",
    "1.12345678901234567",
    "1.123456789012345678",
    "1.1234567890123456789",
    "1.12345678901234567890",
    "1.123456789012345678901",
    "1.1234567890123456789012",
    "9.99999999999999999999999",
    "9.9999999999999999999",
    "0.99999999999999999999999",
    "0.00000000000000000000001234567890123456789",
    "18446744073709551615",
    "18446744073709551616",
    "1.8446744073709551615",
    "1.8446744073709551616",
    "184467440737095516.15e-3",
    /* the middle of two float32, and just beside it */
    "16777217",
    "16777217.0000000000000000000001",
    "16777216.9999999999999999999",
    "1.00000005960464477539062500",
    "1.00000005960464477539062499999999999999",
    "1.00000005960464477539062500000000000001",
    "0.500000029802322387695312500",
    /* doubles next to that middle, where rounding twice differs */
    "1.0000000596046447753906250001",
    "1.000000059604644886",
    "1.00000005960464466",
    "8388608.5",
    "8388609.5",
    /* the ends of the range */
    "3.4028234663852886e38",
    "3.4028235677973362e38",
    "3.4028235677973366e38",
    "-3.4028235677973366e38",
    "340282346638528859811704183484516925440",
    "3.5e38",
    "1e39",
    "1e308",
    "1.7976931348623157e308",
    "1.7976931348623159e308",
    "1e999",
    "-1e999",
    "1e9999999999999999999999",
    "1.17549435e-38",
    "1.1754943508222875e-38",
    "1.17549429e-38",
    "1e-39",
    "1e-45",
    "7.006492321624085e-46",
    "7.006492321624086e-46",
    "-1e-46",
    "1e-320",
    "4.9e-324",
    "1e-400",
    "-1e-999",
    "1e-9999999999999999999999",
    "0e99999999999999999999",
    "-0.0e-99999999999999",
};

static void test_numbers_of_every_form_read_as_by_strtod(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        check_number(numbers[i]);
}

static void test_all_powers_of_ten_read_as_by_strtod(void **state) {
    (void)state;
    char number[64];
    for (int power = -400; power <= 400; power++) {
        static const char *const digits[] = {
            "1", "9",     "9.999999999999999999999", "1.0001", "12345678901234567890",
            "5", "0.0001"};
        for (size_t i = 0; i < sizeof digits / sizeof digits[0]; i++) {
            snprintf(number, sizeof number, "-%se%d", digits[i], power);
            check_number(number);
        }
    }
}

static void test_long_runs_of_zeros_cancel_with_the_exponent(void **state) {
    (void)state;
    static char number[NUMBER_MAX];
    for (int zeros = 1; zeros < NUMBER_MAX - 100; zeros = zeros * 3 / 2 + 1) {
        for (int off = -3; off <= 3; off++) {
            snprintf(number, sizeof number, "0.%0*d1234567890123456789e%d", zeros, 0,
                     zeros + off);
            check_number(number);
            snprintf(number, sizeof number, "1234567890123456789%0*de%d", zeros, 0,
                     -(zeros + off));
            check_number(number);
        }
    }
}

/* Numbers of every size, at every distance from the end of the text. ASan and valgrind
 * find a read past it. */
static void test_nothing_past_the_end_is_read(void **state) {
    (void)state;
    for (int zeros = 1; zeros < 64; zeros++) {
        for (int after = 0; after < 12; after++) {
            char exponent[100], whole[100], fraction[100];
            const char *const forms[] = {exponent, whole, fraction};
            snprintf(exponent, sizeof exponent, "1e-%0*d", zeros, 1);
            snprintf(whole, sizeof whole, "1%0*d", zeros < 30 ? zeros : 30, 0);
            snprintf(fraction, sizeof fraction, "0.%0*d5", zeros < 30 ? zeros : 30, 0);
            for (size_t i = 0; i < 3; i++) {
                char list[200];
                float got[2], expected = strtof(forms[i], NULL);
                struct text text;
                int size = snprintf(list, sizeof list, "%s,%*s5]", forms[i], after, "");
                assert_int_equal(read_text(&text, list, (size_t)size, got, 2),
                                 WIRE_STOP_CLOSED);
                assert_true(got[0] == expected && got[1] == 5);
                free(text.copy);
                for (int cut = 0; cut < size; cut++) {
                    assert_int_not_equal(read_text(&text, list, (size_t)cut, got, 2),
                                         WIRE_STOP_CLOSED);
                    free(text.copy);
                }
            }
        }
    }
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void test_random_floats_read_as_by_strtod_however_printed(void **state) {
    (void)state;
    uint64_t random = unit_seed(1);
    char number[64];
    for (int i = 0; i < RANDOM_NUMBERS; i++) {
        uint64_t bits = fixture_random(&random);
        float value = i % 2 > 0 ? float_of((uint32_t)bits)
                                : (float)(int32_t)bits * 0x1p-31F; /* small numbers */
        if (!isfinite(value))
            continue;
        int digits = 6 + (int)(bits >> 60);
        snprintf(number, sizeof number, "%.*g", digits, (double)value);
        check_number(number);
        snprintf(number, sizeof number, "%.*f", digits, (double)value);
        check_number(number);
        snprintf(number, sizeof number, "%.*e", digits, (double)value);
        check_number(number);
    }
}

static void test_random_doubles_read_as_by_strtod(void **state) {
    (void)state;
    uint64_t random = unit_seed(2);
    char number[400];
    for (int i = 0; i < RANDOM_NUMBERS; i++) {
        uint64_t bits = fixture_random(&random);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        snprintf(number, sizeof number, "%.17g", value);
        check_number(number);
        snprintf(number, sizeof number, "%.*g", 1 + (int)(bits & 31),
                 (double)(float)value);
        if (isfinite((float)value))
            check_number(number);
    }
}

/* All digits of the middle of two neighbouring float32, then the last digit one more or
 * less, then fewer digits. */
static void test_middles_of_two_floats_read_as_by_strtod(void **state) {
    (void)state;
    uint64_t random = unit_seed(3);
    char number[400];
    for (int i = 0; i < RANDOM_NUMBERS / 10; i++) {
        uint32_t bits = (uint32_t)fixture_random(&random) & 0x7FFFFFFF;
        if (bits >= 0x7F7FFFFF)
            continue;
        double middle =
            ((double)float_of(bits) + (double)float_of(bits + 1)) / 2; /* exact */
        int size = snprintf(number, sizeof number, "%.*e", 120, middle);
        check_number(number);
        char *e = strchr(number, 'e'), *last = e - 1;
        while (*last == '0')
            last--;
        *last = (char)(*last + 1 > '9' ? '8' : *last + 1);
        check_number(number);
        *last = (char)(*last - 2 < '0' ? '1' : *last - 2);
        check_number(number);
        for (int digits = 15; digits <= 22; digits++) {
            size = snprintf(number, sizeof number, "%.*e", digits, middle);
            check_number(number);
        }
        assert_true(size > 0);
    }
}

static void test_random_digits_read_as_by_strtod(void **state) {
    (void)state;
    uint64_t random = unit_seed(4);
    char number[100];
    for (int i = 0; i < RANDOM_NUMBERS; i++) {
        uint64_t dice = fixture_random(&random);
        char *out = number;
        if (dice & 1)
            *out++ = '-';
        int whole = (int)(dice >> 1 & 15) - 8, fraction = (int)(dice >> 5 & 31);
        *out++ = (char)(whole > 0 ? '1' + (dice >> 10) % 9 : '0' + (dice >> 10) % 10);
        for (int k = 1; k < whole * 3; k++)
            *out++ = (char)('0' + fixture_random(&random) % 10);
        if (fraction > 0)
            *out++ = '.';
        for (int k = 0; k < fraction; k++)
            *out++ = (char)('0' + (fixture_random(&random) % 10) *
                                      (uint64_t)(k > (int)(dice >> 14 & 7)));
        if ((dice >> 20 & 3) == 0)
            out += sprintf(out, "%c%+d", dice >> 22 & 1 ? 'e' : 'E',
                           (int)(dice >> 24 & 127) - 64);
        *out = '\0';
        check_number(number);
    }
}

static const struct {
    const char *text;
    enum wire_stop stop;
    int numbers, at;
} stops[] = {
    {"", WIRE_STOP_NO_NUMBER, 0, 0},
    {"]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"1", WIRE_STOP_NO_COMMA, 1, 1},
    {"1,", WIRE_STOP_NO_NUMBER, 1, 2},
    {"1]", WIRE_STOP_CLOSED, 1, 1},
    {" \n\t\r 1 \n\n, \r2\t]", WIRE_STOP_CLOSED, 2, 14},
    {"1,\n            2,\n            3\n        ]", WIRE_STOP_CLOSED, 3, 40},
    {"01]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"-01]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"00.5]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"+1]", WIRE_STOP_NO_NUMBER, 0, 0},
    {".5]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"5.]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"5.e1]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"-]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"--1]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"1e]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"1e+]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"1e+-1]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"1e1.5]", WIRE_STOP_NO_COMMA, 1, 3},
    {"1.2.3]", WIRE_STOP_NO_COMMA, 1, 3},
    {"0x1]", WIRE_STOP_NO_COMMA, 1, 1},
    {"1f]", WIRE_STOP_NO_COMMA, 1, 1},
    {"1 2]", WIRE_STOP_NO_COMMA, 1, 2},
    {"1,,2]", WIRE_STOP_NO_NUMBER, 1, 2},
    {"1,]", WIRE_STOP_NO_NUMBER, 1, 2},
    {"NaN]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"-Infinity]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"nan]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"inf]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"1,null]", WIRE_STOP_NO_NUMBER, 1, 2},
    {"1,[2]]", WIRE_STOP_NO_NUMBER, 1, 2},
    {"1,\"2\"]", WIRE_STOP_NO_NUMBER, 1, 2},
    {"1,\v2]", WIRE_STOP_NO_NUMBER, 1, 2},
    {"1\xC2\xA0]", WIRE_STOP_NO_COMMA, 1, 1},
    {"1:]", WIRE_STOP_NO_COMMA, 1, 1},
    {"1/]", WIRE_STOP_NO_COMMA, 1, 1},
    {"\xB1]", WIRE_STOP_NO_NUMBER, 0, 0},
    {"1}", WIRE_STOP_NO_COMMA, 1, 1},
    {"1,2,1e39,3]", WIRE_STOP_RANGE, 2, 4},
    {"1,2,3,4,5,6,7,8,9]", WIRE_STOP_FULL, 8, 16},
};

static void test_reading_stops_at_what_is_not_a_number(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        /* Alone, and among so many numbers that it is read by the fast code. */
        for (int among = 0; among < 2; among++) {
            static const char many[] = "0.25,1.125, 0.5,0.75,1.5,3.75,0.5,0.25,";
            char list[300];
            float got[8 + 8];
            int lead = among > 0 ? (int)strlen(many) : 0, skipped = among > 0 ? 8 : 0;
            bool closed = strchr(stops[i].text, ']') != NULL;
            snprintf(list, sizeof list, "%.*s%s%s", lead, many, stops[i].text,
                     among > 0 && closed ? many : "");
            struct text text;
            enum wire_stop stop =
                read_text(&text, list, strlen(list), got, (size_t)(8 + skipped));
            if (stop != stops[i].stop ||
                text.floats.out - got != stops[i].numbers + skipped ||
                text.floats.at - text.copy != stops[i].at + lead)
                fail_msg("%s: stop %d after %td numbers at %td", list, (int)stop,
                         text.floats.out - got, text.floats.at - text.copy);
            free(text.copy);
        }
    }
}

static void test_end_of_a_number_is_found(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int length; /* -1: it is not a number */
    } cases[] = {{"1", 1},
                 {"-12.5e+10,", 9},
                 {"0", 1},
                 {"-", -1},
                 {"01", -1},
                 {"1.", -1},
                 {"1.e1", -1},
                 {"1e", -1},
                 {"1e+", -1},
                 {"", -1},
                 {"x", -1},
                 {"1E5]", 3},
                 {"0.0.1", 3},
                 {"1e5e", 3},
                 {"-0", 2},
                 {".1", -1},
                 {"1234567", 7},
                 {"12345678", 8},
                 {"1.12345678901234567", 19}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = cases[i].text,
                   *end = wire_number_end(text, text + strlen(text));
        if (cases[i].length < 0 ? end != NULL : end != text + cases[i].length)
            fail_msg("%s", text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_of_every_form_read_as_by_strtod),
        cmocka_unit_test(test_all_powers_of_ten_read_as_by_strtod),
        cmocka_unit_test(test_long_runs_of_zeros_cancel_with_the_exponent),
        cmocka_unit_test(test_nothing_past_the_end_is_read),
        cmocka_unit_test(test_random_floats_read_as_by_strtod_however_printed),
        cmocka_unit_test(test_random_doubles_read_as_by_strtod),
        cmocka_unit_test(test_middles_of_two_floats_read_as_by_strtod),
        cmocka_unit_test(test_random_digits_read_as_by_strtod),
        cmocka_unit_test(test_reading_stops_at_what_is_not_a_number),
        cmocka_unit_test(test_end_of_a_number_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
