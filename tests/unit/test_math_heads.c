/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_heads.c: what heads do, against explicit reruns of the float64 reference with
 * heads left out; with every engine, instruction set and precision. */
#include "math/model.h"
#include "random_model.h"
#include "ref.h"
#include "sample.h"
#include "split_plainly.h"

#include <attnd/heads.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_engine.h"
#include "near_reference.h"

#define HEADS_MAX 6 /* of random_model_info() */

/* Those that change what the attention itself computes, and gates. */
#define FEATURES                                                                         \
    (RANDOM_KV_HEADS | RANDOM_SCALE | RANDOM_SOFTCAP | RANDOM_SINKS | RANDOM_BIAS |      \
     RANDOM_GATE)

/* The heads of one model over what was added. */
struct heads {
    attn_heads heads;
    attn_head_sums sums[HEADS_MAX];
    double gram[HEADS_MAX * HEADS_MAX];
};

static void heads_init(struct heads *h, const attn_model *model) {
    *h = (struct heads){.heads.num_heads = attn_model_get_info(model)->num_heads};
    h->heads.sums = h->sums;
    h->heads.gram = h->gram;
}

/* Adds a request, with scratch that was full of NaN. What it needs has no effect. */
static void add_request(const attn_model *model, const attn_request *request,
                        struct heads *h) {
    attn_request needy = *request;
    attn_sizes sizes;

    needy.omit_outputs = needy.need_heads = needy.need_lse = true;
    needy.reduce =
        (attn_reductions){.top_k = 1, .block = 1, .received = true, .entropy = true};
    assert_int_equal(attn_heads_plan(model, &needy, &sizes, NULL), ATTN_OK);
    assert_int_equal(sizes.outputs + sizes.weights + sizes.heads + sizes.lse, 0);
    assert_int_equal(sizes.top + sizes.received + sizes.entropy + sizes.block_weights, 0);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    assert_non_null(scratch);
    memset(scratch, 0xff, sizes.scratch_bytes);
    attn_heads_add(model, &needy, &sizes, scratch, &h->heads);
    free(scratch);
}

static double norm(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum);
}

static void assert_near(double got, double expected, double scale, const char *what,
                        unsigned number) {
    bool bf16 = strcmp(engine.precision, "bf16") == 0;
    double tolerance = bf16 ? REF_TOLERANCE_BF16 : ATTN_TOLERANCE_F32;
    if (!(fabs(got - expected) <= tolerance * scale))
        fail_msg("case %u: %s is %.9g, not %.9g", number, what, got, expected);
}

/* Leaves out every set of heads in turn, and compares the change of the outputs with what
 * the gram matrix predicts. */
static void compare_changes(const attn_model *model, const struct random_request *r,
                            const struct heads *h, unsigned number) {
    double *none = calloc(r->sizes.outputs, sizeof *none);
    double *all = malloc(r->sizes.outputs * sizeof *all);
    double *some = malloc(r->sizes.outputs * sizeof *some);
    size_t num_heads = h->heads.num_heads;
    attn_request request = r->request;
    float mask[HEADS_MAX];

    request.need_weights = ATTN_WEIGHTS_NONE;
    run_reference(model, &request, &(struct ref_result){.outputs = all});
    double whole = norm(all, none, r->sizes.outputs);
    request.head_mask = mask;
    for (unsigned set = 0; set < 1U << num_heads; set++) {
        bool left_out[HEADS_MAX];
        for (size_t i = 0; i < num_heads; i++) {
            left_out[i] = (set >> i & 1) != 0;
            mask[i] = left_out[i] ? 0 : r->head_mask != NULL ? r->head_mask[i] : 1;
        }
        run_reference(model, &request, &(struct ref_result){.outputs = some});
        double expected = whole > 0 ? norm(all, some, r->sizes.outputs) / whole : 0;
        double got = attn_heads_change(&h->heads, left_out);
        /* Where contributions cancel, the error is relative to the largest of them. */
        double scale = 1;
        for (size_t i = 0; i < num_heads; i++) {
            attn_head head;
            attn_heads_describe(&h->heads, i, &head);
            scale = fmax(scale, head.importance);
            if (set == 1U << i)
                assert_near(head.importance, expected, scale, "importance", number);
        }
        assert_near(got, expected, scale, "change", number);
    }
    free(none);
    free(all);
    free(some);
}

/* Sums up the weights of one head as their definitions say; the weights of sequence s
 * begin at `weights` [H, Tq, Tk]. */
static void sum_plainly(const attn_request *request, const attn_model_info *info,
                        const double *weights, size_t head, attn_head_sums *sums,
                        size_t *ret_rows, size_t *ret_self_rows) {
    *sums = (attn_head_sums){0};
    *ret_rows = *ret_self_rows = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t queries = request->query_lens[s], keys = request->key_lens[s];
        const double *row = weights + head * queries * keys;
        bool itself = request->keys == request->queries;

        for (size_t i = 0; i < queries; i++, row += keys) {
            split_plainly(row, keys, i, itself, sums);
            for (size_t k = 0; k < keys; k++) {
                sums->entropy -= row[k] > 0 ? row[k] * log(row[k]) : 0;
                sums->first += k == 0 ? row[k] : 0;
                if (!itself)
                    continue;
                sums->self += k == i ? row[k] : 0;
                sums->previous += k + 1 == i ? row[k] : 0;
                sums->next += k == i + 1 ? row[k] : 0;
                sums->near += k <= i + 2 && i <= k + 2 ? row[k] : 0;
                sums->prefix += k <= i ? row[k] : 0;
                sums->distance += fabs((double)i - (double)k) * row[k];
            }
        }
        *ret_rows += queries;
        *ret_self_rows += itself ? queries : 0;
        weights += info->num_heads * queries * keys;
    }
}

/* Compares sums with those of the weights of one head of a model. */
static void compare_sums_of(const attn_model *model, const struct random_request *r,
                            size_t head, const attn_head_sums *got, const char *what,
                            const struct heads *h, unsigned number) {
    attn_request request = r->request;
    attn_head_sums expected;
    size_t rows, self_rows;
    attn_sizes sizes;

    request.need_weights = ATTN_WEIGHTS_ALL;
    request.weights_heads = NULL;
    request.weights_queries = NULL;
    assert_int_equal(attn_plan(model, &request, &sizes, NULL), ATTN_OK);
    double *weights = malloc(sizes.weights * sizeof *weights);
    run_reference(model, &request, &(struct ref_result){.weights = weights});
    sum_plainly(&request, attn_model_get_info(model), weights, head, &expected, &rows,
                &self_rows);
    assert_int_equal(h->heads.rows, rows);
    assert_int_equal(h->heads.self_rows, self_rows);
    double scale = (double)rows;
    assert_near(got->entropy, expected.entropy, 5 * scale, what, number);
    assert_near(got->first, expected.first, scale, what, number);
    assert_near(got->self, expected.self, scale, what, number);
    assert_near(got->previous, expected.previous, scale, what, number);
    assert_near(got->next, expected.next, scale, what, number);
    assert_near(got->near, expected.near, scale, what, number);
    assert_near(got->prefix, expected.prefix, scale, what, number);
    assert_near(got->distance, expected.distance, scale * (double)sizes.num_keys, what,
                number);
    assert_near(got->total, expected.total, scale, what, number);
    assert_near(got->rest, expected.rest, scale, what, number);
    assert_near(got->rest_itself, expected.rest_itself, scale, what, number);
    assert_near(got->rest_entropy, expected.rest_entropy, 5 * scale, what, number);
    assert_near(got->first_self, expected.first_self, scale, what, number);
    assert_near(got->first_previous, expected.first_previous, scale, what, number);
    assert_near(got->first_near, expected.first_near, scale, what, number);
    assert_near(got->first_prefix, expected.first_prefix, scale, what, number);
    assert_near(got->first_distance, expected.first_distance,
                scale * (double)sizes.num_keys, what, number);
    free(weights);
}

/* Compares the sums of even weights with those of a model all of whose scores are 0. A
 * row without a valid key has no weights where there are sinks, and these are so small
 * that other rows do not notice them. */
static void compare_even(const attn_model *model, const struct random_request *r,
                         const struct heads *h, unsigned number) {
    attn_model_info info = *attn_model_get_info(model);
    uint64_t seed = unit_seed(1);

    info.score.bias = ATTN_BIAS_NONE;
    info.score.kind = ATTN_SCALED_DOT_PRODUCT;
    info.width.additive = 0;
    attn_model *even = random_model(&seed, &info);
    memset(model_weight(even, ATTN_QUERY), 0,
           info.num_heads * info.width.head * info.width.query * sizeof(float));
    if (info.linears[ATTN_QUERY].bias)
        memset(model_bias(even, ATTN_QUERY), 0,
               info.num_heads * info.width.head * sizeof(float));
    for (size_t i = 0; info.score.sinks && i < info.num_heads; i++)
        even->arrays[MODEL_SINKS].numbers[i] = -100;
    compare_sums_of(even, r, 0, &h->heads.even, "a sum of even weights", h, number);
    attn_model_destroy(even);
}

/* Half of the requests attend to themselves. */
static void compare_random(uint64_t seed, unsigned cases, size_t longest) {
    seed = unit_seed(seed);
    cases = (unsigned)sample_cases(cases);
    print_message("seed %llu, %u cases\n", (unsigned long long)seed, cases);
    for (unsigned i = 0; i < cases; i++) {
        attn_model_info info = random_model_info(&seed);
        if (i % 2 == 0)
            info.width.key = info.width.value = info.width.query;
        random_add_features(&seed, FEATURES, &info);
        attn_model *model = random_model(&seed, &info);
        assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);

        struct random_request r;
        random_request_init(&seed, model, longest, longest, &r);
        if (i % 2 == 0) {
            r.request.key_lens = r.request.query_lens;
            r.request.keys = r.request.values = r.request.queries;
            r.request.valid_lens = r.request.prefix_lens = NULL;
            assert_int_equal(attn_plan(model, &r.request, &r.sizes, NULL), ATTN_OK);
        }
        random_request_add(&seed, RANDOM_POSITIONS | RANDOM_WINDOW, model, &r);
        struct heads h;
        heads_init(&h, model);
        add_request(model, &r.request, &h);
        compare_changes(model, &r, &h, i);
        for (size_t head = 0; head < info.num_heads; head++)
            compare_sums_of(model, &r, head, &h.sums[head], "a sum", &h, i);
        compare_even(model, &r, &h, i);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

static void test_random_small_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20261001, 80, 9);
}

static void test_random_long_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20261002, 4, 150);
}

/* attn_parallel.run: three threads, the last task first. */
static void run_backwards(void *context, size_t count,
                          void (*task)(void *data, size_t index, size_t thread),
                          void *data) {
    (void)context;
    for (size_t i = count; i > 0; i--)
        task(data, i - 1, i % 3);
}

static void test_sums_do_not_depend_on_threads(void **state) {
    (void)state;
    const attn_parallel parallel = {.num_threads = 3, .run = run_backwards};
    uint64_t seed = unit_seed(20261003);
    attn_model_info info = random_model_info(&seed);
    attn_model *model = random_model(&seed, &info);
    struct random_request r;
    struct heads alone, shared;

    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    random_request_init(&seed, model, 700, 700, &r);
    heads_init(&alone, model);
    heads_init(&shared, model);
    add_request(model, &r.request, &alone);
    r.request.parallel = &parallel;
    add_request(model, &r.request, &shared);

    assert_memory_equal(alone.gram, shared.gram, sizeof alone.gram);
    assert_memory_equal(alone.sums, shared.sums, sizeof alone.sums);
    assert_true(alone.heads.squared_norm == shared.heads.squared_norm);
    random_request_deinit(&r);
    attn_model_destroy(model);
}

/* Describes the only head of `sums` over 10 rows of sequences of 10 tokens, where even
 * weights are 0.1 each. */
static const char *tag_of(const attn_head_sums *sums) {
    attn_head_sums own = *sums;
    double gram = 1;
    const attn_heads heads = {.num_heads = 1,
                              .sums = &own,
                              .gram = &gram,
                              .squared_norm = 1,
                              .even = {.entropy = 23.0259,
                                       .first = 1,
                                       .self = 1,
                                       .previous = 0.9,
                                       .next = 0.9,
                                       .near = 4.4,
                                       .prefix = 5.5,
                                       .distance = 33},
                              .rows = 10,
                              .self_rows = 10,
                              .previous_rows = 9};
    attn_head head;

    attn_heads_describe(&heads, 0, &head);
    assert_true(head.importance == 1);
    assert_null(head.tags[head.tags[0] != NULL]);
    return head.tags[0] != NULL ? head.tags[0] : "none";
}

static void test_tags_name_what_a_head_attends_to(void **state) {
    (void)state;
    assert_string_equal(tag_of(&(attn_head_sums){.entropy = 23}), "uniform");
    assert_string_equal(tag_of(&(attn_head_sums){.previous = 4.6}), "previous token");
    assert_string_equal(tag_of(&(attn_head_sums){.previous = 4.4}), "none");
    assert_string_equal(tag_of(&(attn_head_sums){.next = 8}), "next token");
    assert_string_equal(tag_of(&(attn_head_sums){.self = 5}), "self");
    assert_string_equal(tag_of(&(attn_head_sums){.first = 9}), "first token");
    assert_string_equal(tag_of(&(attn_head_sums){.near = 8}), "local window");
    assert_string_equal(tag_of(&(attn_head_sums){.prefix = 9.5}), "causal prefix");
    assert_string_equal(tag_of(&(attn_head_sums){.distance = 42}), "long range");
    assert_string_equal(tag_of(&(attn_head_sums){.distance = 40}), "none");
}

/* Where the first key has most of the weight, a second tag describes the rest. */
static void test_second_tag_describes_what_the_first_key_leaves(void **state) {
    (void)state;
    attn_head_sums sums = {.first = 7, .rest = 3, .rest_itself = 3, .first_prefix = 7};
    double gram = 1;
    const attn_heads heads = {.num_heads = 1,
                              .sums = &sums,
                              .gram = &gram,
                              .squared_norm = 1,
                              .even = {.entropy = 23,
                                       .first = 1,
                                       .self = 1,
                                       .previous = 0.9,
                                       .next = 0.9,
                                       .near = 4.4,
                                       .prefix = 5.5,
                                       .distance = 33,
                                       .rest = 9,
                                       .rest_itself = 9,
                                       .rest_entropy = 19.7,
                                       .first_self = 0.1,
                                       .first_previous = 0.1,
                                       .first_near = 0.3,
                                       .first_prefix = 1,
                                       .first_distance = 4.5},
                              .rows = 10,
                              .self_rows = 10,
                              .previous_rows = 9};
    attn_head head;

    sums.previous = 2.5;
    attn_heads_describe(&heads, 0, &head);
    assert_string_equal(head.tags[0], "first token");
    assert_string_equal(head.tags[1], "previous token");
    assert_null(head.tags[2]);
    sums.previous = 0;
    sums.rest_entropy = 6.5; /* 3 rows of ln 9 have 6.59 */
    attn_heads_describe(&heads, 0, &head);
    assert_string_equal(head.tags[1], "uniform");
    sums.rest = sums.rest_itself = 0.4;
    attn_heads_describe(&heads, 0, &head);
    assert_null(head.tags[1]);
}

/* Three heads: 1 and 2 cancel each other, so both can go once one of them has gone. */
static void test_order_is_greedy_on_the_change(void **state) {
    (void)state;
    double gram[] = {2, 0, 0, 0, 3, -3, 0, -3, 3.5};
    const attn_heads heads = {.num_heads = 3, .gram = gram, .squared_norm = 4};
    size_t order[3];
    double changes[3];

    attn_heads_order(&heads, order, changes);
    assert_int_equal(order[0], 0);
    assert_int_equal(order[1], 1);
    assert_int_equal(order[2], 2);
    assert_true(fabs(changes[0] - sqrt(2.0 / 4)) < 1e-12);
    assert_true(fabs(changes[1] - sqrt(5.0 / 4)) < 1e-12);
    assert_true(fabs(changes[2] - sqrt(2.5 / 4)) < 1e-12);
    const bool both[] = {false, true, true};
    assert_true(fabs(attn_heads_change(&heads, both) - sqrt(0.5 / 4)) < 1e-12);
}

static void test_outputs_of_0_have_no_change(void **state) {
    (void)state;
    double gram = 0;
    attn_head_sums sums = {0};
    const attn_heads heads = {.num_heads = 1, .sums = &sums, .gram = &gram, .rows = 1};
    attn_head head;

    attn_heads_describe(&heads, 0, &head);
    assert_true(head.importance == 0);
    assert_string_equal(head.tags[0], "unused");
    assert_true(isnan(head.mean_distance) && isnan(head.mass_on_previous));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_small_requests_match_the_reference),
        cmocka_unit_test(test_random_long_requests_match_the_reference),
        cmocka_unit_test(test_sums_do_not_depend_on_threads),
        cmocka_unit_test(test_tags_name_what_a_head_attends_to),
        cmocka_unit_test(test_second_tag_describes_what_the_first_key_leaves),
        cmocka_unit_test(test_order_is_greedy_on_the_change),
        cmocka_unit_test(test_outputs_of_0_have_no_change),
    };
    return run_with_every_engine(tests, sizeof tests / sizeof tests[0]);
}
