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
    needy.reduce = (attn_reductions){.top_k = 1,
                                     .block = 1,
                                     .received = true,
                                     .entropy = true,
                                     .token_ids = request->reduce.token_ids};
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

/* Returns the relative change without some heads, whose contributions are summed. */
static double change_without(const attn_heads *heads, const bool *left_out) {
    size_t num_heads = heads->num_heads;
    double squared = 0;

    for (size_t i = 0; i < num_heads * num_heads; i++)
        squared +=
            left_out[i / num_heads] && left_out[i % num_heads] ? heads->gram[i] : 0;
    return heads->squared_norm > 0 ? sqrt(fmax(0, squared) / heads->squared_norm) : 0;
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
        double got = change_without(&h->heads, left_out);
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
    size_t first = 0;

    *sums = (attn_head_sums){0};
    *ret_rows = *ret_self_rows = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t queries = request->query_lens[s], count = request->key_lens[s];
        const double *row = weights + head * queries * count;
        struct plain_keys keys = {count, count - 1, NULL,
                                  request->keys == request->queries, NULL};

        if (request->valid_lens != NULL && !request->valid_lens_per_query &&
            request->valid_lens[s] > 0)
            keys.last = request->valid_lens[s] - 1;
        if (request->reduce.token_ids != NULL && queries == count) {
            keys.ids = request->reduce.token_ids + first;
            keys.itself = true;
        }
        for (size_t i = 0; i < queries; i++, row += count)
            split_plainly(row, &keys, i, sums);
        first += queries;
        *ret_rows += queries;
        *ret_self_rows += keys.itself ? queries : 0;
        weights += info->num_heads * queries * count;
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
    assert_int_equal(h->heads.rows_at[ATTN_PLACE_SELF], self_rows);
    double scale = (double)rows, far = scale * (double)sizes.num_keys;
    assert_near(got->entropy, expected.entropy, 5 * scale, what, number);
    assert_near(got->total, expected.total, scale, what, number);
    assert_near(got->prefix, expected.prefix, scale, what, number);
    assert_near(got->distance, expected.distance, far, what, number);
    assert_near(got->marked_prefix, expected.marked_prefix, scale, what, number);
    assert_near(got->marked_distance, expected.marked_distance, far, what, number);
    assert_near(got->rest, expected.rest, scale, what, number);
    assert_near(got->rest_itself, expected.rest_itself, scale, what, number);
    assert_near(got->rest_entropy, expected.rest_entropy, 5 * scale, what, number);
    assert_near(got->rest_even, expected.rest_even, 5 * scale, what, number);
    for (size_t p = 0; p < ATTN_HEAD_PLACES; p++) {
        assert_near(got->at[p], expected.at[p], scale, what, number);
        assert_near(got->marked_at[p], expected.marked_at[p], scale, what, number);
        assert_near(got->rest_rows[p], expected.rest_rows[p], scale, what, number);
    }
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
        size_t *ids = malloc(r.sizes.num_queries * sizeof *ids);
        for (size_t q = 0; q < r.sizes.num_queries; q++)
            ids[q] = random_between(&seed, 0, 4);
        r.request.reduce.token_ids = i % 3 > 0 ? ids : NULL;
        struct heads h;
        heads_init(&h, model);
        add_request(model, &r.request, &h);
        compare_changes(model, &r, &h, i);
        for (size_t head = 0; head < info.num_heads; head++)
            compare_sums_of(model, &r, head, &h.sums[head], "a sum", &h, i);
        compare_even(model, &r, &h, i);
        free(ids);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_small_requests_match_the_reference),
        cmocka_unit_test(test_random_long_requests_match_the_reference),
        cmocka_unit_test(test_sums_do_not_depend_on_threads),
    };
    return run_with_every_engine(tests, sizeof tests / sizeof tests[0]);
}
