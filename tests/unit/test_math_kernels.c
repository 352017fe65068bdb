/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_kernels.c: what each set of kernels promises: its powers of 2, bits that
 * depend on nothing else, agreement with cblas; engines chosen, verified and trimmed. */
#include "fail_alloc.h"
#include "math/blas.h"
#include "math/model.h"
#include "random_model.h"
#include "sample.h"

#include <attnd/library.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "near_reference.h"

#define MAX_ULPS 2.0 /* as src/math/kernels/kernels.h promises for exp2 */

static const struct kernels *kernels;
static attn_engine_options engine; /* the native one, with them */

static int init_library(void **state) {
    attn_error error;
    (void)state;
    return attn_init(&error) == ATTN_OK ? 0 : -1;
}

/* Units in the last place of a float32 between `got` and the exact result. */
static double ulps(float got, double exact) {
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1.0, exponent - 24);
}

/* Every 61st float32 from -126 to 128, or fewer by UNIT_SAMPLE. */
static void test_exp2_is_within_two_ulps_over_its_whole_range(void **state) {
    (void)state;
    double worst = 0;
    size_t tried = 0;
    uint32_t step = sample_step(61);
    for (uint32_t bits = 0; bits < 0x43000000; bits += step) {
        float values[2];
        memcpy(&values[0], &bits, sizeof bits);
        values[1] = -values[0];
        const float x[2] = {values[0], values[1]};
        kernels->exp2(values, 2);
        for (int i = 0; i < 2; i++) {
            if (x[i] < -126.0F || x[i] >= 128.0F)
                continue;
            worst = fmax(worst, ulps(values[i], exp2((double)x[i])));
            tried++;
        }
    }
    print_message("%s: worst of %zu: %.3f ulp\n", kernels->name, tried, worst);
    assert_true(worst <= MAX_ULPS);
}

static void test_exp2_of_special_values(void **state) {
    (void)state;
    float values[] = {0.0F, -0.0F, 1.0F, -126.0F, -1e30F, -INFINITY, NAN, -126.1F};
    kernels->exp2(values, sizeof values / sizeof values[0]);
    const float expected[] = {1, 1, 2, 0x1p-126F, 0, 0};
    for (size_t i = 0; i < 6; i++)
        assert_true(values[i] == expected[i]);
    assert_true(isnan(values[6]));
    assert_true(values[7] >= 0 && values[7] < 0x1p-126F);
}

static void test_words_are_summed_whatever_their_number(void **state) {
    (void)state;
    uint32_t words[700], sum = 0, random = (uint32_t)unit_seed(1);
    float same[sizeof words / sizeof *words];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        words[i] = random = random * 1664525 + 1013904223;
    memcpy(same, words, sizeof words);
    for (size_t count = 0; count < sizeof words / sizeof *words; count++) {
        assert_int_equal(kernels->sum_words(same, count), sum);
        sum += words[count];
    }
}

static float *allocate(size_t floats) {
    float *memory =
        aligned_alloc(ATTN_ALIGNMENT, (floats * sizeof(float) + 63) / 64 * 64);
    assert_non_null(memory);
    return memory;
}

/* Fills all scratch with NaN, then runs a request; the caller frees both results. */
static attn_result run(const attn_model *model, const attn_request *request) {
    attn_sizes sizes;
    assert_int_equal(attn_plan(model, request, &sizes, NULL), ATTN_OK);
    void *scratch = allocate(sizes.scratch_bytes / sizeof(float));
    memset(scratch, 0xff, sizes.scratch_bytes);
    attn_result result = {.weights = allocate(sizes.weights + 1)};
    result.outputs = allocate(sizes.outputs);
    attn_run(model, request, &sizes, scratch, &result);
    free(scratch);
    return result;
}

static void free_result(attn_result *result) {
    free(result->outputs);
    free(result->weights);
}

/* A parallel for loop whose threads take tasks in any order, unlike one thread alone. */
enum { THREADS = 4 };
struct parallel_run {
    void (*task)(void *data, size_t index, size_t thread);
    void *data;
    size_t count;
    atomic_size_t next, next_thread;
};

static void *take_tasks(void *argument) {
    struct parallel_run *run = argument;
    size_t thread = atomic_fetch_add(&run->next_thread, 1), index;
    while ((index = atomic_fetch_add(&run->next, 1)) < run->count)
        run->task(run->data, run->count - 1 - index, thread);
    return NULL;
}

static void run_parallel(void *context, size_t count,
                         void (*task)(void *data, size_t index, size_t thread),
                         void *data) {
    struct parallel_run run = {.task = task, .data = data, .count = count};
    pthread_t threads[THREADS];
    (void)context;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_tasks, &run), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static const attn_parallel parallel = {.num_threads = THREADS, .run = run_parallel};

static attn_model *wide_model(uint64_t *seed, attn_scoring kind, size_t size, size_t in) {
    const attn_model_info info = {.name = "wide",
                                  .layout = "test",
                                  .score.kind = kind,
                                  .width = {.additive = kind == ATTN_ADDITIVE ? size : 0,
                                            .query = in,
                                            .key = in,
                                            .value = in,
                                            .head = size,
                                            .out = 33},
                                  .num_heads = 5,
                                  .linears = {[ATTN_QUERY].bias = true,
                                              [ATTN_KEY].bias = true,
                                              [ATTN_VALUE].bias = true,
                                              [ATTN_OUTPUT].bias = true,
                                              [ATTN_OUTPUT].weight = true}};
    attn_model *model = random_model(seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    return model;
}

/* Computes sequences of random lengths in one request, by several threads, and then each
 * sequence by itself. Not one bit may differ. */
static void expect_same_bits(attn_scoring scoring, size_t size, size_t num_sequences,
                             uint64_t seed) {
    seed = unit_seed(seed);
    attn_model *model = wide_model(&seed, scoring, size, 70);
    size_t *lens = malloc(num_sequences * sizeof *lens),
           *valid = malloc(num_sequences * sizeof *lens);
    size_t rows = 0;

    for (size_t s = 0; s < num_sequences; s++) {
        lens[s] = random_between(&seed, 1, 220);
        valid[s] = random_between(&seed, 0, lens[s]);
        rows += lens[s];
    }
    float *x = allocate(rows * 70);
    random_fill(&seed, x, rows * 70);

    attn_request all = {.num_sequences = num_sequences,
                        .query_lens = lens,
                        .key_lens = lens,
                        .queries = x,
                        .keys = x,
                        .values = x,
                        .valid_lens = valid,
                        .causal = seed % 2 == 0,
                        .need_weights = ATTN_WEIGHTS_ALL,
                        .parallel = &parallel};
    attn_result together = run(model, &all);
    const float *outputs = together.outputs, *weights = together.weights;

    for (size_t s = 0, row = 0; s < num_sequences; row += lens[s], s++) {
        attn_request one = all;
        one.num_sequences = 1;
        one.query_lens = one.key_lens = &lens[s];
        one.valid_lens = &valid[s];
        one.queries = one.keys = one.values = x + row * 70;
        one.parallel = NULL;
        if (s % 2 == 1)
            one.need_weights = ATTN_WEIGHTS_NONE; /* weights come from the same pass */

        attn_result alone = run(model, &one);
        size_t num_weights = lens[s] * lens[s] * 5;
        assert_memory_equal(alone.outputs, outputs, lens[s] * 33 * sizeof *outputs);
        if (s % 2 == 0)
            assert_memory_equal(alone.weights, weights, num_weights * sizeof *weights);
        outputs += lens[s] * 33;
        weights += num_weights;
        free_result(&alone);
    }

    print_message("%s: %zu rows in %zu sequences\n", kernels->name, rows, num_sequences);
    assert_true(rows > 2500);
    free_result(&together);
    free(x);
    free(lens);
    free(valid);
    attn_model_destroy(model);
}

static void test_bits_do_not_depend_on_neighbours_or_threads(void **state) {
    (void)state;
    expect_same_bits(ATTN_SCALED_DOT_PRODUCT, 15, 100, 77);
    expect_same_bits(ATTN_SCALED_DOT_PRODUCT, 32, 45, 79); /* keys follow by head */
    expect_same_bits(ATTN_ADDITIVE, 5, 45, 78);
    expect_same_bits(ATTN_ADDITIVE, 32, 45, 81);
}

/* A query's bits do not depend on which other queries of its sequence come with it. */
static void test_bits_do_not_depend_on_how_queries_are_split(void **state) {
    (void)state;
    enum { QUERIES = 131, KEYS = 150 };
    uint64_t seed = unit_seed(79);
    attn_model *model = wide_model(&seed, ATTN_SCALED_DOT_PRODUCT, 15, 70);
    float *queries = allocate(QUERIES * 70), *keys = allocate(KEYS * 70);
    random_fill(&seed, queries, QUERIES * 70);
    random_fill(&seed, keys, KEYS * 70);

    size_t valid[QUERIES];
    for (size_t q = 0; q < QUERIES; q++)
        valid[q] = random_between(&seed, 0, KEYS);

    const size_t query_len = QUERIES, key_len = KEYS;
    attn_request all = {.num_sequences = 1,
                        .query_lens = &query_len,
                        .key_lens = &key_len,
                        .queries = queries,
                        .keys = keys,
                        .values = keys,
                        .valid_lens = valid,
                        .valid_lens_per_query = true};
    attn_result together = run(model, &all);

    for (size_t first = 0, count; first < QUERIES; first += count) {
        count = random_between(&seed, 1, 40);
        if (count > QUERIES - first)
            count = QUERIES - first;
        attn_request some_queries = all;
        some_queries.query_lens = &count;
        some_queries.queries = queries + first * 70;
        some_queries.valid_lens = valid + first;
        attn_result some = run(model, &some_queries);
        assert_memory_equal(some.outputs, together.outputs + first * 33,
                            count * 33 * sizeof(float));
        free_result(&some);
    }

    free_result(&together);
    free(queries);
    free(keys);
    attn_model_destroy(model);
}

/* In float32, the plain program over cblas is a second reference. */
static void test_large_layer_matches_the_reference(void **state) {
    (void)state;
    uint64_t seed = unit_seed(80);
    const attn_model_info info = {
        .width = {.query = 256, .key = 256, .value = 256, .head = 64, .out = 256},
        .num_heads = 4,
        .score.scale = 1.0 / 128, /* scores as trained layers have them */
        .linears[ATTN_OUTPUT].weight = true};
    attn_model *model = random_model(&seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);

    const size_t lens[] = {300, 513}, count = (size_t)813 * 256;
    float *x = allocate(813 * 256);
    random_fill(&seed, x, 813 * 256);
    attn_request request = {.num_sequences = 2,
                            .query_lens = lens,
                            .key_lens = lens,
                            .queries = x,
                            .keys = x,
                            .values = x,
                            .causal = true,
                            .parallel = &parallel};
    attn_result got = run(model, &request);
    double *expected = calloc(count, sizeof *expected);
    struct comparison c = compare_to_reference(model, &request, 0);
    run_reference(model, &request, &(struct ref_result){.outputs = expected});
    assert_expected(&c, REF_OUTPUTS, got.outputs, expected, count, 0);
    free(expected);
    free_result(&got);
    free(x);
    attn_model_destroy(model);
}

static void test_unknown_engine_and_missing_kernels_are_refused(void **state) {
    (void)state;
    uint64_t seed = unit_seed(81);
    attn_error error;
    attn_model *model = wide_model(&seed, ATTN_SCALED_DOT_PRODUCT, 15, 70);
    const struct {
        attn_engine_options engine;
        attn_status status;
        const char *text;
    } cases[] = {
        {{"fast", NULL, NULL, false}, ATTN_E_VALUE, "auto, native or openblas"},
        {{NULL, NULL, "f16", false}, ATTN_E_VALUE, "f32 or bf16"},
        {{NULL, "avx1024", NULL, false}, ATTN_E_UNSUPPORTED, "avx1024"},
        {{NULL, "avx1024", "bf16", false}, ATTN_E_UNSUPPORTED, "avx1024"},
        {{NULL, "portable", "bf16", false}, ATTN_E_UNSUPPORTED, "AVX512-BF16"},
        {{blas_engine, NULL, "bf16", false}, ATTN_E_UNSUPPORTED, "f32 only"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(attn_model_set_engine(model, &cases[i].engine, &error),
                         cases[i].status);
        assert_non_null(strstr(error.text, cases[i].text));
        assert_string_equal(attn_model_get_info(model)->engine.cpu, kernels->name);
        assert_string_equal(attn_model_get_info(model)->engine.precision,
                            engine.precision);
    }
    attn_model_destroy(model);
}

/* Gives a model the engine under test, to serve; the two engines must agree. */
static void prepare(attn_model *model) {
    attn_error error;
    bool agree = false;
    assert_int_equal(model_prepare_to_serve(model, &engine, &agree, &error), ATTN_OK);
    assert_true(agree);
}

/* A model that serves computes the same bits with half of the memory, and cannot change
 * its engine. */
static void test_a_model_that_serves_keeps_its_engine(void **state) {
    (void)state;
    uint64_t seed = unit_seed(82);
    const size_t length = 40;
    float x[40 * 70];
    random_fill(&seed, x, 40 * 70);
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &length,
                                  .key_lens = &length,
                                  .queries = x,
                                  .keys = x,
                                  .values = x};

    for (int additive = 0; additive < 2; additive++) {
        attn_model *model =
            wide_model(&seed, additive ? ATTN_ADDITIVE : ATTN_SCALED_DOT_PRODUCT, 15, 70);
        const attn_model_info *info = attn_model_get_info(model);
        attn_result before = run(model, &request);
        size_t packed = model->engine.bytes;
        assert_true(info->footprint.memory >= packed + info->footprint.bytes);
        prepare(model);
        assert_int_equal(info->footprint.memory, packed);
        assert_true(info->engine.difference > 0 &&
                    info->engine.difference <= ATTN_TOLERANCE_BF16);
        assert_string_equal(info->engine.name, "native");
        assert_string_equal(info->engine.precision, engine.precision);
        attn_result after = run(model, &request);
        assert_memory_equal(before.outputs, after.outputs, 40 * 33 * sizeof(float));

        attn_error error;
        assert_int_equal(attn_model_set_engine(model, &engine, &error),
                         ATTN_E_UNSUPPORTED);
        assert_non_null(strstr(error.text, "load it without serve_only"));

        free_result(&before);
        free_result(&after);
        attn_model_destroy(model);
    }
}

/* Weights of 700 inputs are larger than scratch: all that is as large is a packing. */
static void test_preparing_packs_weights_once(void **state) {
    (void)state;
    uint64_t seed = unit_seed(84);
    attn_model *model = wide_model(&seed, ATTN_SCALED_DOT_PRODUCT, 15, 700);
    model->info.context_length = 1; /* little scratch */
    count_alloc_from(model->engine.bytes);
    prepare(model);
    assert_int_equal(count_alloc_stop(), 1);
    attn_model_destroy(model);
}

/* The native engine starts its sums with the bias, and OpenBLAS adds it at the end. A
 * large one, which then cancels in the output projection, leaves what they round. */
static void test_engines_that_disagree_are_told(void **state) {
    (void)state;
    uint64_t seed = unit_seed(85);
    attn_model *model = wide_model(&seed, ATTN_SCALED_DOT_PRODUCT, 15, 70);
    const attn_model_info *info = attn_model_get_info(model);
    size_t hidden = info->num_heads * info->width.head;
    for (size_t i = 0; i < hidden; i++)
        model_bias(model, ATTN_VALUE)[i] = i % 2 == 0 ? 1e8F : -1e8F;
    model_bias(model, ATTN_VALUE)[hidden - 1] = 0; /* of an odd number */
    for (size_t i = 0; i < info->width.out * hidden; i++)
        model_weight(model, ATTN_OUTPUT)[i] = 1;
    memset(model_bias(model, ATTN_OUTPUT), 0, info->width.out * sizeof(float));

    bool agree = true;
    assert_int_equal(model_prepare_to_serve(model, &engine, &agree, NULL), ATTN_OK);
    bool bf16 = kernels->k_step == 2; /* compared with what it is that cancels */
    assert_int_equal(agree, bf16);
    assert_int_equal(info->engine.difference > ATTN_TOLERANCE_F32, !bf16);
    attn_model_destroy(model);
}

static void test_preparing_without_memory_is_reported(void **state) {
    (void)state;
    size_t refused = 0;
    bool failed = true;
    for (size_t nth = 1; failed; nth++) {
        uint64_t seed = unit_seed(86);
        attn_model *model = wide_model(&seed, ATTN_ADDITIVE, 15, 70);
        bool agree;
        fail_alloc_at(nth);
        attn_status status = model_prepare_to_serve(model, &engine, &agree, NULL);
        failed = fail_alloc_stop();
        assert_true(status == ATTN_OK || (failed && status == ATTN_E_NOMEM));
        refused += status == ATTN_E_NOMEM ? 1 : 0; /* the others were to shrink arrays */
        attn_model_destroy(model);
    }
    assert_in_range(refused, 10, 30);
}

/* bfloat16 needs half of the memory of float32, except for biases and rounding up. */
static void test_packed_weights_need_little_more_than_their_numbers(void **state) {
    (void)state;
    uint64_t seed = unit_seed(83);
    attn_model *model = wide_model(&seed, ATTN_SCALED_DOT_PRODUCT, 15, 70);
    size_t step = kernels->step_numbers;
    size_t wide = (70 + step - 1) / step, hidden = (75 + step - 1) / step;
    size_t bytes = (wide * 96 * 3 + hidden * 64) * kernels->step_words * sizeof(float);
    prepare(model);
    assert_in_range(model->info.footprint.memory, bytes * 3 / 4, bytes * 5 / 4);
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp2_is_within_two_ulps_over_its_whole_range),
        cmocka_unit_test(test_exp2_of_special_values),
        cmocka_unit_test(test_words_are_summed_whatever_their_number),
        cmocka_unit_test(test_bits_do_not_depend_on_neighbours_or_threads),
        cmocka_unit_test(test_bits_do_not_depend_on_how_queries_are_split),
        cmocka_unit_test(test_large_layer_matches_the_reference),
        cmocka_unit_test(test_a_model_that_serves_keeps_its_engine),
        cmocka_unit_test(test_preparing_packs_weights_once),
        cmocka_unit_test(test_engines_that_disagree_are_told),
        cmocka_unit_test(test_preparing_without_memory_is_reported),
        cmocka_unit_test(test_packed_weights_need_little_more_than_their_numbers),
        cmocka_unit_test(test_unknown_engine_and_missing_kernels_are_refused),
    };
    int failures = 0;

    for (size_t i = 0; (kernels = kernels_available(i)) != NULL; i++) {
        char name[64];

        engine =
            (attn_engine_options){.engine = "native",
                                  .cpu = kernels->name,
                                  .precision = kernels->k_step == 2 ? "bf16" : "f32"};
        snprintf(name, sizeof name, "%s, %s", engine.cpu, engine.precision);
        failures += _cmocka_run_group_tests(name, tests, sizeof tests / sizeof tests[0],
                                            init_library, NULL);
    }
    return failures;
}
