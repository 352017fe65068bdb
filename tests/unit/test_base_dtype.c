/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_dtype.c: the types of numbers in safetensors files and requests. */
#include "base/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

/* The value of 16 bits of which the lowest `fraction_bits` are the fraction, by the
 * definition of IEEE 754. */
static double value_of_bits(unsigned pattern, int fraction_bits) {
    double sign = pattern & 0x8000 ? -1 : 1;
    int exponent_max = (1 << (15 - fraction_bits)) - 1, bias = exponent_max / 2;
    int exponent = (int)(pattern >> fraction_bits) & exponent_max;
    double hidden = 1 << fraction_bits;
    double fraction = pattern & ((1U << fraction_bits) - 1);

    if (exponent == exponent_max)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(hidden + fraction, exponent - bias - fraction_bits);
}

static void test_dtype_converts_every_half_and_bfloat16(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        int fraction_bits;
    } formats[] = {{"F16", 10}, {"BF16", 7}};

    for (size_t i = 0; i < 2; i++) {
        const struct dtype *dtype = dtype_find(formats[i].dtype);
        for (unsigned pattern = 0; pattern < 65536; pattern++) {
            const unsigned char bytes[] = {(unsigned char)pattern,
                                           (unsigned char)(pattern >> 8)};
            double want = value_of_bits(pattern, formats[i].fraction_bits);
            float got;
            dtype->to_float(bytes, 1, &got);
            if (isnan(want))
                assert_true(isnan(got));
            else
                assert_true((double)got == want && !signbit(got) == !signbit(want));
        }
    }
}

static void test_every_official_dtype_has_its_size(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t bits;
    } all[] = {{"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
               {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
               {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
               {"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
               {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
               {"I64", 64},    {"U64", 64}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_non_null(dtype_find(all[i].name));
        assert_int_equal(dtype_find(all[i].name)->bits, all[i].bits);
    }
    assert_null(dtype_find("f32"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_converts_every_half_and_bfloat16),
        cmocka_unit_test(test_every_official_dtype_has_its_size),
    };
    return cmocka_run_group_tests_name("base_dtype", tests, NULL, NULL);
}
