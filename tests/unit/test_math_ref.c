/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_ref.c: the reference that kernels are compared with, on layers so small that
 * the right numbers are known. */
#include "math/model.h"
#include "ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 12 };

static void assert_near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want))))
        fail_msg("%.17g is not %.17g", got, want);
}

/* A model without output projection whose other projections are the identity. */
static attn_model *identity_model(attn_model_info info) {
    attn_model *model = NULL;
    size_t kv_heads = info.num_kv_heads > 0 ? info.num_kv_heads : info.num_heads;

    info.width.query = info.width.out = info.num_heads * info.width.head;
    info.width.key = info.width.value = kv_heads * info.width.head;
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    for (size_t i = 0; i < info.width.query; i++)
        model_weight(model, ATTN_QUERY)[i * info.width.query + i] = 1;
    for (size_t i = 0; i < info.width.key; i++)
        model_weight(model, ATTN_KEY)[i * info.width.key + i] =
            model_weight(model, ATTN_VALUE)[i * info.width.key + i] = 1;
    assert_int_equal(attn_model_set_engine(model, NULL, NULL), ATTN_OK);
    return model;
}

/* Runs one sequence of `length` queries and keys, which are `rows`. */
static void run(const attn_model *model, attn_request request, size_t length,
                const float *rows, const struct ref_result *ret_result) {
    request.num_sequences = 1;
    request.query_lens = request.key_lens = &length;
    request.queries = request.keys = request.values = rows;
    request.need_weights = ATTN_WEIGHTS_ALL;
    assert_int_equal(attn_ref_run(model, &request, ret_result), ATTN_OK);
}

/* Checks which keys each query attends to: '1' in a row of the text. All scores are 0, so
 * it attends to these alike. */
static void assert_attended(const attn_request *request, size_t length,
                            const char *const *wanted) {
    static const float rows[MAX_ROWS];
    double weights[MAX_ROWS * MAX_ROWS];
    attn_model *model =
        identity_model((attn_model_info){.num_heads = 1, .width.head = 1});

    run(model, *request, length, rows, &(struct ref_result){.weights = weights});
    for (size_t q = 0; q < length; q++) {
        size_t count = 0;
        for (size_t k = 0; k < length; k++)
            count += wanted[q][k] == '1';
        for (size_t k = 0; k < length; k++)
            assert_near(weights[q * length + k],
                        wanted[q][k] == '1' ? 1 / (double)count : 0);
    }
    attn_model_destroy(model);
}

/* With a causal mask the (W-1)-th key before is in and the W-th is out. */
static void test_windows_begin_and_end_where_they_should(void **state) {
    const attn_request causal = {.causal = true, .window = 3};
    const attn_request both_sides = {.window = 1};
    (void)state;
    assert_attended(&causal, 5,
                    (const char *const[]){"10000", "11000", "11100", "01110", "00111"});
    assert_attended(&both_sides, 4,
                    (const char *const[]){"1100", "1110", "0111", "0011"});
}

/* Positions decide, in any order; valid_lens cut keys by their index. The last query has
 * no key in its window, and attends to all alike. */
static void test_positions_decide_instead_of_indices(void **state) {
    static const size_t positions[] = {3, 0, 7, 90}, keys[] = {7, 3, 1, 0}, valid = 3;
    const attn_request causal = {
        .causal = true, .positions = positions, .key_positions = keys};
    attn_request window = causal;
    (void)state;

    assert_attended(&causal, 4, (const char *const[]){"0111", "0001", "1111", "1111"});
    window.window = 4;
    window.valid_lens = &valid;
    assert_attended(&window, 4, (const char *const[]){"0110", "1111", "1000", "1111"});
}

static void test_sinks_take_part_of_the_sum(void **state) {
    static const float rows[] = {0, 0, 0};
    static const size_t none = 0;
    double weights[9], outputs[3], lse[3];
    const struct ref_result result = {.weights = weights, .outputs = outputs, .lse = lse};
    attn_model *model = identity_model(
        (attn_model_info){.num_heads = 1, .width.head = 1, .score.sinks = true});
    (void)state;

    model->arrays[MODEL_SINKS].numbers[0] = logf(2);
    run(model, (attn_request){.causal = true}, 3, rows, &result);
    for (size_t q = 0; q < 3; q++) {
        double keys = (double)q + 1,
               sink = exp((double)model->arrays[MODEL_SINKS].numbers[0]);
        assert_near(weights[q * 3], 1 / (keys + sink));
        assert_near(lse[q], log(keys + sink));
    }
    run(model, (attn_request){.valid_lens = &none}, 3, rows, &result);
    for (size_t i = 0; i < 9; i++)
        assert_near(weights[i], 0);
    assert_near(outputs[0], 0);
    assert_true(isinf(lse[0]) && lse[0] < 0);
    attn_model_destroy(model);
}

static void test_softcap_saturates_scaled_scores(void **state) {
    static const float rows[] = {1000, -1000};
    double weights[4], lse[2];
    attn_model *model = identity_model((attn_model_info){
        .num_heads = 1, .width.head = 1, .score = {.scale = 0.5, .softcap = 3}});
    (void)state;

    run(model, (attn_request){.causal = false}, 2, rows,
        &(struct ref_result){.weights = weights, .lse = lse});
    assert_near(weights[0], exp(3) / (exp(3) + exp(-3)));
    assert_near(weights[1], exp(-3) / (exp(3) + exp(-3)));
    assert_near(lse[0], log(exp(3) + exp(-3)));
    attn_model_destroy(model);
}

static void test_bias_is_added_after_the_softcap(void **state) {
    static const float rows[] = {1000, 1000};
    double weights[4];
    attn_model *model = identity_model((attn_model_info){
        .num_heads = 1,
        .width.head = 1,
        .score = {.softcap = 3, .bias = ATTN_BIAS_BUCKETS, .bias_distance = 1}});
    (void)state;

    model->arrays[MODEL_DISTANCE_BIAS].numbers[0] = 5; /* of the key before */
    model->arrays[MODEL_DISTANCE_BIAS].numbers[1] =
        model->arrays[MODEL_DISTANCE_BIAS].numbers[2] = 0; /* of itself and those after */
    run(model, (attn_request){.causal = false}, 2, rows,
        &(struct ref_result){.weights = weights});
    assert_near(weights[0], 0.5);
    assert_near(weights[2], exp(5) / (exp(5) + 1));
    attn_model_destroy(model);
}

/* Slopes times the key's position less the query's: keys before weigh less. */
static void test_alibi_falls_with_the_distance(void **state) {
    static const float rows[] = {0, 0, 0, 0};
    double weights[8];
    attn_model *model = identity_model((attn_model_info){
        .num_heads = 2, .width.head = 1, .score.bias = ATTN_BIAS_ALIBI});
    (void)state;

    model->arrays[MODEL_SLOPES].numbers[0] = 0;
    model->arrays[MODEL_SLOPES].numbers[1] = 2;
    run(model, (attn_request){.causal = true}, 2, rows,
        &(struct ref_result){.weights = weights});
    assert_near(weights[2], 0.5);
    assert_near(weights[4 + 2], 1 / (1 + exp(2)));
    attn_model_destroy(model);
}

/* Query heads 0 and 1 share key head 0, heads 2 and 3 share key head 1. */
static void test_query_heads_share_key_heads(void **state) {
    static const float queries[] = {0, 0, 0, 0}, keys[] = {3, 7};
    static const size_t one = 1;
    double heads[4];
    attn_model *model = identity_model(
        (attn_model_info){.num_heads = 4, .num_kv_heads = 2, .width.head = 1});
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &one,
                                  .key_lens = &one,
                                  .queries = queries,
                                  .keys = keys,
                                  .values = keys};
    (void)state;

    assert_int_equal(attn_ref_run(model, &request, &(struct ref_result){.heads = heads}),
                     ATTN_OK);
    for (size_t h = 0; h < 4; h++)
        assert_near(heads[h], h < 2 ? 3 : 7);
    attn_model_destroy(model);
}

/* Scores of rotated queries and keys depend on the difference of positions alone. */
static void test_rotation_turns_pairs_by_position(void **state) {
    static const float rows[] = {1, 5, 0, 1, 5, 0};
    static const size_t near[] = {0, 2}, far[] = {1000, 1002};
    double weights[4], lse[2], far_lse[2];
    attn_model *model =
        identity_model((attn_model_info){.num_heads = 1,
                                         .width.head = 3,
                                         .score.scale = 1,
                                         .rotation = {.size = 2, .type = "default"}});
    (void)state;

    model->rotation.frequencies[0] = 0.25;
    model->rotation.magnitude = 2;
    /* the pair is (1, 5), and 0 is not rotated */
    run(model, (attn_request){.positions = near, .key_positions = near}, 2, rows,
        &(struct ref_result){.weights = weights, .lse = lse});
    assert_near(lse[0], log(exp(4 * 26.0) + exp(4 * 26 * cos(0.5))));
    run(model, (attn_request){.positions = far, .key_positions = far}, 2, rows,
        &(struct ref_result){.weights = weights, .lse = far_lse});
    assert_near(far_lse[0], lse[0]);
    attn_model_destroy(model);
}

/* Returns the log-sum-exp of two rows which are `distance` apart, for a model whose
 * frequencies depend on the length. */
static double lse_at(const attn_model *model, size_t distance) {
    static const float rows[] = {0, 1, 0, 0, 0, 1, 0, 0};
    const size_t positions[] = {0, distance};
    double lse[2];

    run(model, (attn_request){.positions = positions, .key_positions = positions}, 2,
        rows, &(struct ref_result){.lse = lse});
    return lse[0];
}

static void test_long_sequences_have_other_frequencies(void **state) {
    attn_model_info info = {.num_heads = 1,
                            .width.head = 4,
                            .score.scale = 1,
                            .rotation = {.size = 4, .type = "longrope"}};
    attn_model *model = identity_model(info);
    (void)state;

    model->rotation.frequencies[1] = 0.5; /* number 1 of a head is of pair 1 */
    model->rotation.long_frequencies[1] = 0.125;
    model->rotation.max_length = 4;
    assert_near(lse_at(model, 3), log(exp(1) + exp(cos(0.5 * 3))));
    assert_near(lse_at(model, 4), log(exp(1) + exp(cos(0.125 * 4))));
    attn_model_destroy(model);

    info.rotation.type = "dynamic";
    model = identity_model(info);
    model->rotation.frequencies[1] = 0.01; /* 10000^(-2/4) */
    model->rotation.max_length = 4;
    model->rotation.base = 10000;
    model->rotation.factor = 2;
    assert_near(lse_at(model, 3), log(exp(1) + exp(cos(0.01 * 3))));
    /* 10000 * (2 * 8 / 4 - 1)^(4 / 2) = 90000, whose root is 300 */
    assert_near(lse_at(model, 7), log(exp(1) + exp(cos(7.0 / 300))));
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_begin_and_end_where_they_should),
        cmocka_unit_test(test_positions_decide_instead_of_indices),
        cmocka_unit_test(test_sinks_take_part_of_the_sum),
        cmocka_unit_test(test_softcap_saturates_scaled_scores),
        cmocka_unit_test(test_bias_is_added_after_the_softcap),
        cmocka_unit_test(test_alibi_falls_with_the_distance),
        cmocka_unit_test(test_query_heads_share_key_heads),
        cmocka_unit_test(test_rotation_turns_pairs_by_position),
        cmocka_unit_test(test_long_sequences_have_other_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
