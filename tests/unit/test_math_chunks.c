/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_chunks.c: sequences that are summed in chunks of their keys, and how the
 * chunks are merged. */
#include "math/attend/merge.h"
#include "math/model.h"
#include "random_model.h"
#include "ref.h"
#include "split_plainly.h"

#include <attnd/heads.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_engine.h"
#include "run_layer.h"

#define LONG (2 * KERNEL_CHUNK_KEYS + 700)

/* --- merging --- */

enum { QUERIES = 3, SIZE = 5 };

/* The results of three queries, in memory of their own. */
struct results {
    float max[QUERIES], sum[QUERIES], outputs[QUERIES * SIZE];
};

static struct partial partial_of(struct results *results) {
    return (struct partial){results->max, results->sum, results->outputs};
}

/* Attends to `keys` keys, one after the other, whose scores and values are random. */
static struct results random_chunk(uint64_t *seed, size_t keys, double exact[SIZE + 1]) {
    struct results results = {{0}, {0}, {0}};
    float scores[64], values[SIZE];

    random_fill(seed, scores, keys);
    for (size_t c = 0; c < QUERIES; c++) {
        results.max[c] = -INFINITY;
        for (size_t k = 0; k < keys; k++)
            results.max[c] = fmaxf(results.max[c], 20 * scores[k]);
    }
    for (size_t k = 0; k < keys; k++) {
        double weight = exp2(20 * (double)scores[k]);
        random_fill(seed, values, SIZE);
        exact[SIZE] += weight;
        for (size_t d = 0; d < SIZE; d++)
            exact[d] += weight * (double)values[d];
        for (size_t c = 0; c < QUERIES; c++) {
            float relative = exp2f(20 * scores[k] - results.max[c]);
            results.sum[c] += relative;
            for (size_t d = 0; d < SIZE; d++)
                results.outputs[c * SIZE + d] += relative * values[d];
        }
    }
    return results;
}

static void merge(struct results *chunk, struct results *total) {
    const struct partial from = partial_of(chunk), to = partial_of(total);
    partial_merge(kernels_get("auto", false), QUERIES, SIZE, &from, &to);
}

static struct results no_keys(void) {
    struct results results;
    const struct partial partial = partial_of(&results);
    partial_clear(&partial, QUERIES, SIZE);
    return results;
}

static void test_chunks_are_merged_as_if_they_were_one(void **state) {
    uint64_t seed = unit_seed(1);
    (void)state;
    for (size_t chunks = 1; chunks < 6; chunks++) {
        struct results total = no_keys();
        double exact[SIZE + 1] = {0};
        for (size_t i = 0; i < chunks; i++) {
            struct results chunk =
                random_chunk(&seed, random_between(&seed, 1, 64), exact);
            merge(&chunk, &total);
        }
        for (size_t i = 0; i < QUERIES * SIZE; i++) {
            double got = (double)total.outputs[i] / (double)total.sum[i / SIZE];
            assert_true(fabs(got - exact[i % SIZE] / exact[SIZE]) < 1e-5);
        }
    }
}

static void test_one_chunk_keeps_its_bits(void **state) {
    uint64_t seed = unit_seed(2);
    double exact[SIZE + 1] = {0};
    (void)state;
    struct results chunk = random_chunk(&seed, 30, exact), total = no_keys();
    merge(&chunk, &total);
    assert_memory_equal(&total, &chunk, sizeof total);

    /* Also between chunks that have no key. */
    struct results nothing = no_keys();
    merge(&nothing, &total);
    assert_memory_equal(&total, &chunk, sizeof total);
}

static void test_no_chunk_has_a_key(void **state) {
    struct results nothing = no_keys(), total = no_keys();
    float factors[QUERIES];
    (void)state;
    merge(&nothing, &total);
    assert_memory_equal(&total, &nothing, sizeof total);

    const struct partial merged = partial_of(&total);
    partial_factors(kernels_get("auto", false), QUERIES, nothing.max, &merged, factors);
    for (size_t c = 0; c < QUERIES; c++)
        assert_true(isnan(factors[c]));
    total.sum[0] = INFINITY; /* that of a sink */
    partial_factors(kernels_get("auto", false), 1, nothing.max, &merged, factors);
    assert_true(factors[0] == 0.0F);
}

/* Each query has keys in another chunk, or an output that overflowed. */
static void test_queries_are_merged_by_themselves(void **state) {
    (void)state;
    struct results first = {{4, -INFINITY, -1e30F},
                            {1, 0, 2},
                            {[0] = 3, [10] = INFINITY}},
                   second = {{-INFINITY, 7, 0}, {0, 2, 1}, {[5] = 6, [11] = 1}};
    merge(&second, &first);
    assert_true(first.max[0] == 4.0F && first.sum[0] == 1.0F && first.outputs[0] == 3.0F);
    assert_true(first.max[1] == 7.0F && first.sum[1] == 2.0F && first.outputs[5] == 6.0F);
    assert_true(first.max[2] == 0.0F && first.sum[2] == 1.0F &&
                first.outputs[11] == 1.0F);
    assert_true(isnan(first.outputs[10])); /* 0 times infinity: both were in the sum */
}

static void test_factors_make_weights_sum_to_one(void **state) {
    uint64_t seed = unit_seed(3);
    double exact[SIZE + 1] = {0};
    (void)state;
    struct results a = random_chunk(&seed, 40, exact), b = random_chunk(&seed, 9, exact);
    struct results total = no_keys();
    float of_a[QUERIES], of_b[QUERIES];
    merge(&a, &total);
    merge(&b, &total);

    const struct partial merged = partial_of(&total);
    partial_factors(kernels_get("auto", false), QUERIES, a.max, &merged, of_a);
    partial_factors(kernels_get("auto", false), QUERIES, b.max, &merged, of_b);
    for (size_t c = 0; c < QUERIES; c++)
        assert_true(fabsf(a.sum[c] * of_a[c] + b.sum[c] * of_b[c] - 1.0F) < 1e-6F);
}

/* --- the layer --- */

static attn_model *small_model(uint64_t *seed, size_t head_size_max) {
    attn_model_info info = random_model_info(seed);
    info.num_heads = random_between(seed, 1, 2);
    if (info.width.head > head_size_max)
        info.width.head = head_size_max;
    info.linears[ATTN_OUTPUT].weight = true;
    attn_model *model = random_model(seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    return model;
}

static void test_long_sequences_match_the_reference(void **state) {
    uint64_t seed = unit_seed(20261130);
    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        attn_model *model = small_model(&seed, 20);
        struct random_request r;
        random_request_init(&seed, model, 40, LONG, &r);
        assert_as_reference(model, &r.request, i);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

static void test_threads_do_not_change_a_bit_of_long_sequences(void **state) {
    uint64_t seed = unit_seed(20261131);
    size_t num_threads;
    attn_parallel parallel = {.run = run_backwards, .context = &num_threads};
    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        attn_model *model = small_model(&seed, 20);
        struct random_request r;
        attn_sizes sizes, shared_sizes;
        random_request_init(&seed, model, i % 2 == 0 ? 3 : 40, LONG, &r);
        attn_result alone = run(model, &r.request, &sizes);
        for (num_threads = 1; num_threads <= 8; num_threads++) {
            parallel.num_threads = num_threads;
            r.request.parallel = &parallel;
            attn_result shared = run(model, &r.request, &shared_sizes);
            assert_memory_equal(shared.outputs, alone.outputs,
                                sizes.outputs * sizeof(float));
            assert_memory_equal(shared.weights, alone.weights,
                                sizes.weights * sizeof(float));
            free_result(&shared);
        }
        free_result(&alone);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

/* The lengths of some queries end before the last chunks. Heads are too small for direct
 * sequences, which not all parts would be. */
static void test_splits_of_queries_do_not_change_a_bit(void **state) {
    enum { ROWS = 67 };
    uint64_t seed = unit_seed(20261132);
    (void)state;
    if (strcmp(engine.engine, "native") != 0) {
        print_message("only the native engine has the same bits for some rows\n");
        skip();
    }
    attn_model *model = small_model(&seed, 3);
    const attn_model_info *info = attn_model_get_info(model);
    const size_t query_len = ROWS, key_len = LONG;
    float *queries = malloc(ROWS * info->width.query * sizeof *queries);
    float *keys = malloc(key_len * info->width.key * sizeof *keys);
    float *values = malloc(key_len * info->width.value * sizeof *values);
    size_t valid[ROWS];
    random_fill(&seed, queries, ROWS * info->width.query);
    random_fill(&seed, keys, key_len * info->width.key);
    random_fill(&seed, values, key_len * info->width.value);
    for (size_t q = 0; q < ROWS; q++)
        valid[q] = random_between(&seed, 0, q % 2 == 0 ? 3 : LONG);

    attn_request all = {.num_sequences = 1,
                        .query_lens = &query_len,
                        .key_lens = &key_len,
                        .queries = queries,
                        .keys = keys,
                        .values = values,
                        .valid_lens = valid,
                        .valid_lens_per_query = true,
                        .need_weights = ATTN_WEIGHTS_ALL};
    attn_sizes sizes, some_sizes;
    attn_result together = run(model, &all, &sizes);
    for (size_t first = 0, count; first < ROWS; first += count) {
        count = random_between(&seed, 1, ROWS - first < 20 ? ROWS - first : 20);
        attn_request part = all;
        part.query_lens = &count;
        part.queries = queries + first * info->width.query;
        part.valid_lens = valid + first;
        attn_result some = run(model, &part, &some_sizes);
        assert_memory_equal(some.outputs, together.outputs + first * info->width.out,
                            some_sizes.outputs * sizeof(float));
        for (size_t h = 0; h < info->num_heads; h++)
            assert_memory_equal(some.weights + h * count * LONG,
                                together.weights + (h * ROWS + first) * LONG,
                                count * LONG * sizeof(float));
        free_result(&some);
    }
    free_result(&together);
    free(queries);
    free(keys);
    free(values);
    attn_model_destroy(model);
}

/* Adds up the weights of a head over itself, as include/attnd/heads.h defines it. */
static attn_head_sums sum_plainly(const float *weights, const struct plain_keys *keys) {
    attn_head_sums sums = {0};
    double *row = malloc(keys->count * sizeof *row);
    assert_non_null(row);
    for (size_t i = 0; i < keys->count; i++) {
        for (size_t k = 0; k < keys->count; k++)
            row[k] = (double)weights[i * keys->count + k];
        split_plainly(row, keys, i, &sums);
    }
    free(row);
    return sums;
}

/* A sink has a part of the weights, but none of these sums. */
static void compare_sums_of_weights(bool sinks) {
    enum { TOKENS = KERNEL_CHUNK_KEYS + 50, HEADS = 1 };
    uint64_t seed = unit_seed(20261133);
    const size_t len = TOKENS;
    const attn_model_info info = {
        .name = "self",
        .layout = "test",
        .width = {.query = 4, .key = 4, .value = 4, .out = 4, .head = 4},
        .num_heads = HEADS,
        .linears[ATTN_OUTPUT].weight = true,
        .score.sinks = sinks};
    attn_model *model = random_model(&seed, &info);
    float *x = malloc(TOKENS * 4 * sizeof *x);
    attn_sizes sizes;
    if (sinks)
        model->arrays[MODEL_SINKS].numbers[0] =
            7; /* about half of the weight of a thousand keys */
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    random_fill(&seed, x, TOKENS * 4);
    attn_request request = {.num_sequences = 1,
                            .query_lens = &len,
                            .key_lens = &len,
                            .queries = x,
                            .keys = x,
                            .values = x,
                            .causal = true,
                            .need_weights = ATTN_WEIGHTS_ALL};
    attn_result result = run(model, &request, &sizes);

    attn_head_sums got[HEADS] = {{0}};
    double gram[HEADS * HEADS] = {0};
    attn_heads heads = {.num_heads = HEADS, .sums = got, .gram = gram};
    size_t ids[TOKENS];
    for (size_t i = 0; i < TOKENS; i++)
        ids[i] = random_between(&seed, 0, 40);
    request.reduce.token_ids = ids;
    assert_int_equal(attn_heads_plan(model, &request, &sizes, NULL), ATTN_OK);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    attn_heads_add(model, &request, &sizes, scratch, &heads);

    const attn_head_sums expected = sum_plainly(
        result.weights, &(struct plain_keys){TOKENS, TOKENS - 1, ids, true, NULL});
    const double *a = (const double *)&got[0], *b = (const double *)&expected;
    for (size_t i = 0; i < sizeof expected / sizeof *b; i++) {
        if (!(fabs(a[i] - b[i]) <= 1e-4 * fabs(b[i]) + 1e-4))
            fail_msg("sum %zu is %.9g, not %.9g", i, a[i], b[i]);
    }
    free(scratch);
    free_result(&result);
    free(x);
    attn_model_destroy(model);
}

static void test_sums_of_weights_are_merged_too(void **state) {
    (void)state;
    compare_sums_of_weights(false);
    compare_sums_of_weights(true);
}

/* Terms that are alike round alike: a sum of thousands in float32 drifts. */
static void test_sums_of_even_weights_do_not_drift(void **state) {
    static const size_t lens[] = {1000, KERNEL_CHUNK_KEYS, KERNEL_CHUNK_KEYS + 700};
    uint64_t seed = 20261135;
    const attn_model_info info = {
        .name = "even",
        .layout = "test",
        .width = {.query = 4, .key = 4, .value = 4, .out = 4, .head = 4},
        .num_heads = 1,
        .linears[ATTN_OUTPUT].weight = true};
    attn_model *model = random_model(&seed, &info);
    float *zeros = calloc((KERNEL_CHUNK_KEYS + 700) * 4, sizeof *zeros);

    (void)state;
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = &lens[i],
                                      .key_lens = &lens[i],
                                      .queries = zeros,
                                      .keys = zeros,
                                      .values = zeros};
        double gram[1] = {0}, n = (double)lens[i];
        attn_head_sums sums = {0};
        attn_heads heads = {.num_heads = 1, .sums = &sums, .gram = gram};
        attn_sizes sizes;

        assert_int_equal(attn_heads_plan(model, &request, &sizes, NULL), ATTN_OK);
        void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
        attn_heads_add(model, &request, &sizes, scratch, &heads);
        assert_true(fabs(sums.entropy / n - log(n)) <= 1e-5);
        assert_true(fabs(sums.distance / n / ((n - 1 / n) / 3) - 1) <= 2e-6);
        assert_true(fabs(sums.prefix / n / ((n + 1) / (2 * n)) - 1) <= 2e-6);
        free(scratch);
    }
    free(zeros);
    attn_model_destroy(model);
}

/* With a window, the keys of a panel may be in other chunks than those of a row. */
static void test_sinks_do_not_let_rows_depend_on_their_panel(void **state) {
    enum { WINDOW = 100, FIRST = 2380, ROWS = 60, TOKENS = 2500 };
    uint64_t seed = unit_seed(20261134);
    const size_t one = 1, rows = ROWS, tokens = TOKENS;
    const attn_model_info info = {
        .name = "sinks",
        .layout = "test",
        .width = {.query = 8, .key = 8, .value = 8, .out = 8, .head = 4},
        .num_heads = 2,
        .linears[ATTN_OUTPUT].weight = true,
        .score.sinks = true};
    size_t positions[ROWS];
    attn_sizes sizes, one_size;
    (void)state;
    if (strcmp(engine.engine, "native") != 0) {
        print_message("only the native engine has the same bits for some rows\n");
        skip();
    }

    attn_model *model = random_model(&seed, &info);
    float *x = malloc(TOKENS * 8 * sizeof *x);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    random_fill(&seed, x, TOKENS * 8);
    for (size_t q = 0; q < ROWS; q++)
        positions[q] = FIRST + q;
    attn_request request = {.num_sequences = 1,
                            .query_lens = &rows,
                            .key_lens = &tokens,
                            .queries = x + (size_t)FIRST * 8,
                            .keys = x,
                            .values = x,
                            .positions = positions,
                            .causal = true,
                            .window = WINDOW};
    attn_result together = run(model, &request, &sizes);
    for (size_t q = 0; q < ROWS; q++) {
        attn_request alone = request;
        alone.query_lens = &one;
        alone.queries += q * 8;
        alone.positions += q;
        attn_result result = run(model, &alone, &one_size);
        assert_memory_equal(result.outputs, together.outputs + q * 8, 8 * sizeof(float));
        free_result(&result);
    }
    free_result(&together);
    free(x);
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest merging[] = {
        cmocka_unit_test(test_chunks_are_merged_as_if_they_were_one),
        cmocka_unit_test(test_one_chunk_keeps_its_bits),
        cmocka_unit_test(test_no_chunk_has_a_key),
        cmocka_unit_test(test_queries_are_merged_by_themselves),
        cmocka_unit_test(test_factors_make_weights_sum_to_one),
    };
    const struct CMUnitTest layer[] = {
        cmocka_unit_test(test_long_sequences_match_the_reference),
        cmocka_unit_test(test_threads_do_not_change_a_bit_of_long_sequences),
        cmocka_unit_test(test_splits_of_queries_do_not_change_a_bit),
        cmocka_unit_test(test_sums_of_weights_are_merged_too),
        cmocka_unit_test(test_sums_of_even_weights_do_not_drift),
        cmocka_unit_test(test_sinks_do_not_let_rows_depend_on_their_panel),
    };
    return cmocka_run_group_tests(merging, init_library, NULL) +
           run_with_every_engine(layer, sizeof layer / sizeof layer[0]);
}
