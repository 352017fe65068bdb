/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_models.c: the sets of kernels that this CPU has, beside models of them by
 * tests/model: all bits are the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "how_sets_run.h"
#include "matrix_tiles.h"

#include "random_panel.h"

static const struct kernels *model; /* of `kernels` */

/* --- instructions --- */

/* Draws numbers of which some are the smallest, or lie halfway between two of bfloat16,
 * or whose sums lie halfway between two of float32. */
static void random_lanes(uint64_t *seed, union vector_words *x, union vector_words *y,
                         union vector_words *z) {
    size_t kind = random_between(seed, 0, 3);

    random_numbers(seed, x->numbers, WORDS);
    random_numbers(seed, y->numbers, WORDS);
    random_numbers(seed, z->numbers, WORDS);
    for (int i = 0; i < WORDS && kind > 0; i++) {
        uint32_t bits = (uint32_t)(random_next(seed) >> 20);
        uint32_t sign = bits & 0x80008000;
        if (kind == 1) { /* about the least normal number */
            uint32_t low = (uint32_t)random_between(seed, 40, 86);
            x->words[i] = sign | (bits & 0x007f007f) | low << 23 | (126 - low) << 7;
            y->words[i] = (bits >> 5 & 0x007f007f) | (126 - low) << 23 | low << 7;
            z->words[i] = (bits >> 3 & 0x007fffff) |
                          (uint32_t)random_between(seed, 0, 4) << 23 | sign << 16;
        } else if (kind ==
                   2) { /* halfway between two numbers of bfloat16, or next to it */
            x->words[i] = (bits & 0xbfff0000) + 0x8000 + bits % 3 - 1;
            y->words[i] = (bits << 11 & 0xbfff0000) + 0x8000;
        } else { /* a half, or a little more or less, of the last bit of z */
            float half = ldexpf(1, (int)random_between(seed, 0, 60) - 30);
            float little = ldexpf(half, -(int)random_between(seed, 8, 40));
            x->words[i] = BOTH(half, little) | sign;
            y->words[i] = BOTH(1, (float)random_between(seed, 0, 1));
            z->numbers[i] = (float)random_between(seed, 0x800000, 0xffffff) * 2 * half;
        }
    }
}

static void test_instructions_have_the_bits_of_the_model(void **state) {
    uint64_t seed = 24;
    (void)state;

    if (kernels->k_step == 1) /* the sets for bfloat16 have all instructions */
        return;
    for (size_t i = 0; i < sample_cases(100000); i++) {
        union vector_words x, y, z;
        struct vector_results expected, got;

        random_lanes(&seed, &x, &y, &z);
        model_instructions.compute(&x, &y, &z, &expected);
        cpu_instructions.compute(&x, &y, &z, &got);
        expect_same(&got.sum, &expected.sum, WORDS, false, "fmadd");
        expect_same(&got.product, &expected.product, WORDS, false, "dpbf16");
        expect_same(&got.larger, &expected.larger, WORDS, false, "max");
        expect_same(&got.rounded, &expected.rounded, WORDS, false, "roundscale");
        expect_same(&got.rest, &expected.rest, WORDS, false, "reduce");
        expect_same(&got.scaled, &expected.scaled, WORDS, false, "scalef");
        expect_same(&got.pairs, &expected.pairs, WORDS, true, "cvtne2ps");
    }
}

/* --- kernels --- */

/* Makes some numbers of a panel of any size. */
static void make_wild(uint64_t *seed, float *numbers, size_t rows, size_t ld,
                      size_t width, size_t share) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < width; i++) {
            if (random_between(seed, 1, share) == 1)
                numbers[r * ld + i] = random_number(seed);
        }
    }
}

/* Attends with both sets, which make the words themselves. */
static void expect_same_attention(struct random_panel *p, bool in_panels) {
    static struct results got[2];
    const struct kernels *sets[] = {kernels, model};
    struct query_panel *panel = &p->panel;

    if (in_panels && panel->additive_score == NULL) {
        panel->keys = p->key_panels;
        panel->keys_ld = p->key_panels_ld;
        panel->keys_in_panels = true;
    }
    for (int form = 0; form < 2; form++) {
        for (int i = 0; i < 2; i++) {
            kernels = sets[i];
            attend(form == 0 ? kernels->attend : kernels->attend_few,
                   form == 0 ? kernels->columns : KERNEL_FEW_MAX, p, &got[i]);
        }
        kernels = sets[0];
        expect_same(got[0].outputs, got[1].outputs, sizeof got[0].outputs / sizeof(float),
                    false, "outputs");
        expect_same(got[0].max, got[1].max, KERNEL_FEW_MAX, false, "maxima");
        expect_same(got[0].sum, got[1].sum, KERNEL_FEW_MAX, false, "sums");
        expect_same(got[0].weights, got[1].weights, panel->num_queries * panel->key_len,
                    false, "weights");
        free(got[0].weights);
        free(got[1].weights);
    }
}

static void test_attention_has_the_bits_of_the_model(void **state) {
    uint64_t seed = 28;
    (void)state;

    for (size_t i = 0; i < sample_cases(200); i++) {
        struct random_panel p;
        random_panel_init(&seed, random_between(&seed, 1, KERNEL_FEW_MAX),
                          random_between(&seed, 1, i % 20 == 0 ? WIDEST : 130), &p);
        if (i % 2 == 0) {
            const struct query_panel *panel = &p.panel;
            size_t share = i % 4 == 0 ? 2000 : 10, step = kernels->k_step;
            make_wild(&seed, p.queries, panel->num_queries, panel->queries_ld,
                      panel->score_size, share);
            make_wild(&seed, p.key_words, panel->key_len, panel->keys_ld,
                      panel->score_size / step, share);
            make_wild(&seed, p.value_words, panel->key_len / step, panel->values_ld,
                      panel->head_size, share);
        }
        expect_same_attention(&p, i % 8 >= 4);
        random_panel_deinit(&p);
    }
}

/* Projects rows [rows, in] by weights [out, in], and what comes of it in the other
 * direction; the caller frees y [rows, out] and back [rows, in + KERNEL_COLUMNS_MAX]. */
static void project_and_back(const struct kernels *set, const float *weights, size_t out,
                             size_t in, const float *x, size_t rows, float **ret_y,
                             float **ret_back) {
    size_t count = (out - 1) / set->columns + 1, steps = (in - 1) / set->step_numbers + 1;
    size_t panel_floats = steps * set->step_words * set->columns;
    size_t x_ld = steps * set->step_words, back_ld = x_ld * set->k_step + 64;
    float *panels = allocate(count * panel_floats),
          *scratch = allocate(in * set->columns);
    float *bias = allocate(count * set->columns), *words = allocate(rows * x_ld);
    const struct panels packed = {panels, bias, out, steps};
    const struct range depth = {0, (in - 1) / set->k_step + 1}, columns = {0, out};

    memset(bias, 0, count * set->columns * sizeof *bias);
    for (size_t n = 0; n < count; n++) {
        size_t first = n * set->columns, left = out - first;
        set->pack(weights + first * in, in, left < set->columns ? left : set->columns,
                  scratch, panels + n * panel_floats);
    }
    for (size_t r = 0; r < rows; r++) {
        if (set->k_step == 2)
            set->convert_bf16(x + r * in, in, 1, in, words + r * x_ld, x_ld);
        else
            memcpy(words + r * x_ld, x + r * in, in * sizeof *x);
    }
    *ret_y = allocate(rows * out);
    *ret_back = allocate(rows * back_ld);
    set->project(&packed, 0, count, &depth, 1, words, x_ld, rows, *ret_y, out);
    set->project_back(&packed, columns, *ret_y, out, rows, *ret_back, back_ld);
    for (size_t r = 0; r < rows; r++)
        memmove(*ret_back + r * in, *ret_back + r * back_ld, in * sizeof *x);
    free(panels);
    free(scratch);
    free(bias);
    free(words);
}

static void test_projections_have_the_bits_of_the_model(void **state) {
    enum { ROWS_MAX = 40, IN_MAX = 150, OUT_MAX = 110 };
    uint64_t seed = 27;
    (void)state;

    if (kernels->split != NULL) /* test_math_matrix_project.c has it */
        return;
    for (size_t i = 0; i < sample_cases(300); i++) {
        size_t rows = random_between(&seed, 1, ROWS_MAX);
        size_t in = random_between(&seed, 1, IN_MAX);
        size_t out = random_between(&seed, 1, OUT_MAX);
        float *x = allocate(rows * in), *weights = allocate(out * in);
        float *y[2], *back[2];

        random_fill(&seed, x, rows * in);
        random_fill(&seed, weights, out * in);
        if (i % 2 == 0) {
            make_wild(&seed, x, rows, in, in, i % 4 == 0 ? 300 : 3);
            make_wild(&seed, weights, out, in, in, i % 4 == 0 ? 300 : 3);
        }
        project_and_back(kernels, weights, out, in, x, rows, &y[0], &back[0]);
        project_and_back(model, weights, out, in, x, rows, &y[1], &back[1]);
        expect_same(y[0], y[1], rows * out, false, "projection");
        expect_same(back[0], back[1], rows * in, false, "project_back");
        for (int n = 0; n < 2; n++) {
            free(y[n]);
            free(back[n]);
        }
        free(x);
        free(weights);
    }
}

static void test_conversions_have_the_bits_of_the_model(void **state) {
    enum { ROWS = 7, WIDTH = 99 };
    uint64_t seed = 29;
    (void)state;

    for (size_t i = 0; i < sample_cases(2000); i++) {
        float x[ROWS * WIDTH], got[2][ROWS * WIDTH];
        size_t rows = random_between(&seed, 1, ROWS),
               width = random_between(&seed, 1, WIDTH);
        const struct kernels *sets[] = {kernels, model};

        random_numbers(&seed, x, ROWS * WIDTH);
        for (int n = 0; n < 2; n++) {
            memcpy(got[n], x, sizeof x);
            sets[n]->exp2(got[n], width);
        }
        expect_same(got[0], got[1], ROWS * WIDTH, false, "exp2");
        if (kernels->k_step == 1)
            continue;
        memset(got, 0xff, sizeof got);
        for (int n = 0; n < 2; n++)
            sets[n]->convert_bf16(x, WIDTH, rows, width, got[n], WIDTH);
        expect_same(got[0], got[1], ROWS * WIDTH, true, "convert_bf16");
        for (int n = 0; n < 2; n++)
            sets[n]->pack_pairs_bf16(x, WIDTH, rows, width, got[n], WIDTH);
        expect_same(got[0], got[1], ROWS * WIDTH, true, "pack_pairs_bf16");
    }
}

int main(void) {
    static const struct kernels *const models[] = {
        &model_avx2, &model_avx512, &model_avx512_bf16, &model_amx_f32, &model_amx_bf16};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instructions_have_the_bits_of_the_model),
        cmocka_unit_test(test_attention_has_the_bits_of_the_model),
        cmocka_unit_test(test_projections_have_the_bits_of_the_model),
        cmocka_unit_test(test_conversions_have_the_bits_of_the_model),
    };
    int failures = 0;

    for (size_t i = 0; (kernels = kernels_runnable(i)) != NULL; i++) {
        print_how_set_runs(kernels);
        for (size_t m = 0; m < sizeof models / sizeof *models && !kernels->by_model;
             m++) {
            model = models[m];
            if (strcmp(model->name, kernels->name) != 0 ||
                model->k_step != kernels->k_step)
                continue;
            failures += cmocka_run_group_tests(tests, NULL, NULL);
        }
    }
    return failures;
}
