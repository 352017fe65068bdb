/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_split.c: projections of float32 by pieces of bfloat16, on matrix tiles. Where
 * neither the CPU nor the build has them there is nothing to test. */
#include "math/model.h"
#include "random_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

enum { ROWS = 37, OUT = 77 };

/* Returns a layer whose value projection is [OUT, in], without its engine. */
static attn_model *create_layer(uint64_t *seed, size_t in) {
    attn_model_info info = {
        .name = "split",
        .layout = "test",
        .width = {.query = in, .key = in, .value = in, .out = OUT, .head = OUT},
        .num_heads = 1,
        .linears[ATTN_VALUE].bias = true};
    attn_model *model;

    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    random_fill(seed, model_weight(model, ATTN_VALUE), OUT * in);
    random_fill(seed, model_bias(model, ATTN_VALUE), OUT);
    return model;
}

static void use_set(attn_model *model, const char *cpu) {
    const attn_engine_options options = {
        .engine = "native", .cpu = cpu, .precision = "f32"};
    assert_int_equal(attn_model_set_engine(model, &options, NULL), ATTN_OK);
}

/* Projects rows of values; y is [rows, OUT]. */
static void project(const attn_model *model, const struct range *depth, size_t num_depths,
                    const float *x, size_t rows, float *y) {
    const struct engine *engine = &model->engine;
    const struct kernels *set = engine->kernels;
    const struct range all = {0, OUT};
    size_t in = engine->linears[ATTN_VALUE].in;

    if (set->split == NULL) {
        engine_project(engine, &engine->linears[ATTN_VALUE], all, depth, num_depths, x,
                       in, false, rows, y, OUT);
        return;
    }
    size_t ld = engine->linears[ATTN_VALUE].panels.steps * set->step_words + 16;
    float *split = aligned_alloc(64, rows * ld * sizeof *split);
    assert_non_null(split);
    set->split(x, in, rows, in, depth, num_depths, &engine->split_range, split, ld);
    engine_project(engine, &engine->linears[ATTN_VALUE], all, depth, num_depths, split,
                   ld, true, rows, y, OUT);
    free(split);
}

/* Returns the root of the mean square error, in units of 2^-24 of what is summed. */
static double find_error(const attn_model *model, const float *weight, const float *x) {
    size_t in = model->engine.linears[ATTN_VALUE].in;
    const struct range all = {0, in};
    const float *bias = model_bias(model, ATTN_VALUE);
    float y[ROWS * OUT];
    double squares = 0;

    project(model, &all, 1, x, ROWS, y);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t o = 0; o < OUT; o++) {
            double sum = (double)bias[o], size = fabs(sum);
            for (size_t i = 0; i < in; i++) {
                double product = (double)x[r * in + i] * (double)weight[o * in + i];
                sum += product;
                size += fabs(product);
            }
            double error = ((double)y[r * OUT + o] - sum) / (size * 0x1p-24);
            squares += error * error;
        }
    }
    return sqrt(squares / (ROWS * OUT));
}

static void test_errors_are_not_above_those_of_float32(void **state) {
    static const struct {
        size_t in;
        float offset, factor;
        bool scaled; /* columns, by 2^-20 to 2^20 */
    } data[] = {{768, 0, 1, false},      {768, 100, 1, false}, {768, 0, 1, true},
                {768, 0, 1e-30F, false}, {100, 0, 1, false},   {33, 0, 1, false},
                {768, 0, 1e-20F, false}, {2, 0, 1, false},     {4096, 0, 1, false},
                {4096, 100, 1, false}};
    uint64_t seed = unit_seed(20261123);
    (void)state;

    for (size_t d = 0; d < sizeof data / sizeof data[0]; d++) {
        size_t in = data[d].in;
        attn_model *model = create_layer(&seed, in);
        float *x = malloc(ROWS * in * sizeof *x);
        assert_non_null(x);
        random_fill(&seed, x, ROWS * in);
        memset(model_bias(model, ATTN_VALUE), 0, OUT * sizeof(float));
        for (size_t i = 0; i < in; i++) {
            int power = data[d].scaled ? (int)random_between(&seed, 0, 40) - 20 : 0;
            for (size_t r = 0; r < ROWS; r++)
                x[r * in + i] =
                    ldexpf(x[r * in + i] + data[d].offset, power) * data[d].factor;
        }
        use_set(model, "avx512");
        double plain = find_error(model, model_weight(model, ATTN_VALUE), x);
        use_set(model, "amx");
        assert_string_equal(model->info.engine.cpu, "amx");
        double split = find_error(model, model_weight(model, ATTN_VALUE), x);
        print_message("width %zu, offset %g, factor %g, scaled %d: %.3f, float32 %.3f\n",
                      in, (double)data[d].offset, (double)data[d].factor, data[d].scaled,
                      split, plain);
        assert_true(split <= plain);

        free(x);
        attn_model_destroy(model);
    }
}

/* A row that pieces cannot hold has the bits of float32, and its neighbours have theirs
 * whatever it is. */
static void test_rows_out_of_range_are_float32(void **state) {
    static const float numbers[] = {NAN,    INFINITY, -INFINITY, 3.4e38F,
                                    1e-36F, -1e-30F,  1e-42F,    0x1p125F};
    enum { IN = 75, COUNT = sizeof numbers / sizeof numbers[0] };
    const struct range all = {0, IN};
    uint64_t seed = unit_seed(20261124);
    attn_model *plain = create_layer(&seed, IN), *split;
    float x[ROWS * IN], y[ROWS * OUT], clean[ROWS * OUT], expected[ROWS * OUT];
    (void)state;

    seed = unit_seed(20261124);
    split = create_layer(&seed, IN);
    use_set(plain, "avx512");
    use_set(split, "amx");
    random_fill(&seed, x, ROWS * IN);
    project(split, &all, 1, x, ROWS, clean);
    for (size_t i = 0; i < COUNT; i++)
        x[4 * i * IN + 9 * i] = numbers[i];
    project(split, &all, 1, x, ROWS, y);
    project(plain, &all, 1, x, ROWS, expected);
    for (size_t r = 0; r < ROWS; r++) {
        bool changed = r % 4 == 0 && r / 4 < COUNT;
        assert_memory_equal(y + r * OUT, (changed ? expected : clean) + r * OUT,
                            OUT * sizeof *y);
    }
    attn_model_destroy(plain);
    attn_model_destroy(split);
}

/* Also that numbers outside of the depth, and how many rows there are, change nothing. */
static void test_bits_depend_on_the_row_and_its_depth(void **state) {
    uint64_t seed = unit_seed(20261125);
    (void)state;

    for (size_t in = 5; in <= 400; in += 13) {
        attn_model *model = create_layer(&seed, in);
        const struct range depth[] = {{in / 5, in / 3 + 1}, {in / 2 + 1, in}};
        float *x = malloc(ROWS * in * sizeof *x), y[ROWS * OUT], one[ROWS * OUT];
        assert_non_null(x);
        random_fill(&seed, x, ROWS * in);
        use_set(model, "amx");
        project(model, depth, 2, x, ROWS, y);
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t o = 0; o < OUT; o++) {
                double sum = (double)model_bias(model, ATTN_VALUE)[o];
                for (size_t i = 0; i < in; i++) {
                    if ((i >= depth[0].first && i < depth[0].end) || i >= depth[1].first)
                        sum += (double)x[r * in + i] *
                               (double)model_weight(model, ATTN_VALUE)[o * in + i];
                }
                assert_true(fabs((double)y[r * OUT + o] - sum) <= 1e-4);
            }
            for (size_t i = 0; i < depth[0].first; i++)
                x[r * in + i] = r % 2 == 0 ? NAN : 1e-44F;
        }
        for (size_t first = 0, rows = 1; first < ROWS;
             first += rows, rows = rows * 2 + 1) {
            size_t count = rows < ROWS - first ? rows : ROWS - first;
            project(model, depth, 2, x + first * in, count, one);
            assert_memory_equal(one, y + first * OUT, count * OUT * sizeof *y);
        }
        free(x);
        attn_model_destroy(model);
    }
}

static void test_weights_that_pieces_do_not_hold_get_avx512(void **state) {
    static const float numbers[] = {NAN, INFINITY, -3e38F, 1e-40F, 1e-32F, 0, -1e30F};
    enum { IN = 40, HELD = 5 };
    (void)state;

    for (size_t i = 0; i < 2 * sizeof numbers / sizeof numbers[0]; i++) {
        uint64_t seed = unit_seed(20261126);
        attn_model *plain = create_layer(&seed, IN), *model;
        seed = unit_seed(20261126);
        model = create_layer(&seed, IN);
        float number = numbers[i / 2],
              *of_plain = model_weight(plain, ATTN_VALUE) + 3 * IN,
              *weight = model_weight(model, ATTN_VALUE) + 3 * IN;
        if (i % 2 == 1) {
            of_plain = model_bias(plain, ATTN_VALUE) + 4;
            weight = model_bias(model, ATTN_VALUE) + 4;
        }
        *of_plain = *weight = number;
        use_set(plain, "avx512");
        use_set(model, "amx");
        bool held = i / 2 >= HELD;
        assert_string_equal(model->info.engine.cpu, held ? "amx" : "avx512");
        assert_true((model->engine.fallback == NULL) == held);
        if (!held)
            assert_int_equal(model->info.footprint.memory, plain->info.footprint.memory);
        else
            assert_true(model->info.footprint.memory > plain->info.footprint.memory);
        attn_model_destroy(plain);
        attn_model_destroy(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_are_not_above_those_of_float32),
        cmocka_unit_test(test_rows_out_of_range_are_float32),
        cmocka_unit_test(test_bits_depend_on_the_row_and_its_depth),
        cmocka_unit_test(test_weights_that_pieces_do_not_hold_get_avx512),
    };

    return kernels_get("amx", false) != NULL ? cmocka_run_group_tests(tests, NULL, NULL)
                                             : 0;
}
