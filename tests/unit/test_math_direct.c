/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_direct.c: few queries over many keys, whose projections are turned round. */
#include "math/model.h"
#include "math/run/run.h"
#include "math/steps.h"
#include "random_model.h"
#include "ref.h"

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

#define MANY      PLAN_DIRECT_KEYS_MIN
#define CASES_MAX 200 /* until enough of those that are drawn are direct */

static bool is_native(void) {
    return strcmp(engine.engine, "native") == 0;
}

/* Heads of 4 to 64 columns, so that 1 to 16 queries are few. */
static attn_model *wide_model(uint64_t *seed) {
    attn_model_info info = random_model_info(seed);
    info.score.kind = ATTN_SCALED_DOT_PRODUCT;
    info.width.additive = 0;
    info.num_heads = random_between(seed, 1, 4);
    info.width.head = random_between(seed, 4, 64);
    info.width.score = random_between(seed, 0, 1) * random_between(seed, 4, 64);
    if (!info.linears[ATTN_OUTPUT].weight)
        info.width.out = info.num_heads * info.width.head;
    attn_model *model = random_model(seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    return model;
}

/* Makes a request of which some sequences are direct, of a model for it. */
static attn_model *random_case(uint64_t *seed, size_t max_keys,
                               struct random_request *ret_request) {
    attn_model *model = wide_model(seed);
    random_request_init(seed, model, 16, max_keys, ret_request);
    return model;
}

static struct plan plan_of(const attn_model *model, const attn_request *request) {
    struct plan plan;
    assert_int_equal(plan_make(model, request, PLAN_RUN, &plan, NULL), ATTN_OK);
    return plan;
}

static void assert_same(const attn_result *a, const attn_result *b,
                        const attn_sizes *sizes) {
    assert_memory_equal(a->outputs, b->outputs, sizes->outputs * sizeof(float));
    assert_memory_equal(a->weights, b->weights, sizes->weights * sizeof(float));
    assert_memory_equal(a->lse, b->lse, sizes->lse * sizeof(float));
}

static void test_direct_sequences_match_the_reference(void **state) {
    uint64_t seed = unit_seed(20261201);
    size_t num_direct = 0, num_mixed = 0;
    (void)state;
    for (unsigned i = 0;
         i < 16 || (is_native() && i < CASES_MAX && (num_direct <= 4 || num_mixed <= 2));
         i++) {
        struct random_request r;
        attn_model *model = random_case(&seed, 3000, &r);
        const struct plan plan = plan_of(model, &r.request);
        assert_as_reference(model, &r.request, i);
        num_direct += plan.batch.num_direct > 0;
        num_mixed += plan.batch.projected_keys > 0 && plan.batch.num_direct > 0;
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
    assert_true(is_native() ? num_direct > 4 && num_mixed > 2 : num_direct == 0);
}

/* Direct scores lack what the key's bias adds to all of a query. */
static void test_log_sum_exps_have_the_bias_of_keys(void **state) {
    uint64_t seed = unit_seed(20261210);
    size_t num_direct = 0;
    (void)state;
    for (unsigned i = 0; i < 8 || (is_native() && i < CASES_MAX && num_direct <= 2);
         i++) {
        struct random_request r;
        attn_sizes sizes;
        attn_model *model = random_case(&seed, 3000, &r);
        r.request.need_lse = true;
        attn_result with = run(model, &r.request, &sizes);
        double *lse = malloc(sizes.lse * sizeof *lse);
        const struct comparison c = compare_to_reference(model, &r.request, i);
        run_reference(model, &r.request, &(struct ref_result){.lse = lse});
        assert_expected(&c, REF_LSE, with.lse, lse, sizes.lse, 1);
        num_direct += plan_of(model, &r.request).batch.num_direct > 0;
        free(lse);
        free_result(&with);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
    assert_true(!is_native() || num_direct > 2);
}

static void test_threads_do_not_change_a_bit_of_direct_sequences(void **state) {
    uint64_t seed = unit_seed(20261202);
    size_t num_threads, num_split = 0;
    attn_parallel parallel = {.run = run_backwards, .context = &num_threads};
    (void)state;
    for (unsigned i = 0; i < 10 || (is_native() && i < CASES_MAX && num_split <= 4);
         i++) {
        struct random_request r;
        attn_sizes sizes, shared_sizes;
        attn_model *model = random_case(&seed, 6000, &r);
        attn_result alone = run(model, &r.request, &sizes);
        for (num_threads = 1; num_threads <= 8; num_threads++) {
            parallel.num_threads = num_threads;
            r.request.parallel = &parallel;
            const struct plan plan = plan_of(model, &r.request);
            attn_result shared = run(model, &r.request, &shared_sizes);
            assert_same(&shared, &alone, &sizes);
            num_split += plan.batch.num_direct > 0 && plan.scratch.splits;
            free_result(&shared);
        }
        free_result(&alone);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
    assert_true(!is_native() || num_split > 4);
}

/* One sequence of a batch, as a request of its own. */
static attn_request take_sequence(const attn_model *model, const attn_request *batch,
                                  size_t sequence) {
    const attn_model_info *info = attn_model_get_info(model);
    attn_request one = *batch;

    one.num_sequences = 1;
    for (size_t s = 0; s < sequence; s++) {
        one.queries += batch->query_lens[s] * info->width.query;
        one.keys += batch->key_lens[s] * info->width.key;
        one.values += batch->key_lens[s] * info->width.value;
        if (batch->valid_lens != NULL)
            one.valid_lens += batch->valid_lens_per_query ? batch->query_lens[s] : 1;
        if (batch->prefix_lens != NULL)
            one.prefix_lens++;
    }
    one.query_lens += sequence;
    one.key_lens += sequence;
    return one;
}

static void test_direct_sequences_do_not_depend_on_their_neighbours(void **state) {
    uint64_t seed = unit_seed(20261203);
    (void)state;
    if (!is_native()) {
        print_message("only the native engine has the same bits for some rows\n");
        skip();
    }
    for (unsigned i = 0; i < 10; i++) {
        struct random_request r;
        attn_sizes sizes, own;
        attn_model *model = random_case(&seed, 3000, &r);
        attn_result together = run(model, &r.request, &sizes);
        const float *outputs = together.outputs, *weights = together.weights;
        for (size_t s = 0; s < r.request.num_sequences; s++) {
            attn_request one = take_sequence(model, &r.request, s);
            attn_result alone = run(model, &one, &own);
            assert_memory_equal(alone.outputs, outputs, own.outputs * sizeof(float));
            assert_memory_equal(alone.weights, weights, own.weights * sizeof(float));
            outputs += own.outputs;
            weights += own.weights;
            free_result(&alone);
        }
        free_result(&together);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

/* A model and one sequence, all of whose numbers are random. */
struct single {
    attn_model *model;
    size_t query_len, key_len;
    attn_request request;
    float *queries, *keys, *values;
};

static struct single single_init(uint64_t *seed, const attn_model_info *info,
                                 size_t query_len, size_t key_len) {
    struct single s = {.model = random_model(seed, info),
                       .query_len = query_len,
                       .key_len = key_len,
                       .queries = malloc(query_len * info->width.query * sizeof(float)),
                       .keys = malloc(key_len * info->width.key * sizeof(float)),
                       .values = malloc(key_len * info->width.value * sizeof(float))};
    assert_int_equal(attn_model_set_engine(s.model, &engine, NULL), ATTN_OK);
    random_fill(seed, s.queries, query_len * info->width.query);
    random_fill(seed, s.keys, key_len * info->width.key);
    random_fill(seed, s.values, key_len * info->width.value);
    s.request = (attn_request){
        .num_sequences = 1, .queries = s.queries, .keys = s.keys, .values = s.values};
    return s;
}

static void single_deinit(struct single *s) {
    attn_model_destroy(s->model);
    free(s->queries);
    free(s->keys);
    free(s->values);
}

/* Returns the sizes of a layer of so many heads of so many columns. */
static attn_model_info layer(size_t num_heads, size_t head_size, size_t width) {
    return (attn_model_info){
        .name = "direct",
        .layout = "test",
        .width = {.query = width,
                  .key = width,
                  .value = width,
                  .out = width,
                  .head = head_size},
        .num_heads = num_heads,
        .linears = {
            {.bias = true}, {.bias = true}, {.bias = true}, [ATTN_OUTPUT].weight = true}};
}

static void test_splits_of_few_queries_do_not_change_a_bit(void **state) {
    enum { ROWS = 16, HEADS = 3 };
    uint64_t seed = unit_seed(20261204);
    const attn_model_info info = layer(HEADS, 64, 33);
    struct single s = single_init(&seed, &info, ROWS, 3 * MANY);
    attn_sizes sizes, some_sizes;
    (void)state;
    s.request.query_lens = &s.query_len;
    s.request.key_lens = &s.key_len;
    s.request.need_weights = ATTN_WEIGHTS_ALL;
    attn_result together = run(s.model, &s.request, &sizes);
    for (size_t first = 0, count; first < ROWS && is_native(); first += count) {
        count = random_between(&seed, 1, ROWS - first);
        attn_request part = s.request;
        part.query_lens = &count;
        part.queries += first * info.width.query;
        attn_result some = run(s.model, &part, &some_sizes);
        assert_memory_equal(some.outputs, together.outputs + first * info.width.out,
                            some_sizes.outputs * sizeof(float));
        for (size_t h = 0; h < HEADS; h++)
            assert_memory_equal(some.weights + h * count * s.key_len,
                                together.weights + (h * ROWS + first) * s.key_len,
                                count * s.key_len * sizeof(float));
        free_result(&some);
    }
    free_result(&together);
    single_deinit(&s);
}

/* Runs a request and compares it with the reference. */
static void assert_matches(const attn_model *model, const attn_request *request,
                           size_t num_direct) {
    assert_true(plan_of(model, request).batch.num_direct == num_direct * is_native());
    assert_as_reference(model, request, 0);
}

/* Projected keys and values follow each other head by head, or row by row. */
static void test_others_stand_before_between_and_after_direct_sequences(void **state) {
    enum { B = 7, QUERIES = 40, KEYS = 2 * MANY + 400 };
    const size_t query_lens[B] = {3, 1, 2, 20, 4, 5, 5},
                 key_lens[B] = {100, 30, MANY, 200, MANY, 50, 20};
    uint64_t seed = unit_seed(20261211);
    (void)state;
    for (size_t head_size = 18; head_size <= 32; head_size += 14) {
        const attn_model_info info = layer(3, head_size, 9);
        struct single s = single_init(&seed, &info, QUERIES, KEYS);
        s.request.num_sequences = B;
        s.request.query_lens = query_lens;
        s.request.key_lens = key_lens;
        assert_matches(s.model, &s.request, 2);
        single_deinit(&s);
    }
}

static void test_heads_of_direct_sequences_are_left_out(void **state) {
    const float head_mask[] = {0, 2, 0, -1, 0};
    const size_t selected[] = {4, 1};
    uint64_t seed = unit_seed(20261212);
    attn_model_info info = layer(5, 32, 19);
    info.linears[ATTN_OUTPUT].weight = false;
    info.width.out = 5 * 32;
    struct single s = single_init(&seed, &info, 8, 3 * MANY);
    (void)state;
    s.request.query_lens = &s.query_len;
    s.request.key_lens = &s.key_len;
    s.request.head_mask = head_mask;
    assert_matches(s.model, &s.request, 1);
    s.request.need_weights = ATTN_WEIGHTS_MEAN;
    assert_matches(s.model, &s.request, 1);
    s.request.need_weights = ATTN_WEIGHTS_ALL;
    assert_matches(s.model, &s.request, 1);
    s.request.weights_heads = selected;
    s.request.num_weights_heads = 2;
    assert_matches(s.model, &s.request, 1);

    /* None is left. */
    const float nothing[] = {0, 0, 0, 0, 0};
    s.request.head_mask = nothing;
    assert_matches(s.model, &s.request, 1);
    s.request.need_weights = ATTN_WEIGHTS_NONE;
    assert_matches(s.model, &s.request, 1);
    single_deinit(&s);
}

/* All inputs are one tensor, yet what is a query of one sequence is a key of another. */
static void test_direct_sequence_whose_inputs_are_one_tensor(void **state) {
    const size_t query_lens[] = {2, MANY}, key_lens[] = {MANY, 2};
    uint64_t seed = unit_seed(20261205);
    const attn_model_info info = layer(3, 8, 7);
    struct single s = single_init(&seed, &info, MANY + 2, MANY + 2);
    (void)state;
    s.request.num_sequences = 2;
    s.request.query_lens = query_lens;
    s.request.key_lens = key_lens;
    s.request.keys = s.request.values = s.request.queries;
    assert_matches(s.model, &s.request, 1);
    single_deinit(&s);
}

static void test_what_masked_keys_hold_does_not_reach_direct_results(void **state) {
    enum { QUERIES = 4, KEYS = 3000 };
    uint64_t seed = unit_seed(20261206);
    const attn_model_info info = layer(2, 16, 24);
    struct single s = single_init(&seed, &info, QUERIES, KEYS);
    size_t valid[QUERIES] = {1, 700, 2303, 2500};
    attn_sizes sizes;
    (void)state;
    s.request.query_lens = &s.query_len;
    s.request.key_lens = &s.key_len;
    s.request.valid_lens = valid;
    s.request.valid_lens_per_query = true;
    attn_result clean = run(s.model, &s.request, &sizes);
    for (size_t q = 0; q < QUERIES; q++) { /* what only the queries after it may see */
        for (size_t k = valid[q]; k < KEYS; k++) {
            s.keys[k * info.width.key] = INFINITY;
            s.values[k * info.width.value + 1] = k % 2 == 0 ? NAN : -INFINITY;
        }
        attn_result dirty = run(s.model, &s.request, &sizes);
        assert_memory_equal(dirty.outputs, clean.outputs, info.width.out * sizeof(float));
        free_result(&dirty);
        random_fill(&seed, s.keys, KEYS * info.width.key);
        random_fill(&seed, s.values, KEYS * info.width.value);
        s.request.queries += info.width.query;
        s.request.valid_lens++;
        s.query_len--;
        free_result(&clean);
        if (s.query_len > 0)
            clean = run(s.model, &s.request, &sizes);
    }
    single_deinit(&s);
}

/* Its weights are even, whatever its scores are. */
static void test_direct_query_without_a_valid_key_may_be_anything(void **state) {
    uint64_t seed = unit_seed(20261213);
    const attn_model_info info = layer(3, 16, 24);
    struct single s = single_init(&seed, &info, 4, 3 * MANY);
    const size_t valid[] = {5, 0, 2 * MANY, 0};
    attn_sizes sizes;
    (void)state;
    s.request.query_lens = &s.query_len;
    s.request.key_lens = &s.key_len;
    s.request.valid_lens = valid;
    s.request.valid_lens_per_query = s.request.need_lse = true;
    s.request.need_weights = ATTN_WEIGHTS_ALL;
    attn_result clean = run(s.model, &s.request, &sizes);
    s.queries[info.width.query] = s.queries[3 * info.width.query + 1] = NAN;
    attn_result dirty = run(s.model, &s.request, &sizes);
    assert_same(&dirty, &clean, &sizes);
    free_result(&dirty);
    free_result(&clean);
    single_deinit(&s);
}

/* --- the rule --- */

/* Returns whether a sequence is direct, alone and in a batch. */
static bool is_direct(const attn_model *model, size_t query_len, size_t key_len) {
    size_t query_lens[] = {query_len, 1, query_len}, key_lens[] = {key_len, 1, key_len};
    attn_request request = {
        .num_sequences = 1, .query_lens = query_lens, .key_lens = key_lens};
    size_t alone = plan_of(model, &request).batch.num_direct;

    request.num_sequences = 3;
    request.causal = true;
    request.need_weights = ATTN_WEIGHTS_MEAN;
    assert_int_equal(plan_of(model, &request).batch.num_direct, 2 * alone);
    return alone == 1;
}

static void test_few_queries_over_many_keys_are_direct(void **state) {
    uint64_t seed = unit_seed(20261207);
    attn_model_info info = layer(2, 11, 5);
    attn_model *model = random_model(&seed, &info);
    (void)state;
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    assert_true(is_direct(model, 2, MANY) == is_native());
    assert_false(is_direct(model, 3, MANY));
    assert_false(is_direct(model, 2, MANY - 1));
    attn_model_destroy(model);

    info.score.kind = ATTN_ADDITIVE;
    info.width.additive = 11;
    model = random_model(&seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    assert_false(is_direct(model, 2, MANY));
    attn_model_destroy(model);
}

/* Returns the sizes of a request whose keys are all projected. */
static attn_sizes plan_projected(const attn_model *model, const attn_request *request) {
    attn_sizes sizes;
    attn_status status = run_plan(model, request, PLAN_PROJECTED, &sizes, NULL);
    assert_int_equal(status, ATTN_OK);
    return sizes;
}

static void test_keys_of_direct_sequences_take_no_room(void **state) {
    const size_t one = 1, many = 8 * MANY, width = 256;
    const attn_model_info info = layer(4, 64, width);
    const attn_request request = {
        .num_sequences = 1, .query_lens = &one, .key_lens = &many};
    uint64_t seed = unit_seed(20261208);
    attn_model *model = random_model(&seed, &info);
    attn_sizes direct;
    (void)state;
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    assert_int_equal(attn_plan(model, &request, &direct, NULL), ATTN_OK);
    const attn_sizes projected = plan_projected(model, &request);
    size_t k_step = model->engine.kernels->k_step;
    assert_true(projected.scratch_bytes > 2 * many * width * sizeof(float) / k_step);
    if (is_native()) {
        assert_true(direct.scratch_bytes < 1 << 20);
        assert_true(direct.flops > 4.0 * 4 * (double)(many * width));
        assert_true(direct.flops < projected.flops / 50);
    } else {
        assert_true(direct.scratch_bytes == projected.scratch_bytes);
    }
    attn_model_destroy(model);
}

/* Running the steps one by one, with every key projected. */
static void test_steps_can_project_every_key(void **state) {
    uint64_t seed = unit_seed(20261209);
    const attn_model_info info = layer(3, 20, 31);
    struct single s = single_init(&seed, &info, 3, 3 * MANY);
    attn_sizes direct_sizes;
    (void)state;
    s.request.query_lens = &s.query_len;
    s.request.key_lens = &s.key_len;
    attn_result direct = run(s.model, &s.request, &direct_sizes);
    const attn_sizes sizes = plan_projected(s.model, &s.request);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    attn_result result = {.outputs = malloc(sizes.outputs * sizeof(float))};
    for (unsigned step = 1; step < ATTN_STEPS_ALL; step *= 2)
        attn_run_steps(s.model, &s.request, &sizes, scratch, &result, step);
    double *outputs = malloc(sizes.outputs * sizeof *outputs);
    struct comparison c = compare_to_reference(s.model, &s.request, 0);
    c.rounding.projected = true;
    assert_int_equal(attn_ref_run_rounded(s.model, &s.request, &c.rounding,
                                          &(struct ref_result){.outputs = outputs}),
                     ATTN_OK);
    assert_expected(&c, REF_OUTPUTS, result.outputs, outputs, sizes.outputs, 0);
    assert_true((memcmp(result.outputs, direct.outputs, sizes.outputs * sizeof(float)) !=
                 0) == is_native());
    free(scratch);
    free(outputs);
    free_result(&result);
    free_result(&direct);
    single_deinit(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct_sequences_match_the_reference),
        cmocka_unit_test(test_log_sum_exps_have_the_bias_of_keys),
        cmocka_unit_test(test_threads_do_not_change_a_bit_of_direct_sequences),
        cmocka_unit_test(test_direct_sequences_do_not_depend_on_their_neighbours),
        cmocka_unit_test(test_splits_of_few_queries_do_not_change_a_bit),
        cmocka_unit_test(test_others_stand_before_between_and_after_direct_sequences),
        cmocka_unit_test(test_heads_of_direct_sequences_are_left_out),
        cmocka_unit_test(test_direct_sequence_whose_inputs_are_one_tensor),
        cmocka_unit_test(test_what_masked_keys_hold_does_not_reach_direct_results),
        cmocka_unit_test(test_direct_query_without_a_valid_key_may_be_anything),
        cmocka_unit_test(test_few_queries_over_many_keys_are_direct),
        cmocka_unit_test(test_keys_of_direct_sequences_take_no_room),
        cmocka_unit_test(test_steps_can_project_every_key),
    };
    return run_with_every_engine(tests, sizeof tests / sizeof tests[0]);
}
