/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_matrix.c: the instructions of matrix tiles, by the CPU where it has them and
 * by their model, beside what Intel documents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "matrix_tiles.h"

/* Rounds to 24 bits with any exponent, and then takes denormal numbers for 0. */
static float plain_round(double x) {
    int exponent;
    double digits = ldexp(frexp(x, &exponent), 24);
    double rounded = ldexp(nearbyint(digits), exponent - 24);
    return fabs(rounded) < 0x1p-126 ? (float)copysign(0, x) : (float)rounded;
}

/* TDPBF16PS as the manual of Intel's instructions has it. */
static float plain_product(int depth, const union vector_words *a,
                           const union vector_words *b, int column, float c) {
    float even = 0, odd = 0;

    for (int k = 0; k < depth; k++) {
        uint32_t x = a->words[k], y = b[k].words[column];
        even = plain_round((double)factor(x, 0) * (double)factor(y, 0) + (double)even);
        odd = plain_round((double)factor(x, 1) * (double)factor(y, 1) + (double)odd);
    }
    double sum = (double)plain_round((double)even + (double)odd);
    return plain_round((double)plain_round((double)c) + sum);
}

/* Draws factors whose sums are exact in double, of `exponent` or up to 7 more. */
static void random_factors(uint64_t *seed, int exponent, union vector_words *rows) {
    for (size_t i = 0; i < (size_t)WORDS * WORDS; i++) {
        float first = (float)random_between(seed, 128, 255);
        float second = (float)random_between(seed, 128, 255);
        int sign = random_between(seed, 0, 1) == 0 ? 1 : -1;
        int more = (int)random_between(seed, 0, 7);
        rows[i / WORDS].words[i % WORDS] =
            BOTH(ldexpf(first * (float)sign, exponent + more),
                 ldexpf(second, exponent + 7 - more));
    }
}

static void test_products_of_tiles_are_as_documented(void **state) {
    uint64_t seed = unit_seed(23);
    (void)state;

    for (size_t i = 0; i < sample_cases(2000); i++) {
        union vector_words a[WORDS], b[WORDS], c[2 * WORDS], before[WORDS];
        int rows = (int)random_between(&seed, 1, WORDS);
        int columns = (int)random_between(&seed, 1, WORDS);
        int depth = (int)random_between(&seed, 1, WORDS);
        int exponent = i % 2 == 0 ? -70 - (int)(i % 14) : -10;

        random_factors(&seed, exponent, a);
        random_factors(&seed, exponent, b);
        for (size_t n = 0; n < (size_t)WORDS * WORDS; n++)
            before[n / WORDS].numbers[n % WORDS] =
                ldexpf((float)random_between(&seed, 0x800000, 0xffffff) *
                           (random_between(&seed, 0, 1) == 0 ? 1 : -1),
                       2 * exponent);
        memset(c, 0xff, sizeof c);
        memcpy(c, before, (size_t)rows * sizeof *c);
        instructions->multiply(rows, columns, depth, a, b, c);
        for (int n = 0; n < rows * WORDS; n++) {
            int row = n / WORDS, column = n % WORDS;
            float expected = before[row].numbers[column];
            if (column < columns)
                expected = plain_product(depth, a + row, b, column, expected);
            assert_int_equal(c[row].words[column], bits_of(expected));
            expected = column < depth ? 0 : float_of(0xffffffffU); /* what was zeroed */
            assert_int_equal(c[rows + row].words[column], bits_of(expected));
        }
    }
}

/* One product of tiles of a single number, of two words. */
static float multiply_words(float c, uint32_t a0, uint32_t b0, uint32_t a1, uint32_t b1) {
    union vector_words a = {{a0, a1}}, b[2] = {{{b0}}, {{b1}}},
                       sums[2] = {{{bits_of(c)}}};

    instructions->multiply(1, 1, 2, &a, b, sums);
    return sums[0].numbers[0];
}

static void test_products_of_tiles_flush_what_is_denormal(void **state) {
    const uint32_t one = BOTH(1, 0), tiny = BOTH(0x1p-133F, 0),
                   least = BOTH(0x1p-126F, 0);
    const uint32_t small = BOTH(0x1p-75F, 0);
    (void)state;

    assert_true(multiply_words(0, tiny, BOTH(0x1p127F, 0), 0, 0) == 0);
    assert_true(multiply_words(0x1p-127F, one, least, 0, 0) == 0x1p-126F);
    assert_true(multiply_words(-0x1.8p-126F, one, least, 0, 0) == 0);
    assert_int_equal(bits_of(multiply_words(-0.0F, 0, 0, 0, 0)), 0);
    /* It is rounded first, to 24 bits: a little less than 2^-126 is 2^-126. */
    assert_true(multiply_words(0, one, least, small, BOTH(-0x1p-76F, 0)) == 0x1p-126F);
    assert_true(multiply_words(0, one, least, small, BOTH(-0x1.4p-76F, 0)) == 0);
    /* Both chains, and their sum. */
    assert_true(multiply_words(1, BOTH(1, 0), BOTH(0x1p30F, 0), BOTH(0, 1),
                               BOTH(0, -0x1p30F)) == 1);
    assert_true(multiply_words(1, BOTH(0x1p30F, 1), BOTH(1, 1), BOTH(-0x1p30F, 1),
                               BOTH(1, 1)) == 3);
    assert_true(isnan(multiply_words(0, BOTH(INFINITY, 0), 0, 0, 0)));
    assert_true(multiply_words(0, BOTH(0x1p127F, 0), BOTH(4, 0), 0, 0) == INFINITY);
}

static void test_products_have_the_bits_of_the_model(void **state) {
    uint64_t seed = unit_seed(24);
    (void)state;

    for (size_t i = 0; i < sample_cases(5000); i++) {
        union vector_words x[WORDS], y[WORDS], z[2][2 * WORDS];
        int rows = (int)random_between(&seed, 1, WORDS);
        int columns = (int)random_between(&seed, 1, WORDS);
        int depth = (int)random_between(&seed, 1, WORDS);

        random_numbers(&seed, x[0].numbers, (size_t)WORDS * WORDS);
        random_numbers(&seed, y[0].numbers, (size_t)WORDS * WORDS);
        random_numbers(&seed, z[0][0].numbers, (size_t)2 * WORDS * WORDS);
        memcpy(z[1], z[0], sizeof z[0]);
        model_instructions.multiply(rows, columns, depth, x, y, z[0]);
        instructions->multiply(rows, columns, depth, x, y, z[1]);
        expect_same(z[1], z[0], (size_t)2 * WORDS * WORDS, false, "product of tiles");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_tiles_are_as_documented),
        cmocka_unit_test(test_products_of_tiles_flush_what_is_denormal),
    };
    const struct CMUnitTest beside_model[] = {
        cmocka_unit_test(test_products_have_the_bits_of_the_model),
    };

    return run_with_tiles(tests, sizeof tests / sizeof tests[0], beside_model,
                          sizeof beside_model / sizeof beside_model[0]);
}
