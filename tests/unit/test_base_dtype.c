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

/* All positive numbers of E4M3, times 512, by torch.float8_e4m3fn. */
static const int e4m3_numbers[127] = {
    0,      1,      2,      3,      4,      5,     6,     7,      8,      9,      10,
    11,     12,     13,     14,     15,     16,    18,    20,     22,     24,     26,
    28,     30,     32,     36,     40,     44,    48,    52,     56,     60,     64,
    72,     80,     88,     96,     104,    112,   120,   128,    144,    160,    176,
    192,    208,    224,    240,    256,    288,   320,   352,    384,    416,    448,
    480,    512,    576,    640,    704,    768,   832,   896,    960,    1024,   1152,
    1280,   1408,   1536,   1664,   1792,   1920,  2048,  2304,   2560,   2816,   3072,
    3328,   3584,   3840,   4096,   4608,   5120,  5632,  6144,   6656,   7168,   7680,
    8192,   9216,   10240,  11264,  12288,  13312, 14336, 15360,  16384,  18432,  20480,
    22528,  24576,  26624,  28672,  30720,  32768, 36864, 40960,  45056,  49152,  53248,
    57344,  61440,  65536,  73728,  81920,  90112, 98304, 106496, 114688, 122880, 131072,
    147456, 163840, 180224, 196608, 212992, 229376};

static void test_fp8_is_converted_as_torch_has_it(void **state) {
    (void)state;
    unsigned char codes[256];
    float numbers[256], scales[256];

    for (unsigned code = 0; code < 256; code++)
        codes[code] = (unsigned char)code;
    dtype_e4m3.to_float(codes, 256, numbers);
    dtype_e8m0.to_float(codes, 256, scales);
    for (unsigned code = 0; code < 256; code++) {
        unsigned magnitude = code & 0x7f;
        if (magnitude < 127)
            assert_true((double)fabsf(numbers[code]) == e4m3_numbers[magnitude] / 512.0);
        else
            assert_true(isnan(numbers[code]));
        assert_int_equal(!signbit(numbers[code]), code < 128);
        assert_true(code == 255 ? isnan(scales[code])
                                : (double)scales[code] == ldexp(1, (int)code - 127));
    }
}

static void test_fp8_is_not_read_where_nothing_scales_it(void **state) {
    (void)state;
    assert_null(dtype_find("F8_E4M3")->to_float);
    assert_null(dtype_find("F8_E8M0")->to_float);
    assert_null(dtype_find("U8")->to_float);
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
        cmocka_unit_test(test_fp8_is_converted_as_torch_has_it),
        cmocka_unit_test(test_fp8_is_not_read_where_nothing_scales_it),
        cmocka_unit_test(test_every_official_dtype_has_its_size),
    };
    return cmocka_run_group_tests_name("base_dtype", tests, NULL, NULL);
}
