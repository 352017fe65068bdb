/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_few.c: attend_few() computes what attend() does, bit by bit, in each set of
 * kernels; what else few queries need; and the check at every start finds an attention
 * that is wrong. */
#include "fail_alloc.h"
#include "math/kernels/kernels.h"
#include "math/model.h"
#include "random_model.h"

#include <attnd/library.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#define CASES       300
#define WIDEST      800 /* head or score */
#define LARGEST_GAP 99  /* between rows */

static const struct kernels *kernels;

/* A random panel of queries and everything that it points to, besides its results. */
struct random_panel {
    struct query_panel panel;
    float *queries, *keys, *values, *additive_score;
    float *key_panels; /* the keys, transposed as struct query_panel says */
    size_t num_keys[KERNEL_FEW_MAX];
    bool uniform[KERNEL_FEW_MAX], wanted[KERNEL_FEW_MAX], piece;
};

/* What either form writes. Outputs are `outputs_ld` floats apart. */
struct results {
    float outputs[KERNEL_FEW_MAX * (WIDEST + LARGEST_GAP)], max[KERNEL_FEW_MAX],
        sum[KERNEL_FEW_MAX];
    float *weights; /* [num_queries, key_len] */
};

static void *allocate(size_t floats) {
    size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes); /* NaN */
    return memory;
}

/* Returns random rows, the last of which ends where its memory does. */
static float *random_rows(uint64_t *seed, size_t rows, size_t ld, size_t width) {
    size_t floats = (rows - 1) * ld + width;
    float *memory = malloc(floats * sizeof *memory);
    assert_non_null(memory);
    random_fill(seed, memory, floats);
    return memory;
}

/* Draws few keys, or about as many as a whole number of blocks, or many. */
static size_t random_key_len(uint64_t *seed, size_t most) {
    switch (random_between(seed, 0, 7)) {
    case 0:
        return random_between(seed, 1, 3);
    case 1:
    case 2:
        return KEY_BLOCK * random_between(seed, 1, 3) + random_between(seed, 0, 4) - 2;
    case 3:
        return random_between(seed, 1, most);
    default:
        return random_between(seed, 1, 2 * KEY_BLOCK);
    }
}

/* Draws the keys of each query: as many for all, those up to its own position, or any. */
static void random_masks(uint64_t *seed, struct random_panel *p) {
    size_t kind = random_between(seed, 0, 3), key_len = p->panel.key_len;
    size_t first = random_between(seed, 0, key_len), least = p->piece ? 0 : 1;

    for (size_t c = 0; c < p->panel.num_queries; c++) {
        size_t keys = key_len;
        if (kind == 1)
            keys = first;
        else if (kind == 2)
            keys = first + c;
        else if (kind == 3)
            keys = random_between(seed, 0, key_len);
        keys = keys < least ? least : keys;
        p->num_keys[c] = keys < key_len ? keys : key_len;
        p->uniform[c] = random_between(seed, 0, 9) == 0;
        p->wanted[c] = random_between(seed, 0, 2) > 0;
    }
}

/* Makes the values of some key infinite or NaN. Queries that do not attend to it must not
 * meet them. */
static void spoil_values(uint64_t *seed, struct random_panel *p) {
    const struct query_panel *panel = &p->panel;
    size_t key = random_between(seed, 0, 4 * panel->key_len);
    for (size_t d = 0; key < panel->key_len && d < panel->head_size; d++)
        p->values[key * panel->values_ld + d] = d % 2 == 0 ? INFINITY : NAN;
}

static void convert(struct random_panel *p, size_t rows) {
    struct query_panel *panel = &p->panel;
    if (panel->additive_score == NULL)
        kernels->convert_bf16(p->keys, panel->keys_ld, rows, panel->score_size, p->keys,
                              panel->keys_ld);
    kernels->pack_pairs_bf16(p->values, panel->values_ld, rows, panel->head_size,
                             p->values, 2 * panel->values_ld);
    panel->values_ld *= 2;
}

static void fill_key_panels(struct random_panel *p) {
    const struct query_panel *panel = &p->panel;
    size_t words = (panel->score_size + kernels->k_step - 1) / kernels->k_step;

    p->key_panels = allocate(panel->key_len * words + KEY_BLOCK);
    for (size_t k = 0; k < panel->key_len; k++) {
        size_t first = k / KEY_BLOCK * KEY_BLOCK, left = panel->key_len - first;
        size_t count = left < KEY_BLOCK ? left : KEY_BLOCK;
        for (size_t d = 0; d < words; d++)
            p->key_panels[first * words + d * count + k - first] =
                panel->keys[k * panel->keys_ld + d];
    }
}

static void random_panel_init(uint64_t *seed, size_t num_queries, size_t head_size,
                              struct random_panel *p) {
    size_t gap = random_between(seed, 0, 1) * LARGEST_GAP, score_size = head_size;

    if (random_between(seed, 0, 1) == 0)
        score_size = random_between(seed, 1, 140);

    *p = (struct random_panel){.piece = random_between(seed, 0, 2) == 0};
    p->panel = (struct query_panel){
        .num_queries = num_queries,
        .score_size = score_size,
        .head_size = head_size,
        .queries_ld = score_size + random_between(seed, 0, gap),
        .keys_ld = score_size + random_between(seed, 0, gap),
        .values_ld = head_size + random_between(seed, 0, gap),
        .outputs_ld = head_size + random_between(seed, 0, gap),
        .key_len = random_key_len(seed, p->piece ? KERNEL_PIECE_KEYS : 3000),
        .num_keys = p->num_keys,
        .uniform = p->uniform,
        .scale = 0.01F * (float)random_between(seed, 1, 300),
        .factor = random_between(seed, 0, 1) == 0 ? 1.0F : -0.7F,
    };
    struct query_panel *panel = &p->panel;
    p->queries = random_rows(seed, num_queries, panel->queries_ld, score_size);
    p->keys = random_rows(seed, panel->key_len, panel->keys_ld, score_size);
    p->values = random_rows(seed, panel->key_len, panel->values_ld, head_size);
    p->additive_score = random_rows(seed, 1, score_size, score_size);
    panel->keys = p->keys;
    panel->values = p->values;
    panel->queries = p->queries;
    if (random_between(seed, 0, 7) == 0)
        panel->additive_score = p->additive_score;
    random_masks(seed, p);
    spoil_values(seed, p);
    if (panel->key_len == 1 && !p->piece) /* then its keys are not even projected */
        memset(p->keys, 0xff, score_size * sizeof *p->keys);
    if (kernels->k_step == 2)
        convert(p, panel->key_len);
    fill_key_panels(p);
}

static void random_panel_deinit(struct random_panel *p) {
    free(p->queries);
    free(p->keys);
    free(p->values);
    free(p->additive_score);
    free(p->key_panels);
}

/* Runs one of the forms on at most `most` queries at a time. Outputs take the place of
 * queries that are as wide, except in a piece. */
static void attend(void (*form)(const struct query_panel *panel), size_t most,
                   const struct random_panel *p, struct results *results) {
    const struct query_panel *all = &p->panel;
    size_t size = all->score_size, bytes;
    bool in_place = !p->piece && size == all->head_size;

    memset(results->outputs, 0xff, sizeof results->outputs);
    memset(results->max, 0xff, sizeof results->max);
    memset(results->sum, 0xff, sizeof results->sum);
    results->weights = allocate(all->num_queries * all->key_len);
    for (size_t c = 0; in_place && c < all->num_queries; c++)
        memcpy(results->outputs + c * all->outputs_ld, all->queries + c * all->queries_ld,
               size * sizeof(float));
    for (size_t first = 0; first < all->num_queries; first += most) {
        float *rows[KERNEL_FEW_MAX];
        struct query_panel panel = *all;
        size_t left = all->num_queries - first;
        bool any = false;

        panel.num_queries = left < most ? left : most;
        panel.queries += first * panel.queries_ld;
        panel.num_keys += first;
        panel.uniform += first;
        panel.outputs = results->outputs + first * panel.outputs_ld;
        if (in_place) {
            panel.queries = panel.outputs;
            panel.queries_ld = panel.outputs_ld;
        }
        for (size_t c = 0; c < panel.num_queries; c++) {
            bool wanted = p->wanted[first + c];
            rows[c] = wanted ? results->weights + (first + c) * panel.key_len : NULL;
            any = any || wanted;
        }
        panel.weights = any ? rows : NULL;
        panel.max = p->piece ? results->max + first : NULL;
        panel.sum = p->piece ? results->sum + first : NULL;
        bytes = kernel_scratch_bytes(size, panel.head_size, panel.key_len, any);
        panel.scratch = allocate(bytes / sizeof(float));
        form(&panel);
        free(panel.scratch);
    }
}

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
                 "head_size %zu, additive %d, piece %d, in panels %d",
                 panel->num_queries, most, panel->key_len, panel->score_size,
                 panel->head_size, panel->additive_score != NULL, p->piece,
                 panel->keys_in_panels);
    free(few.weights);
}

static void expect_same_bits(struct random_panel *p) {
    static struct results many;
    struct query_panel *panel = &p->panel;

    attend(kernels->attend, kernels->columns, p, &many);
    expect_results(kernels->attend_few, KERNEL_FEW_MAX, p, &many);
    if (panel->additive_score == NULL) {
        panel->keys = p->key_panels;
        panel->keys_ld = (panel->score_size + kernels->k_step - 1) / kernels->k_step;
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
    uint64_t seed = 90;
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
    enum { KEYS = KERNEL_PIECE_KEYS - 1 };
    (void)state;
    if (kernels->k_step > 1) /* a value is rounded to bfloat16 anyway */
        skip();

    float *rows = allocate(KEYS), query = 0, output;
    size_t num_keys = KEYS;
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
                                      .num_keys = &num_keys,
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
    uint64_t seed = 20261210;
    (void)state;
    for (size_t in = 1; in <= 67; in += 6) {
        const attn_engine_options native = {
            .engine = "native", .cpu = kernels->name, .precision = bf16 ? "bf16" : "f32"};
        const attn_model_info info = {.name = "back",
                                      .layout = "test",
                                      .query_size = in,
                                      .key_size = in,
                                      .value_size = in,
                                      .out_size = in,
                                      .num_heads = HEADS,
                                      .head_size = HEAD,
                                      .output_projection = true};
        float x[ROWS * HEAD], y[ROWS * LD];
        attn_model *model = random_model(&seed, &info);
        for (size_t i = 0; i < HEAD * in; i++)
            model->key_weight[i] = model->key_weight[2 * HEAD * in + i] = INFINITY;
        assert_int_equal(attn_model_set_engine(model, &native, NULL), ATTN_OK);
        random_fill(&seed, x, ROWS * HEAD);
        memset(y, 0xff, sizeof y);
        kernels->project_back(&model->engine.to_key.panels,
                              (struct range){HEAD, 2 * HEAD}, x, HEAD, ROWS, y, LD);
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t i = 0; i < in; i++) {
                double sum = 0;
                for (size_t c = 0; c < HEAD; c++)
                    sum += (double)x[r * HEAD + c] *
                           (double)model->key_weight[(HEAD + c) * in + i];
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
        cmocka_unit_test(test_project_back_multiplies_by_the_columns_of_a_head),
        cmocka_unit_test(test_check_accepts_every_set),
        cmocka_unit_test(test_check_finds_a_wrong_form),
        cmocka_unit_test(test_check_without_memory_says_so),
    };
    int failures = 0;

    for (size_t i = 0; (kernels = kernels_available(i)) != NULL; i++) {
        char name[64];

        snprintf(name, sizeof name, "%s, %s", kernels->name,
                 kernels->k_step == 2 ? "bf16" : "f32");
        failures += _cmocka_run_group_tests(name, tests, sizeof tests / sizeof tests[0],
                                            NULL, NULL);
    }
    return failures;
}
