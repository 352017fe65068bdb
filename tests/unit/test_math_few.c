/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_few.c: attend_few() computes what attend() does, bit by bit, in each set of
 * kernels; what else few queries need; and the check at every start finds an attention
 * that is wrong. */
#include "fail_alloc.h"
#include "math/model.h"

#include <attnd/library.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_set.h"

#include "random_panel.h"

#define CASES 600

/* Whether all numbers have the same bits, or both are NaN. */
static bool same(const float *a, const float *b, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    }
    return true;
}

/* Runs a form on at most `most` queries at a time, and expects what `many` has. */
static void expect_results(void (*form)(const struct query_panel *panel), size_t most,
                           const struct random_panel *p, const struct results *many) {
    static struct results few;
    const struct query_panel *panel = &p->panel;

    attend(form, most, p, &few);
    if (!same(many->outputs, few.outputs, sizeof many->outputs / sizeof(float)) ||
        !same(many->max, few.max, KERNEL_FEW_MAX) ||
        !same(many->sum, few.sum, KERNEL_FEW_MAX) ||
        !same(many->weights, few.weights, panel->num_queries * panel->key_len))
        fail_msg("%zu queries, at most %zu at a time, %zu keys, score_size %zu, "
                 "head_size %zu, additive %d, chunk %d, in panels %d, first keys %d, "
                 "bias %d, softcap %g",
                 panel->num_queries, most, panel->key_len, panel->score_size,
                 panel->head_size, panel->additive_score != NULL, p->chunk,
                 panel->keys_in_panels, panel->first_keys != NULL, p->bias != NULL,
                 (double)panel->softcap);
    free(few.weights);
}

static void expect_same_bits(struct random_panel *p) {
    static struct results many;
    struct query_panel *panel = &p->panel;

    attend(kernels->attend, kernels->columns, p, &many);
    expect_results(kernels->attend_few, KERNEL_FEW_MAX, p, &many);
    if (panel->additive_score == NULL) {
        panel->keys = p->key_panels;
        panel->keys_ld = p->key_panels_ld;
        panel->keys_in_panels = true;
        expect_results(kernels->attend, kernels->columns, p, &many);
        expect_results(kernels->attend_few, KERNEL_FEW_MAX, p, &many);
        expect_results(kernels->attend_few, 2, p, &many);
        expect_results(kernels->attend_few, 1, p, &many);
    }
    free(many.weights);
}

static void test_few_queries_have_the_bits_of_many(void **state) {
    (void)state;
    uint64_t seed = unit_seed(90);
    for (size_t i = 0; i < CASES; i++) {
        struct random_panel p;
        size_t num_queries = random_between(&seed, 1, i % 4 == 0 ? KERNEL_FEW_MAX : 16);
        size_t head_size = random_between(&seed, 1, i % 50 == 0 ? WIDEST : 130);
        if (i % 2 == 0) /* whole panels */
            head_size = kernels->columns * random_between(&seed, 1, 6);
        random_panel_init(&seed, num_queries, head_size, &p);
        expect_same_bits(&p);
        random_panel_deinit(&p);
    }
}

/* --- the check at every start --- */

/* Attends as the set does, but for one number of the outputs. */
static void attend_wrongly(const struct query_panel *panel) {
    kernels->attend(panel);
    panel->outputs[panel->head_size - 1] += 0.05F;
}

static void attend_to_nothing(const struct query_panel *panel) {
    panel->outputs[0] = NAN;
}

static size_t forgotten; /* which member of a panel */

static void attend_forgetfully(const struct query_panel *panel) {
    struct query_panel copy = *panel;
    if (forgotten == 0)
        copy.first_keys = NULL;
    else if (forgotten == 1)
        copy.softcap = 0;
    else
        copy.bias = NULL;
    kernels->attend(&copy);
}

static void transpose_wrongly(const float *from, size_t from_ld, size_t rows,
                              size_t width, float *to, size_t to_ld) {
    kernels->transpose(from, from_ld, rows, width, to, to_ld);
    to[to_ld + 1] += 9;
}

static double check(const struct kernels *set, size_t score_size, size_t head_size,
                    bool additive) {
    float any = 1;
    const struct engine engine = {.kernels = set,
                                  .score_size = score_size,
                                  .additive_score = additive ? &any : NULL};
    double difference = -1;
    assert_int_equal(engine_check_attention(&engine, head_size, &difference), ATTN_OK);
    return difference;
}

/* The values of many keys that count alike: a sum of all of them, one after the other,
 * would be off by some 1e-5. */
static void test_long_sums_lose_little(void **state) {
    enum { KEYS = KERNEL_CHUNK_KEYS - 1 };
    (void)state;
    if (kernels->k_step > 1) /* a value is rounded to bfloat16 anyway */
        skip();

    float *rows = allocate(KEYS), query = 0, output;
    size_t end_keys = KEYS;
    bool uniform = false;
    void *scratch = allocate(kernel_scratch_bytes(1, 1, KEYS, false) / sizeof(float));
    for (size_t k = 0; k < KEYS; k++)
        rows[k] = 1.1F;
    const struct query_panel panel = {.queries = &query,
                                      .num_queries = 1,
                                      .keys = rows,
                                      .keys_ld = 1,
                                      .values = rows,
                                      .values_ld = 1,
                                      .key_len = KEYS,
                                      .end_keys = &end_keys,
                                      .uniform = &uniform,
                                      .score_size = 1,
                                      .head_size = 1,
                                      .scale = 1,
                                      .factor = 1,
                                      .outputs = &output,
                                      .outputs_ld = 1,
                                      .scratch = scratch};
    kernels->attend(&panel);
    assert_true(fabsf(output - rows[0]) < 2e-6F);
    free(scratch);
    free(rows);
}

/* Returns three blocks of zeros, of which only the second may be read. */
static float *guarded_blocks(size_t block_bytes) {
    char *memory = mmap(NULL, 3 * block_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(mprotect(memory, block_bytes, PROT_NONE), 0);
    assert_int_equal(mprotect(memory + 2 * block_bytes, block_bytes, PROT_NONE), 0);
    return (float *)memory;
}

/* README says that masked keys cost nothing in whole blocks. With tiles of bfloat16 these
 * are two blocks. */
static void test_blocks_without_a_valid_key_are_not_read(void **state) {
    enum { WIDTH = 128, QUERIES = 4 };
    static const bool uniform[QUERIES];
    static float queries[QUERIES * WIDTH], outputs[QUERIES * WIDTH];
    bool by_tiles = kernels->k_step > 1 && strcmp(kernels->name, "amx") == 0;
    size_t block = by_tiles ? 2 * KEY_BLOCK : KEY_BLOCK;
    const size_t first_keys[QUERIES] = {block, block, block + 1, block},
                 end_keys[QUERIES] = {2 * block, block + 1, 2 * block, 2 * block};
    size_t key_bytes = block * WIDTH * sizeof(float),
           value_bytes = key_bytes / kernels->k_step;
    float *keys = guarded_blocks(key_bytes), *values = guarded_blocks(value_bytes);
    void *scratch =
        allocate(kernel_scratch_bytes(WIDTH, WIDTH, 3 * block, false) / sizeof(float));
    (void)state;

    const struct query_panel panel = {.queries = queries,
                                      .queries_ld = WIDTH,
                                      .num_queries = QUERIES,
                                      .keys = keys,
                                      .keys_ld = WIDTH,
                                      .values = values,
                                      .values_ld = WIDTH,
                                      .key_len = 3 * block,
                                      .first_keys = first_keys,
                                      .end_keys = end_keys,
                                      .uniform = uniform,
                                      .score_size = WIDTH,
                                      .head_size = WIDTH,
                                      .scale = 1,
                                      .factor = 1,
                                      .outputs = outputs,
                                      .outputs_ld = WIDTH,
                                      .scratch = scratch};
    kernels->attend(&panel);
    kernels->attend_few(&panel);
    for (size_t i = 0; i < QUERIES * WIDTH; i++)
        assert_true(outputs[i] == 0);

    munmap(keys, 3 * key_bytes);
    munmap(values, 3 * value_bytes);
    free(scratch);
}

static void test_check_accepts_every_set(void **state) {
    static const size_t sizes[] = {1, 7, 64, 600};
    double limit = kernels->k_step == 2 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 4; j++) {
            assert_true(check(kernels, sizes[i], sizes[j], false) <= limit);
            assert_true(check(kernels, sizes[i], sizes[j], true) <= limit);
        }
    }
}

static void test_check_finds_a_wrong_form(void **state) {
    struct kernels wrong = *kernels;
    (void)state;
    wrong.attend = attend_wrongly;
    assert_true(check(&wrong, 16, 16, false) > 0.04);
    wrong = *kernels;
    wrong.attend_few = attend_wrongly;
    assert_true(check(&wrong, 16, 16, true) > 0.04);
    wrong = *kernels;
    wrong.attend = attend_forgetfully;
    for (forgotten = 0; forgotten < 3; forgotten++)
        assert_true(check(&wrong, 16, 16, false) > 0.01);
    wrong = *kernels;
    wrong.transpose = transpose_wrongly;
    assert_true(check(&wrong, 16, 16, false) > 0.01);
    wrong = *kernels;
    wrong.attend_few = attend_to_nothing;
    assert_true(isinf(check(&wrong, 16, 16, false)));
}

static void test_check_without_memory_says_so(void **state) {
    const struct engine engine = {.kernels = kernels, .score_size = 8};
    double difference = -1;
    (void)state;
    bool failed = true;
    for (size_t nth = 1; failed; nth++) {
        fail_alloc_at(nth);
        attn_status status = engine_check_attention(&engine, 8, &difference);
        failed = fail_alloc_stop();
        assert_int_equal(status, failed ? ATTN_E_NOMEM : ATTN_OK);
    }
}

/* --- queries of direct sequences --- */

/* Only the weights of some columns are multiplied: others may be infinite. */
static void test_project_back_multiplies_by_the_columns_of_a_head(void **state) {
    enum { HEAD = 13, HEADS = 3, ROWS = 5, LD = 3 * KERNEL_COLUMNS_MAX };
    bool bf16 = kernels->k_step == 2;
    double limit = bf16 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32;
    uint64_t seed = unit_seed(20261210);
    (void)state;
    for (size_t in = 1; in <= 67; in += 6) {
        const attn_engine_options native = {
            .engine = "native", .cpu = kernels->name, .precision = bf16 ? "bf16" : "f32"};
        const attn_model_info info = {
            .name = "back",
            .layout = "test",
            .width = {.query = in, .key = in, .value = in, .out = in, .head = HEAD},
            .num_heads = HEADS,
            .linears[ATTN_OUTPUT].weight = true};
        float x[ROWS * HEAD], y[ROWS * LD];
        attn_model *model = random_model(&seed, &info);
        for (size_t i = 0; i < HEAD * in; i++)
            model_weight(model, ATTN_KEY)[i] =
                model_weight(model, ATTN_KEY)[2 * HEAD * in + i] = INFINITY;
        assert_int_equal(attn_model_set_engine(model, &native, NULL), ATTN_OK);
        random_fill(&seed, x, ROWS * HEAD);
        memset(y, 0xff, sizeof y);
        model->engine.kernels->project_back(&model->engine.linears[ATTN_KEY].panels,
                                            (struct range){HEAD, 2 * HEAD}, x, HEAD, ROWS,
                                            y, LD);
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t i = 0; i < in; i++) {
                double sum = 0;
                for (size_t c = 0; c < HEAD; c++)
                    sum += (double)x[r * HEAD + c] *
                           (double)model_weight(model, ATTN_KEY)[(HEAD + c) * in + i];
                assert_true(fabs((double)y[r * LD + i] - sum) <= limit * HEAD);
            }
        }
        attn_model_destroy(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_queries_have_the_bits_of_many),
        cmocka_unit_test(test_long_sums_lose_little),
        cmocka_unit_test(test_blocks_without_a_valid_key_are_not_read),
        cmocka_unit_test(test_project_back_multiplies_by_the_columns_of_a_head),
        cmocka_unit_test(test_check_accepts_every_set),
        cmocka_unit_test(test_check_finds_a_wrong_form),
        cmocka_unit_test(test_check_without_memory_says_so),
    };

    return run_with_every_set(tests, sizeof tests / sizeof tests[0]);
}
