/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_entering.c: rows before and behind a norm are told apart, up to the limits
 * that the pages name. */
#include "math/rows/entering.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#define WIDTH 700 /* more than are undone at a time, and no multiple of lanes */
#define ROWS  600 /* more than are compared */

static float weight[WIDTH], bias[WIDTH], rows[ROWS][WIDTH];

/* Fills rows whose z have a mean square of `square` and a mean of `mean`, and have been
 * through a norm with weights, some of which are tiny. */
static void fill(float square, float mean) {
    float spread = sqrtf(square - mean * mean);

    for (size_t i = 0; i < WIDTH; i++) {
        weight[i] = i % 7 == 0 ? 1e-6F : i % 2 == 0 ? 3 : -0.5F;
        bias[i] = (float)i / WIDTH;
        for (size_t r = 0; r < ROWS; r++) {
            float z = mean + (i % 4 < 2 ? spread : -spread);
            rows[r][i] = i % 7 == 0 ? 50 : z * weight[i] + bias[i];
        }
    }
}

#define NEITHER ((enum entering)2)

static enum entering find(bool centred, size_t count) {
    static float inverse[WIDTH];
    const struct norm norm = {.centred = centred, .bias = bias, .size = WIDTH};

    entering_invert(weight, WIDTH, inverse);
    bool behind = entering_is(ENTERING_BEHIND, &norm, inverse, rows[0], count);
    bool before = entering_is(ENTERING_BEFORE, &norm, inverse, rows[0], count);
    assert_false(behind && before);
    return behind ? ENTERING_BEHIND : before ? ENTERING_BEFORE : NEITHER;
}

/* A seventh of the columns is left out; the others may have 7 / 6 of 1.01, as that part
 * of a row behind the norm has no square then. */
static void test_rows_are_told_by_their_mean_square(void **state) {
    static const struct {
        float square;
        enum entering want;
    } cases[] = {
        {0.01F, ENTERING_BEFORE}, {0.49F, ENTERING_BEFORE}, {0.55F, NEITHER},
        {0.65F, ENTERING_BEHIND}, {1, ENTERING_BEHIND},     {1.005F, ENTERING_BEHIND},
        {1.17F, ENTERING_BEHIND}, {1.19F, NEITHER},         {1.99F, NEITHER},
        {2.02F, ENTERING_BEFORE}, {1e6F, ENTERING_BEFORE}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fill(cases[i].square, 0);
        for (size_t count = 4; count <= ROWS; count += 149)
            assert_int_equal(find(false, count), cases[i].want);
        assert_int_equal(find(false, 3), NEITHER);
    }
}

/* Columns that are left out make up for a mean as far as the squares leave them any. */
static void test_layer_norm_also_leaves_no_mean(void **state) {
    (void)state;
    fill(1, 0.21F);
    assert_int_equal(find(false, ROWS), ENTERING_BEHIND);
    assert_int_equal(find(true, ROWS), NEITHER);
    fill(1, 0.18F);
    assert_int_equal(find(true, ROWS), ENTERING_BEHIND);
    fill(1.17F, 0.07F);
    assert_int_equal(find(false, ROWS), ENTERING_BEHIND);
    assert_int_equal(find(true, ROWS), NEITHER);
}

static void test_a_row_in_twenty_may_differ(void **state) {
    (void)state;
    fill(1, 0);
    for (size_t i = 0; i < WIDTH; i++)
        rows[7][i] *= 9;
    assert_int_equal(find(false, 20), ENTERING_BEHIND);
    assert_int_equal(find(false, 19), NEITHER);
}

static void test_norm_of_zeros_tells_nothing(void **state) {
    (void)state;
    fill(4, 0);
    for (size_t i = 0; i < WIDTH; i++)
        weight[i] = 0;
    assert_int_equal(find(true, ROWS), NEITHER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_told_by_their_mean_square),
        cmocka_unit_test(test_layer_norm_also_leaves_no_mean),
        cmocka_unit_test(test_a_row_in_twenty_may_differ),
        cmocka_unit_test(test_norm_of_zeros_tells_nothing),
    };
    return cmocka_run_group_tests_name("math_entering", tests, NULL, NULL);
}
