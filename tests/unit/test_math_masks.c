/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_masks.c: which keys queries attend to, by lengths, positions and windows;
 * what is added to scores by distance; sinks; and log-sum-exps. All of it against the
 * float64 reference, which decides each pair by itself. */
#include "math/mask.h"
#include "math/model.h"
#include "random_model.h"
#include "sample.h"

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

/* --- the mask by itself --- */

/* Whether a query attends to a key, from the definitions in attention.h alone. */
static bool attends(const attn_request *request, size_t valid, size_t query, size_t key) {
    size_t i = request->positions != NULL ? request->positions[query] : query;
    size_t j = request->key_positions != NULL ? request->key_positions[key] : key;
    size_t window = request->window;

    if (key >= valid || (request->causal && j > i))
        return false;
    if (request->chunk > 0 && i / request->chunk != j / request->chunk)
        return false;
    if (window == 0)
        return true;
    return request->causal ? i - j < window : (i > j ? i - j : j - i) <= window;
}

/* Compares all pairs of a sequence with what the mask says. */
static void compare_mask(const attn_request *request) {
    struct mask mask;
    mask_init(&mask, request, 0, 0, 0);
    for (size_t q = 0; q < request->query_lens[0]; q++) {
        const struct range keys = mask_find_keys(&mask, 0, q);
        size_t valid =
            request->valid_lens != NULL ? request->valid_lens[q] : request->key_lens[0];
        assert_true(keys.first <= keys.end && keys.end <= valid);
        if (keys.first < keys.end) { /* the range is the smallest */
            assert_true(attends(request, valid, q, keys.first));
            assert_true(attends(request, valid, q, keys.end - 1));
        }
        for (size_t k = 0; k < request->key_lens[0]; k++) {
            bool got = keys.first <= k && k < keys.end &&
                       (!mask.by_pair || mask_attends(&mask, q, k));
            assert_int_equal(got, attends(request, valid, q, k));
        }
    }
}

static void test_mask_allows_the_pairs_of_the_definition(void **state) {
    enum { MAX = 12 };
    uint64_t seed = unit_seed(20261201);
    (void)state;
    for (unsigned i = 0; i < sample_cases(20000); i++) {
        size_t positions[MAX], key_positions[MAX], valid_lens[MAX];
        size_t query_len = random_between(&seed, 1, MAX);
        size_t key_len = random_between(&seed, 1, MAX), next = 0;
        bool ordered = random_between(&seed, 0, 1) == 1;
        for (size_t k = 0; k < key_len; k++) {
            next += random_between(&seed, 0, 2);
            key_positions[k] = ordered ? next : random_between(&seed, 0, MAX);
        }
        for (size_t q = 0; q < query_len; q++) {
            positions[q] = random_between(&seed, 0, MAX);
            valid_lens[q] = random_between(&seed, 0, key_len);
        }
        const attn_request request = {
            .num_sequences = 1,
            .query_lens = &query_len,
            .key_lens = &key_len,
            .positions = random_between(&seed, 0, 1) ? positions : NULL,
            .key_positions = random_between(&seed, 0, 1) ? key_positions : NULL,
            .valid_lens = random_between(&seed, 0, 1) ? valid_lens : NULL,
            .valid_lens_per_query = true,
            .causal = random_between(&seed, 0, 1) == 1,
            .window = random_between(&seed, 0, 6),
            .chunk = random_between(&seed, 0, 1) * random_between(&seed, 0, 6),
        };
        compare_mask(&request);
    }
}

static void test_extreme_windows_and_positions_do_not_wrap(void **state) {
    const size_t windows[] = {1, ATTN_POSITION_MAX, SIZE_MAX - 1, SIZE_MAX};
    const size_t positions[] = {0, 1, ATTN_POSITION_MAX};
    const size_t len = 3;
    (void)state;
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        for (int causal = 0; causal < 2; causal++) {
            attn_request request = {.num_sequences = 1,
                                    .query_lens = &len,
                                    .key_lens = &len,
                                    .positions = positions,
                                    .key_positions = positions,
                                    .causal = causal == 1,
                                    .window = windows[w]};
            compare_mask(&request);
            request.chunk = windows[w];
            compare_mask(&request);
            request.window = 0;
            compare_mask(&request);
        }
    }
}

static void test_positions_over_the_largest_are_refused(void **state) {
    uint64_t seed = unit_seed(20261202);
    const attn_model_info info = random_model_info(&seed);
    attn_model *model = random_model(&seed, &info);
    size_t fine[] = {0, ATTN_POSITION_MAX}, wrong[] = {7, (size_t)ATTN_POSITION_MAX + 1};
    const size_t lens[] = {1, 1};
    attn_request request = {.num_sequences = 2,
                            .query_lens = lens,
                            .key_lens = lens,
                            .positions = fine,
                            .key_positions = fine};
    attn_sizes sizes;
    attn_error error;
    (void)state;
    assert_int_equal(attn_plan(model, &request, &sizes, &error), ATTN_OK);
    request.key_positions = wrong;
    assert_int_equal(attn_plan(model, &request, &sizes, &error), ATTN_E_VALUE);
    assert_string_equal(error.text, "key_positions of sequence 1 has 2147483648, but "
                                    "positions end at 2147483647");
    request.key_positions = NULL;
    request.positions = wrong;
    assert_int_equal(attn_plan(model, &request, &sizes, &error), ATTN_E_VALUE);
    assert_string_equal(error.text, "positions of sequence 1 has 2147483648, but "
                                    "positions end at 2147483647");
    attn_model_destroy(model);
}

/* --- the layer --- */

/* What this file is about, of all features. */
enum {
    FEATURES =
        RANDOM_KV_HEADS | RANDOM_SCALE | RANDOM_SOFTCAP | RANDOM_SINKS | RANDOM_BIAS,
    OF_REQUESTS = RANDOM_POSITIONS | RANDOM_WINDOW
};

/* Compares a request with the reference, then asks for log-sum-exps as well: these agree
 * too, and with the native engine nothing else changes by a bit. */
static void compare_with_reference(const attn_model *model, attn_request *request,
                                   unsigned case_number) {
    const size_t num_heads = attn_model_get_info(model)->num_heads;
    attn_sizes sizes;

    assert_as_reference(model, request, case_number);
    attn_result without = run(model, request, &sizes);
    request->need_lse = true;
    attn_result with = run(model, request, &sizes);
    assert_int_equal(sizes.lse, sizes.num_queries * num_heads);
    if (strcmp(engine.engine, "native") == 0) {
        assert_memory_equal(with.outputs, without.outputs, sizes.outputs * sizeof(float));
        assert_memory_equal(with.weights, without.weights, sizes.weights * sizeof(float));
    }

    double *lse = malloc(sizes.lse * sizeof *lse);
    const struct comparison c = compare_to_reference(model, request, case_number);
    run_reference(model, request, &(struct ref_result){.lse = lse});
    assert_expected(&c, REF_LSE, with.lse, lse, sizes.lse, 1);
    free(lse);

    request->omit_outputs = true;
    request->need_weights = ATTN_WEIGHTS_NONE;
    attn_result alone = run(model, request, &sizes);
    if (strcmp(engine.engine, "native") == 0)
        assert_memory_equal(alone.lse, with.lse, sizes.lse * sizeof(float));
    free_result(&alone);
    free_result(&without);
    free_result(&with);
}

/* Compares random requests to random models. */
static void compare_random(uint64_t seed, unsigned cases, size_t queries, size_t keys,
                           size_t num_threads) {
    const attn_parallel parallel = {
        .num_threads = num_threads, .run = run_backwards, .context = &num_threads};

    seed = unit_seed(seed);
    for (unsigned i = 0; i < sample_cases(cases); i++) {
        attn_model_info info = random_model_info(&seed);
        if (keys > KERNEL_CHUNK_KEYS && info.linears[ATTN_OUTPUT].weight)
            info.num_heads = random_between(&seed, 1, 2);
        random_add_features(&seed, FEATURES, &info);
        attn_model *model = random_model(&seed, &info);
        /* float32 holds the tolerance for scores up to about 100. */
        for (size_t h = 0; keys > 100 && model->arrays[MODEL_SLOPES].numbers != NULL &&
                           h < info.num_heads;
             h++)
            model->arrays[MODEL_SLOPES].numbers[h] =
                ldexpf(model->arrays[MODEL_SLOPES].numbers[h], -6);
        assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
        struct random_request r;
        random_request_init(&seed, model, queries, keys, &r);
        random_request_add(&seed, OF_REQUESTS, model, &r);
        if (num_threads > 1)
            r.request.parallel = &parallel;
        compare_with_reference(model, &r.request, i);
        random_request_deinit(&r);
        attn_model_destroy(model);
    }
}

static void test_small_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20261207, 200, 9, 9, 1);
}

static void test_long_requests_match_the_reference(void **state) {
    (void)state;
    compare_random(20261204, 40, 150, 250, 1);
}

static void test_requests_in_chunks_match_the_reference(void **state) {
    (void)state;
    compare_random(20261205, 12, 40, 2 * KERNEL_CHUNK_KEYS + 700, 1);
}

static void test_requests_in_split_chunks_match_the_reference(void **state) {
    (void)state;
    compare_random(20261206, 12, 5, 2 * KERNEL_CHUNK_KEYS + 700, 3);
}

/* One sequence of many keys, whose queries have positions of their own. */
struct sequence {
    attn_model *model;
    attn_request request;
    size_t query_len, key_len;
    size_t *positions, *key_positions;
    float *queries, *keys, *values;
};

static struct sequence *make_sequence(uint64_t *seed, attn_model *model, size_t query_len,
                                      size_t key_len, bool ordered) {
    const attn_model_info *info = attn_model_get_info(model);
    struct sequence *s = calloc(1, sizeof *s);
    *s = (struct sequence){.model = model,
                           .query_len = query_len,
                           .key_len = key_len,
                           .positions = malloc(query_len * sizeof(size_t)),
                           .key_positions = malloc(key_len * sizeof(size_t)),
                           .queries =
                               malloc(query_len * info->width.query * sizeof(float)),
                           .keys = malloc(key_len * info->width.key * sizeof(float)),
                           .values = malloc(key_len * info->width.value * sizeof(float))};

    random_fill(seed, s->queries, query_len * info->width.query);
    random_fill(seed, s->keys, key_len * info->width.key);
    random_fill(seed, s->values, key_len * info->width.value);
    for (size_t q = 0; q < query_len; q++)
        s->positions[q] = random_between(seed, 0, key_len);
    for (size_t k = 0; k < key_len; k++)
        s->key_positions[k] = ordered ? k : random_between(seed, 0, key_len);
    s->request = (attn_request){.num_sequences = 1,
                                .query_lens = &s->query_len,
                                .key_lens = &s->key_len,
                                .queries = s->queries,
                                .keys = s->keys,
                                .values = s->values,
                                .positions = s->positions,
                                .key_positions = s->key_positions,
                                .causal = random_between(seed, 0, 1) == 1,
                                .window = random_between(seed, 1, 60),
                                .chunk = random_between(seed, 0, 1) * 25,
                                .need_weights = ATTN_WEIGHTS_ALL,
                                .need_heads = true,
                                .need_lse = true};
    return s;
}

static void destroy_sequence(struct sequence *s) {
    free(s->positions);
    free(s->key_positions);
    free(s->queries);
    free(s->keys);
    free(s->values);
    attn_model_destroy(s->model);
    free(s);
}

/* A model with features, and wide enough heads for keys in panels now and then. */
static attn_model *featured_model(uint64_t *seed) {
    attn_model_info info = random_model_info(seed);
    random_add_features(seed, FEATURES, &info);
    attn_model *model = random_model(seed, &info);
    for (size_t h = 0; model->arrays[MODEL_SLOPES].numbers != NULL && h < info.num_heads;
         h++)
        model->arrays[MODEL_SLOPES].numbers[h] =
            ldexpf(model->arrays[MODEL_SLOPES].numbers[h], -7);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    return model;
}

/* Compares the results of some queries with those of all of them. */
static void compare_part(const struct sequence *s, const attn_result *all, size_t first,
                         size_t count) {
    const attn_model_info *info = attn_model_get_info(s->model);
    size_t hidden = info->num_heads * info->width.head, row = s->key_len * sizeof(float);
    attn_request part = s->request;
    attn_sizes sizes;

    part.query_lens = &count;
    part.queries += first * info->width.query;
    part.positions += first;
    attn_result some = run(s->model, &part, &sizes);
    assert_memory_equal(some.outputs, all->outputs + first * info->width.out,
                        sizes.outputs * sizeof(float));
    assert_memory_equal(some.heads, all->heads + first * hidden,
                        sizes.heads * sizeof(float));
    assert_memory_equal(some.lse, all->lse + first * info->num_heads,
                        sizes.lse * sizeof(float));
    for (size_t h = 0; h < info->num_heads; h++)
        assert_memory_equal(some.weights + h * count * s->key_len,
                            all->weights + (h * s->query_len + first) * s->key_len,
                            count * row);
    free_result(&some);
}

/* Neither by other queries, nor by how few there are, nor by threads. */
static void test_other_queries_and_threads_do_not_change_a_bit(void **state) {
    uint64_t seed = unit_seed(20261210);
    size_t num_threads = 3;
    attn_parallel parallel = {
        .num_threads = num_threads, .run = run_backwards, .context = &num_threads};
    (void)state;
    if (strcmp(engine.engine, "native") != 0) {
        print_message("only the native engine has the same bits for some rows\n");
        skip();
    }
    for (unsigned i = 0; i < 24; i++) {
        size_t keys = i % 3 == 0 ? KERNEL_CHUNK_KEYS + 900 : 200;
        struct sequence *s =
            make_sequence(&seed, featured_model(&seed), 40, keys, i % 2 == 0);
        attn_sizes sizes;
        attn_result all = run(s->model, &s->request, &sizes);
        s->request.parallel = &parallel;
        for (size_t first = 0, count; first < s->query_len; first += count) {
            count = random_between(&seed, 1, random_between(&seed, 1, 20));
            if (count > s->query_len - first)
                count = s->query_len - first;
            compare_part(s, &all, first, count);
        }
        free_result(&all);
        destroy_sequence(s);
    }
}

/* What no query attends to is not a number. */
static void test_hidden_keys_do_not_reach_the_results(void **state) {
    uint64_t seed = unit_seed(20261211);
    (void)state;
    for (unsigned i = 0; i < 60; i++) {
        struct sequence *s =
            make_sequence(&seed, featured_model(&seed), 3, 150, i % 2 == 0);
        const attn_model_info *info = attn_model_get_info(s->model);
        struct mask mask;
        attn_sizes sizes;

        s->request.window = random_between(&seed, 1, 20);
        for (size_t q = 0; q < s->query_len; q++) /* each attends to a key */
            s->positions[q] = s->key_positions[random_between(&seed, 0, 149)];
        attn_result clean = run(s->model, &s->request, &sizes);
        mask_init(&mask, &s->request, 0, 0, 0);
        for (size_t k = 0; k < s->key_len; k++) {
            if (!mask_attends(&mask, 0, k) && !mask_attends(&mask, 1, k) &&
                !mask_attends(&mask, 2, k))
                s->keys[k * info->width.key] = s->values[k * info->width.value] = NAN;
        }
        attn_result spoiled = run(s->model, &s->request, &sizes);
        assert_memory_equal(spoiled.outputs, clean.outputs,
                            sizes.outputs * sizeof(float));
        assert_memory_equal(spoiled.weights, clean.weights,
                            sizes.weights * sizeof(float));
        assert_memory_equal(spoiled.lse, clean.lse, sizes.lse * sizeof(float));
        free_result(&clean);
        free_result(&spoiled);
        destroy_sequence(s);
    }
}

/* The score of a single key overflows, but its weight is 1. */
static void test_single_key_has_its_weight_whatever_its_score(void **state) {
    uint64_t seed = unit_seed(20261212);
    (void)state;
    struct sequence *s = make_sequence(&seed, featured_model(&seed), 5, 40, true);
    attn_sizes sizes;
    while (attn_model_get_info(s->model)->score.sinks ||
           attn_model_get_info(s->model)->score.softcap > 0) {
        destroy_sequence(s);
        s = make_sequence(&seed, featured_model(&seed), 5, 40, true);
    }
    s->request.window = 1;
    s->request.causal = true;
    for (size_t q = 0; q < s->query_len; q++)
        s->positions[q] = 7 * q;
    s->request.need_lse = false;
    attn_result without = run(s->model, &s->request, &sizes);
    for (size_t q = 0; q < s->query_len * attn_model_get_info(s->model)->width.query; q++)
        s->queries[q] *= 1e38F;
    for (size_t k = 0; k < s->key_len * attn_model_get_info(s->model)->width.key; k++)
        s->keys[k] *= 1e6F;
    s->request.need_lse = true;
    attn_result with = run(s->model, &s->request, &sizes);
    assert_memory_equal(with.outputs, without.outputs, sizes.outputs * sizeof(float));
    assert_memory_equal(with.weights, without.weights, sizes.weights * sizeof(float));
    free_result(&without);
    free_result(&with);
    destroy_sequence(s);
}

int main(void) {
    const struct CMUnitTest masks[] = {
        cmocka_unit_test(test_mask_allows_the_pairs_of_the_definition),
        cmocka_unit_test(test_extreme_windows_and_positions_do_not_wrap),
        cmocka_unit_test(test_positions_over_the_largest_are_refused),
    };
    const struct CMUnitTest layer[] = {
        cmocka_unit_test(test_small_requests_match_the_reference),
        cmocka_unit_test(test_long_requests_match_the_reference),
        cmocka_unit_test(test_requests_in_chunks_match_the_reference),
        cmocka_unit_test(test_requests_in_split_chunks_match_the_reference),
        cmocka_unit_test(test_other_queries_and_threads_do_not_change_a_bit),
        cmocka_unit_test(test_hidden_keys_do_not_reach_the_results),
        cmocka_unit_test(test_single_key_has_its_weight_whatever_its_score),
    };
    return cmocka_run_group_tests(masks, init_library, NULL) +
           run_with_every_engine(layer, sizeof layer / sizeof layer[0]);
}
