/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_matrix_project.c: projections by matrix tiles, by the CPU where it has them
 * and by their model, beside plain loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "matrix_tiles.h"

enum { ROWS_MAX = 150, IN_MAX = 260, OUT_MAX = 200, RANGES_MAX = 5, GAP = 21 };

/* Returns floats that are NaN; the caller frees them. */
static float *allocate(size_t floats) {
    size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
    float *memory = aligned_alloc(64, bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

/* A random projection. All numbers that do not belong to it are NaN. */
struct projection {
    struct panels panels;
    float *weights; /* [out, in] as numbers of bfloat16 */
    float *words, bias[OUT_MAX + KERNEL_COLUMNS_MAX];
    struct range depth[RANGES_MAX];
    size_t in, words_depth, num_depths, rows, x_ld, first, end;
    float *x;
};

/* Draws ranges of words, of which the last may end with the depth. */
static void random_ranges(uint64_t *seed, struct projection *p) {
    size_t words = (p->in + 1) / 2, at = 0;

    p->num_depths = random_between(seed, 1, RANGES_MAX);
    if (random_between(seed, 0, 2) == 0) { /* no head is left out */
        p->num_depths = 1;
        p->depth[0] = (struct range){0, words};
        return;
    }
    for (size_t i = 0; i < p->num_depths; i++) {
        p->depth[i].first = at + random_between(seed, 0, (words - at) / 2);
        p->depth[i].end = at = random_between(seed, p->depth[i].first, words);
    }
}

static bool is_summed(const struct projection *p, size_t word) {
    for (size_t i = 0; i < p->num_depths; i++) {
        if (word >= p->depth[i].first && word < p->depth[i].end)
            return true;
    }
    return false;
}

static uint32_t random_pair(uint64_t *seed, bool wild) {
    float pair[2];

    random_fill(seed, pair, 2);
    if (wild)
        random_numbers(seed, pair, 2);
    return BOTH(pair[0], pair[1]);
}

/* Fills in words, and makes those that are not summed NaN. */
static void random_words(uint64_t *seed, struct projection *p, bool wild) {
    size_t depth = p->words_depth, words = (p->in + 1) / 2;

    for (size_t i = 0; i < p->rows * p->x_ld; i++) {
        uint32_t word = 0xffffffffU, column = (uint32_t)(i % p->x_ld);
        if (column < words && is_summed(p, column))
            word = random_pair(seed, wild) & (2 * column + 1 < p->in ? ~0U : 0xffffU);
        p->x[i] = float_of(word);
    }
    for (size_t n = 0; n < p->panels.out; n++) {
        float *from = p->words + n / 32 * depth * 32 + n % 32;
        for (size_t w = 0; w < depth; w++) {
            uint32_t word = is_summed(p, w) ? random_pair(seed, wild) : 0xffffffffU;
            if (w >= words)
                word = 0;
            else if (2 * w + 1 >= p->in)
                word &= 0xffffU;
            from[w * 32] = float_of(word);
        }
    }
    random_fill(seed, p->bias, p->panels.out);
}

static void projection_init(uint64_t *seed, bool wild, struct projection *p) {
    size_t panels, depth;

    *p = (struct projection){.in = random_between(seed, 1, IN_MAX),
                             .rows = random_between(seed, 1, 40),
                             .panels.out = random_between(seed, 1, OUT_MAX)};
    if (random_between(seed, 0, 5) == 0)
        p->rows = random_between(seed, 100, ROWS_MAX);
    depth = (p->in + 31) / 32 * 16;
    panels = (p->panels.out + 31) / 32;
    p->x_ld = depth + random_between(seed, 0, GAP);
    p->x = allocate(p->rows * p->x_ld);
    p->words = allocate(panels * depth * 32);
    memset(p->words, 0, panels * depth * 32 * sizeof(float));
    p->panels.data = p->words;
    p->panels.bias = p->bias;
    p->words_depth = depth;
    p->panels.steps = depth / 16;
    p->first = random_between(seed, 0, panels - 1);
    p->end = random_between(seed, p->first + 1, panels);
    random_ranges(seed, p);
    random_words(seed, p, wild);
}

static void projection_deinit(struct projection *p) {
    free(p->x);
    free(p->words);
}

/* Projects some rows; all of y is NaN before, [rows, OUT_MAX + GAP]. */
static float *project(const struct kernels *set, const struct projection *p, size_t first,
                      size_t rows) {
    float *y = allocate((rows + 1) * (OUT_MAX + GAP));

    set->project(&p->panels, p->first, p->end, p->depth, p->num_depths,
                 p->x + first * p->x_ld, p->x_ld, rows, y, OUT_MAX + GAP);
    return y;
}

static double plain_sum(const struct projection *p, size_t row, size_t n,
                        double *ret_size) {
    const float *x = p->x + row * p->x_ld;
    const float *w = p->words + n / 32 * p->words_depth * 32 + n % 32;
    double sum = (double)p->bias[n];

    *ret_size = fabs(sum);
    for (size_t k = 0; k < p->words_depth; k++) {
        for (int i = 0; i < 2 && is_summed(p, k); i++) {
            double product =
                (double)factor(bits_of(x[k]), i) * (double)factor(bits_of(w[k * 32]), i);
            sum += product;
            *ret_size += fabs(product);
        }
    }
    return sum;
}

static void expect_projection(const struct kernels *set, const struct projection *p) {
    float *y = project(set, p, 0, p->rows);
    size_t end = p->end * 32 < p->panels.out ? p->end * 32 : p->panels.out;

    for (size_t i = 0; i < (p->rows + 1) * (OUT_MAX + GAP); i++) {
        size_t row = i / (OUT_MAX + GAP), n = i % (OUT_MAX + GAP);
        if (row == p->rows || n < p->first * 32 || n >= end) {
            assert_int_equal(bits_of(y[i]), 0xffffffffU); /* was not written */
            continue;
        }
        double size, sum = plain_sum(p, row, n, &size);
        assert_true(fabs((double)y[i] - sum) <= size * 0x1p-20);
    }
    free(y);
}

/* Rows of x that end in the middle of a step, ranges of a head mask that do so, rows and
 * columns that do not fill a tile, and NaN around all of them. */
static void test_projections_are_what_plain_loops_make_of_them(void **state) {
    uint64_t seed = unit_seed(25);
    (void)state;

    for (size_t i = 0; i < sample_cases(300); i++) {
        struct projection p;
        projection_init(&seed, false, &p);
        expect_projection(kernels, &p);
        projection_deinit(&p);
    }
}

static void test_rows_do_not_meet_the_numbers_of_others(void **state) {
    uint64_t seed = unit_seed(26);
    (void)state;

    for (size_t i = 0; i < sample_cases(100); i++) {
        struct projection p;
        projection_init(&seed, i % 2 == 0, &p);
        for (size_t r = 0; r < p.rows; r += random_between(&seed, 1, 9)) {
            for (size_t w = 0; w < p.x_ld; w++)
                p.x[r * p.x_ld + w] = float_of(r % 2 == 0 ? 0x7f807f80 : 0xffffffff);
        }
        float *all = project(kernels, &p, 0, p.rows);
        for (size_t r = 0, rows; r < p.rows; r += rows) {
            rows = random_between(&seed, 1, p.rows - r);
            float *some = project(kernels, &p, r, rows);
            expect_same(some, all + r * (OUT_MAX + GAP), rows * (OUT_MAX + GAP), false,
                        "rows by themselves");
            free(some);
        }
        free(all);
        projection_deinit(&p);
    }
}

static void test_projections_have_the_bits_of_the_model(void **state) {
    uint64_t seed = unit_seed(27);
    (void)state;

    for (size_t i = 0; i < sample_cases(300); i++) {
        struct projection p;
        projection_init(&seed, i % 3 > 0, &p);
        float *y = project(kernels, &p, 0, p.rows);
        float *expected = project(&model_amx_bf16, &p, 0, p.rows);
        expect_same(y, expected, p.rows * (OUT_MAX + GAP), false, "projection");

        struct range columns = {p.first * 32, p.panels.out};
        size_t ld = 2 * p.words_depth + 2 * KERNEL_COLUMNS_MAX, width = 2 * p.words_depth;
        float *back[2] = {allocate(p.rows * ld), allocate(p.rows * ld)};
        kernels->project_back(&p.panels, columns, y, OUT_MAX + GAP, p.rows, back[0], ld);
        model_amx_bf16.project_back(&p.panels, columns, y, OUT_MAX + GAP, p.rows, back[1],
                                    ld);
        for (size_t r = 0; r < p.rows; r++)
            expect_same(back[0] + r * ld, back[1] + r * ld, width, false, "project_back");
        free(back[0]);
        free(back[1]);
        free(y);
        free(expected);
        projection_deinit(&p);
    }
}

/* --- float32, by pieces --- */

/* Projects [rows, in] by a set for float32; the caller frees y [rows, out]. Rows whose
 * numbers are not from 2^-60 to 2^60 are multiplied as they are. */
static float *project_pieces(const struct kernels *set, const struct projection *p,
                             const float *weights) {
    const struct magnitudes range = {0x1p-60F, 0x1p60F};
    size_t out = p->panels.out, count = (out + set->columns - 1) / set->columns;
    size_t steps = (p->in + set->step_numbers - 1) / set->step_numbers;
    size_t panel_floats = steps * set->step_words * set->columns;
    size_t x_ld = steps * set->step_words + 16;
    float *panels = allocate(count * panel_floats), *x = allocate(p->rows * x_ld);
    float *scratch = allocate(p->in * set->columns), *y = allocate(p->rows * out);
    const struct panels packed = {panels, p->bias, out, steps};

    for (size_t n = 0; n < count; n++) {
        size_t first = n * set->columns, left = out - first;
        set->pack(weights + first * p->in, p->in,
                  left < set->columns ? left : set->columns, scratch,
                  panels + n * panel_floats);
    }
    set->split(p->x, p->x_ld, p->rows, p->in, p->depth, p->num_depths, &range, x, x_ld);
    set->project_split(&packed, 0, count, p->depth, p->num_depths, x, x_ld, p->rows, y,
                       out);
    free(panels);
    free(x);
    free(scratch);
    return y;
}

/* Draws rows of many magnitudes; every fourth has numbers of all of them. */
static void random_rows_of_numbers(uint64_t *seed, struct projection *p) {
    for (size_t r = 0; r < p->rows; r++) {
        float unit = ldexpf(1, (int)random_between(seed, 0, 160) - 80);
        float *row = p->x + r * p->x_ld;
        random_fill(seed, row, p->in);
        if (r % 4 == 3)
            random_numbers(seed, row, p->in);
        for (size_t i = 0; i < p->in; i++)
            row[i] = is_summed(p, i) ? row[i] * unit : NAN;
    }
}

static void expect_pieces(const struct projection *p, const float *weights,
                          const float *y) {
    double bound = 0x1p-22 + (double)p->in * 0x1p-28; /* of pieces, and of their sums */

    for (size_t r = 0; r < p->rows; r += r % 4 == 2 ? 2 : 1) {
        for (size_t n = 0; n < p->panels.out; n++) {
            double sum = (double)p->bias[n], size = fabs(sum);
            for (size_t i = 0; i < p->in; i++) {
                double w = (double)weights[n * p->in + i];
                double product = is_summed(p, i) ? w * (double)p->x[r * p->x_ld + i] : 0;
                sum += product;
                size += fabs(product);
            }
            assert_true(fabs((double)y[r * p->panels.out + n] - sum) <= size * bound);
        }
    }
}

static void test_pieces_of_float32_multiply_as_float32(void **state) {
    const bool cpu = kernels != &model_amx_bf16;
    uint64_t seed = unit_seed(30);
    (void)state;

    for (size_t i = 0; i < sample_cases(100); i++) {
        struct projection p;
        projection_init(&seed, false, &p);
        for (size_t n = 0; n < p.num_depths; n++) {
            p.depth[n].first = 2 * p.depth[n].first < p.in ? 2 * p.depth[n].first : p.in;
            p.depth[n].end = 2 * p.depth[n].end < p.in ? 2 * p.depth[n].end : p.in;
        }
        free(p.x);
        p.x_ld = p.in + random_between(&seed, 0, GAP);
        p.x = allocate(p.rows * p.x_ld);
        random_rows_of_numbers(&seed, &p);
        float *weights = allocate(p.panels.out * p.in);
        random_fill(&seed, weights, p.panels.out * p.in);

        float *y = project_pieces(cpu ? &kernels_amx_f32 : &model_amx_f32, &p, weights);
        expect_pieces(&p, weights, y);
        if (cpu) {
            float *expected = project_pieces(&model_amx_f32, &p, weights);
            expect_same(y, expected, p.rows * p.panels.out, false, "pieces");
            free(expected);
        }
        free(y);
        free(weights);
        projection_deinit(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projections_are_what_plain_loops_make_of_them),
        cmocka_unit_test(test_rows_do_not_meet_the_numbers_of_others),
        cmocka_unit_test(test_pieces_of_float32_multiply_as_float32),
    };
    const struct CMUnitTest beside_model[] = {
        cmocka_unit_test(test_projections_have_the_bits_of_the_model),
    };

    return run_with_tiles(tests, sizeof tests / sizeof tests[0], beside_model,
                          sizeof beside_model / sizeof beside_model[0]);
}
