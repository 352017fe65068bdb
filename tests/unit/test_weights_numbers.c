/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_numbers.c: rotary frequencies, slopes and buckets, which a layer is not
 * given but computes. The numbers were computed in Python, from the definitions that
 * transformers documents; those of ALiBi by MPT's construction instead of BLOOM's. */
#include "weights_file.h"

#include "weights/layer/distance.h"
#include "weights/layer/frequencies.h"

#include <jansson.h>
#include <math.h>

static void assert_near(double got, double want, const char *what, size_t i) {
    if (!(fabs(got - want) <= 1e-13 * fabs(want)))
        fail_msg("%s: number %zu is %.17g, not %.17g", what, i, got, want);
}

static const struct rotation_case {
    const char *name;
    struct layer_rotation rotation;
    double frequencies[8];
    double magnitude;
} rotations[] = {
    {"default", {.dims = 8, .base = 10000}, {1.0, 0.1, 0.01, 0.001}, 1},
    {"dynamic, short",
     {.dims = 8,
      .type = ROTATION_DYNAMIC,
      .base = 10000,
      .factor = 4,
      .max_positions = 64},
     {1.0, 0.1, 0.01, 0.001},
     1},
    {"linear",
     {.dims = 8, .type = ROTATION_LINEAR, .base = 10000, .factor = 8},
     {0.125, 0.0125, 0.00125, 0.000125},
     1},
    {"llama3",
     {.dims = 16,
      .type = ROTATION_LLAMA3,
      .base = 500000,
      .factor = 8,
      .low_freq_factor = 1,
      .high_freq_factor = 4,
      .original_positions = 8192},
     {1.0, 0.19392274474868576, 0.03760603093086393, 0.007292664737217109,
      0.0005248461609929547, 3.428102195952591e-05, 6.647869871181235e-06,
      1.2891731721515574e-06},
     1},
    {"llama3, nothing between",
     {.dims = 16,
      .type = ROTATION_LLAMA3,
      .base = 500000,
      .factor = 8,
      .low_freq_factor = 1,
      .high_freq_factor = 1,
      .original_positions = 8192},
     {1.0, 0.19392274474868576, 0.03760603093086393, 0.007292664737217109,
      0.001414213562373095, 3.428102195952591e-05, 6.647869871181235e-06,
      1.2891731721515574e-06},
     1},
    {"yarn of gpt_oss",
     {.dims = 16,
      .type = ROTATION_YARN,
      .base = 150000,
      .factor = 32,
      .beta_fast = 32,
      .beta_slow = 1,
      .original_positions = 4096},
     {1.0, 0.22541800020287084, 0.050813274815461475, 0.006794959489732219,
      0.00045648391922324086, 1.818833668168956e-05, 4.09997848180298e-06,
      9.242089502428302e-07},
     1.3465735902799727},
    {"yarn, truncated, factor from the lengths",
     {.dims = 16,
      .type = ROTATION_YARN,
      .base = 10000,
      .beta_fast = 32,
      .beta_slow = 1,
      .truncate = true,
      .mscale = 0.707,
      .mscale_all_dim = 1,
      .max_positions = 131072,
      .original_positions = 32768},
     {1.0, 0.31622776601683794, 0.1, 0.03162277660168379, 0.01, 0.002569350598886808,
      0.000625, 0.00013834964763236658},
     0.964326914892074},
    {"yarn, from one pair to the next",
     {.dims = 8,
      .type = ROTATION_YARN,
      .base = 10000,
      .factor = 4,
      .beta_fast = 1,
      .beta_slow = 1,
      .attention_factor = 0.75,
      .original_positions = 4096},
     {1.0, 0.1, 0.01, 0.00025},
     0.75},
};

static void test_frequencies_are_those_of_their_type(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rotations / sizeof rotations[0]; i++) {
        const struct rotation_case *want = &rotations[i];
        double got[8];
        struct model_rotation made = {.frequencies = got};
        attn_error error;

        if (frequencies_fill(&want->rotation, &made, &error) != ATTN_OK)
            fail_msg("%s: %s", want->name, error.text);
        for (size_t a = 0; a < want->rotation.dims / 2; a++)
            assert_near(got[a], want->frequencies[a], want->name, a);
        assert_near(made.magnitude, want->magnitude, want->name, 8);
        bool dynamic = want->rotation.type == ROTATION_DYNAMIC;
        assert_int_equal(made.max_length, dynamic ? 64 : 0);
        assert_true(!dynamic || (made.base == 10000 && made.factor == 4));
    }
}

static void test_longrope_has_frequencies_for_short_and_long_sequences(void **state) {
    static const double wanted[] = {1.0, 0.06666666666666667, 0.005, 0.00025};
    static const double wanted_long[] = {0.5, 0.02, 0.0010526315789473684, 1.5625e-05};
    double got[4], got_long[4];
    struct layer_rotation rotation = {.dims = 8,
                                      .type = ROTATION_LONGROPE,
                                      .base = 10000,
                                      .max_positions = 131072,
                                      .original_positions = 4096};
    struct model_rotation made = {.frequencies = got, .long_frequencies = got_long};
    json_t *short_factors = json_loads("[1, 1.5, 2, 4]", 0, NULL);
    json_t *long_factors = json_loads("[2, 5, 9.5, 64]", 0, NULL);
    (void)state;

    rotation.short_factors = short_factors;
    rotation.long_factors = long_factors;
    assert_int_equal(frequencies_fill(&rotation, &made, NULL), ATTN_OK);
    for (size_t a = 0; a < 4; a++) {
        assert_near(got[a], wanted[a], "short", a);
        assert_near(got_long[a], wanted_long[a], "long", a);
    }
    assert_near(made.magnitude, 1.1902380714238083, "magnitude", 0);
    assert_int_equal(made.max_length, 4096);
    rotation.attention_factor = 1.25;
    assert_int_equal(frequencies_fill(&rotation, &made, NULL), ATTN_OK);
    assert_near(made.magnitude, 1.25, "magnitude", 1);
    json_decref(short_factors);
    json_decref(long_factors);
}

static void test_frequencies_that_are_not_finite_are_refused(void **state) {
    double got[4];
    struct model_rotation made = {.frequencies = got};
    const struct layer_rotation rotation = {
        .dims = 8, .type = ROTATION_LINEAR, .base = 1e-300, .factor = 1e-300};
    attn_error error;
    (void)state;

    assert_int_equal(frequencies_fill(&rotation, &made, &error), ATTN_E_VALUE);
    assert_string_equal(error.text, "the rotary frequencies of base 1e-300 and rope_type "
                                    "linear are not finite");
}

static void test_pairs_of_rows_are_moved_half_apart(void **state) {
    /* two heads of 5 rows of 2 numbers, of which 4 are rotated */
    const struct layer_rotation interleaved = {.dims = 4, .interleaved = true};
    float rows[20];
    static const float wanted[] = {0,  1,  4,  5,  2,  3,  6,  7,  8,  9,
                                   10, 11, 14, 15, 12, 13, 16, 17, 18, 19};
    (void)state;
    for (size_t i = 0; i < 20; i++)
        rows[i] = (float)i;
    assert_int_equal(rotation_separate_pairs(&interleaved, rows, 2, 5, 2), ATTN_OK);
    assert_memory_equal(rows, wanted, sizeof rows);
}

static void test_pairs_that_turn_backward_are_swapped(void **state) {
    const struct layer_rotation backward = {.dims = 4, .backward = true};
    float rows[] = {0, 1, 2, 3, 4};
    static const float wanted[] = {2, 3, 0, 1, 4};
    (void)state;
    assert_int_equal(rotation_separate_pairs(&backward, rows, 1, 5, 1), ATTN_OK);
    assert_memory_equal(rows, wanted, sizeof rows);
}

/* Numbers of heads that are powers of 2, and others. */
static void test_slopes_are_those_of_alibi(void **state) {
    static const struct {
        size_t heads;
        double first, last[3], sum;
    } wanted[] = {
        {8, 0.5, {0.015625, 0.0078125, 0.00390625}, 0.99609375},
        {12,
         0.5,
         {0.3535533905932738, 0.1767766952966369, 0.08838834764831845},
         2.3219189647247767},
        {25,
         0.7071067811865476,
         {0.10511205190671431, 0.07432544468767006, 0.052556025953357156},
         5.148901515514197},
        {71,
         0.9170040432046712,
         {0.6771277734684463, 0.620928906036742, 0.5693943173783458},
         16.252459007999395},
    };
    const attn_bias bias = ATTN_BIAS_ALIBI;
    (void)state;

    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        size_t heads = wanted[i].heads;
        float slopes[71];
        double sum = 0;
        distance_fill_slopes(bias, heads, slopes);
        for (size_t h = 0; h < heads; h++)
            sum += (double)slopes[h];
        assert_float_equal(slopes[0], wanted[i].first, 1e-7);
        for (size_t j = 0; j < 3; j++)
            assert_float_equal(slopes[heads - 3 + j], wanted[i].last[j], 1e-7);
        assert_float_equal(sum, wanted[i].sum, 1e-5);
    }
}

/* Falcon rounds its slopes to bfloat16. */
static void test_slopes_of_falcon_are_rounded(void **state) {
    static const float wanted[] = {0.83984375F, 0.59375F, 0.419921875F, 0.296875F};
    const attn_bias bias = ATTN_BIAS_ALIBI_ROUNDED;
    float slopes[25];
    (void)state;

    distance_fill_slopes(bias, 25, slopes);
    for (size_t i = 0; i < 4; i++)
        assert_float_equal(slopes[16 + i], wanted[i], 0);
}

/* The smallest distance of each bucket, for 32 of them up to 128. */
static void test_buckets_begin_where_they_should(void **state) {
    static const size_t both[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    static const size_t before[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                    11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31,
                                    35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    struct layer_bias bias = {.num_buckets = 32, .max_distance = 128};
    (void)state;

    for (size_t n = 0, bucket = 0; n < 300; n++) {
        bucket += bucket + 1 < 32 && before[bucket + 1] == n;
        assert_int_equal(distance_find_bucket(&bias, -(ptrdiff_t)n), bucket);
        assert_int_equal(distance_find_bucket(&bias, (ptrdiff_t)n), 0);
    }
    bias.both_sides = true;
    for (size_t n = 1, bucket = 0; n < 300; n++) {
        bucket += bucket + 1 < 16 && both[bucket + 1] == n;
        assert_int_equal(distance_find_bucket(&bias, -(ptrdiff_t)n), bucket);
        assert_int_equal(distance_find_bucket(&bias, (ptrdiff_t)n), 16 + bucket);
    }
    assert_int_equal(distance_find_bucket(&bias, 0), 0);
}

/* Rows of distances up to 40, as transformers has them for 8 buckets up to 32; without
 * buckets; and of keys that are at most 6 before the query, or 3 after it. */
static void test_rows_of_content_follow_distances(void **state) {
    static const size_t farthest_of_row[] = {0, 1, 2, 3, 4, 7, 15, 31};
    struct layer_bias bias = {.table_rows = 16,
                              .num_buckets = 8,
                              .max_distance = 32,
                              .own_row = 8,
                              .descending = true};
    (void)state;

    for (size_t n = 0, row = 0; n < 40; n++) {
        row += row < 8 && n > farthest_of_row[row];
        assert_int_equal(distance_find_row(&bias, -(ptrdiff_t)n), row < 7 ? 8 + row : 15);
        assert_int_equal(distance_find_row(&bias, (ptrdiff_t)n), 8 - row);
    }
    bias.num_buckets = 0;
    for (ptrdiff_t n = -40; n < 40; n++)
        assert_int_equal(distance_find_row(&bias, n), n < -7  ? 15
                                                      : n > 8 ? 0
                                                              : (size_t)(8 - n));
    bias = (struct layer_bias){.table_rows = 10, .own_row = 6};
    for (ptrdiff_t n = -40; n < 40; n++)
        assert_int_equal(distance_find_row(&bias, n), n < -6  ? 0
                                                      : n > 3 ? 9
                                                              : (size_t)(6 + n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_content_follow_distances),
        cmocka_unit_test(test_frequencies_are_those_of_their_type),
        cmocka_unit_test(test_longrope_has_frequencies_for_short_and_long_sequences),
        cmocka_unit_test(test_frequencies_that_are_not_finite_are_refused),
        cmocka_unit_test(test_pairs_of_rows_are_moved_half_apart),
        cmocka_unit_test(test_pairs_that_turn_backward_are_swapped),
        cmocka_unit_test(test_slopes_are_those_of_alibi),
        cmocka_unit_test(test_slopes_of_falcon_are_rounded),
        cmocka_unit_test(test_buckets_begin_where_they_should),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
