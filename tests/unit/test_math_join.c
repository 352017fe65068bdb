/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_join.c: requests that are joined get the bits that they get alone, with every
 * set of kernels; which requests may be joined; and what joining reads and writes. */
#include "math/blas.h"
#include "math/join.h"
#include "math/kernels/kernels.h"
#include "math/model.h"
#include "random_model.h"

#include <attnd/library.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "share_inputs.h"

#define GROUP_MAX 9
#define UNTOUCHED 0xA5 /* bytes behind what join_pack() may write */

static attn_engine_options engine; /* main() runs all tests with each */

static int init_library(void **state) {
    attn_error error;
    (void)state;
    return attn_init(&error) == ATTN_OK ? 0 : -1;
}

static void *allocate(size_t bytes) {
    void *memory =
        aligned_alloc(ATTN_ALIGNMENT, (bytes / ATTN_ALIGNMENT + 1) * ATTN_ALIGNMENT);
    assert_non_null(memory);
    return memory;
}

/* Returns NULL for none. */
static float *allocate_floats(size_t count) {
    return count > 0 ? allocate(count * sizeof(float)) : NULL;
}

/* Computes a request; ret_sizes may be NULL. The caller frees what the result holds. */
static attn_result run(const attn_model *model, const attn_request *request,
                       attn_sizes *ret_sizes) {
    attn_sizes sizes;
    assert_int_equal(attn_plan(model, request, &sizes, NULL), ATTN_OK);
    attn_result result = {.outputs = allocate_floats(sizes.outputs),
                          .weights = allocate_floats(sizes.weights),
                          .heads = allocate_floats(sizes.heads),
                          .lse = allocate_floats(sizes.lse)};
    void *scratch = allocate(sizes.scratch_bytes);

    memset(scratch, 0xff, sizes.scratch_bytes);
    attn_run(model, request, &sizes, scratch, &result);
    free(scratch);
    if (ret_sizes != NULL)
        *ret_sizes = sizes;
    return result;
}

static void free_result(const attn_result *result) {
    free(result->outputs);
    free(result->weights);
    free(result->heads);
    free(result->lse);
}

/* Numbers have the same bits. Of two that are not numbers the bits may differ: such a
 * result is refused. */
static void assert_same_bits(const float *got, const float *want, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 &&
            !(isnan(got[i]) && isnan(want[i])))
            fail_msg("number %zu is %.9g joined, and %.9g alone", i, (double)got[i],
                     (double)want[i]);
    }
}

/* A random model with the engine under test; inputs that are shared are equally wide. */
static attn_model *make_model(uint64_t *seed, enum sharing sharing) {
    attn_model_info info = random_model_info(seed);

    if (sharing != ALL_DIFFER)
        info.width.value = info.width.key;
    if (sharing == ALL_ARE_ONE)
        info.width.key = info.width.value = info.width.query;
    random_add_features(
        seed, RANDOM_KV_HEADS | RANDOM_ROTATION | RANDOM_SINKS | RANDOM_BIAS, &info);
    attn_model *model = random_model(seed, &info);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);
    return model;
}

/* Gives a request what it must have as the first one of its group: the kind of mask, and
 * the results that are wanted. */
static void follow(const attn_model *model, const attn_request *first,
                   struct random_request *r) {
    attn_request *request = &r->request;

    request->weights_heads = NULL;
    request->weights_queries = NULL;
    request->need_weights = first->need_weights;
    request->head_mask = first->head_mask;
    request->omit_outputs = first->omit_outputs;
    request->need_heads = first->need_heads;
    request->need_lse = first->need_lse;
    if (first->window + first->chunk > 0 || first->positions != NULL ||
        first->key_positions != NULL) {
        request->causal = first->causal;
        request->prefix_lens = NULL;
    }
    request->window = first->window;
    request->chunk = first->chunk;
    request->positions = first->positions != NULL ? r->positions : NULL;
    request->key_positions = first->key_positions != NULL ? r->key_positions : NULL;
    request->axis_positions = model->info.rotation.axes > 1 ? r->axis_positions : NULL;
    assert_int_equal(attn_plan(model, request, &r->sizes, NULL), ATTN_OK);
}

/* Draws the kind of mask, and which results are wanted. */
static void add_masks(uint64_t *seed, attn_request *request) {
    static const size_t any[1];

    if (random_between(seed, 0, 1) == 1) {
        request->window = random_between(seed, 0, 5);
        request->chunk = random_between(seed, 0, 1) * 3;
        request->positions = random_between(seed, 0, 1) ? any : NULL;
        request->key_positions = random_between(seed, 0, 1) ? any : NULL;
    }
    request->omit_outputs = random_between(seed, 0, 3) == 0;
    request->need_heads = random_between(seed, 0, 1) == 1;
    request->need_lse = random_between(seed, 0, 1) == 1;
}

/* Returns positions for all rows of a request, whose sequences have up to `longest`. */
static size_t *random_positions(uint64_t *seed, size_t longest) {
    size_t *positions = allocate(4 * longest * sizeof *positions);
    for (size_t i = 0; i < 4 * longest; i++)
        positions[i] = random_between(seed, 0, 20);
    return positions;
}

/* Requests that are joined, and what each gives alone. */
struct group {
    attn_model *model;
    size_t count;
    struct random_request requests[GROUP_MAX];
    const attn_request *pointers[GROUP_MAX];
    attn_sizes sizes[GROUP_MAX];
    attn_result alone[GROUP_MAX];
};

static void make_group(uint64_t *seed, size_t longest, struct group *g) {
    enum sharing sharing = (enum sharing)random_between(seed, 0, SHARING_COUNT - 1);

    g->model = make_model(seed, sharing);
    g->count = random_between(seed, 1, GROUP_MAX);
    for (size_t i = 0; i < g->count; i++) {
        struct random_request *r = &g->requests[i];
        random_request_init(seed, g->model, longest, longest, r);
        share_inputs(r, sharing);
        r->positions = random_positions(seed, longest);
        r->key_positions = random_positions(seed, longest);
        r->axis_positions = random_positions(seed, ATTN_AXES * longest);
        if (i == 0)
            add_masks(seed, &r->request);
        /* One in eight holds what is not a number, which must not reach the others. */
        if (random_between(seed, 0, 7) == 0)
            r->queries[0] = r->values[0] = random_between(seed, 0, 1) ? NAN : INFINITY;

        follow(g->model, &g->requests[0].request, r);
        g->pointers[i] = &r->request;
        g->alone[i] = run(g->model, &r->request, &g->sizes[i]);
        assert_true(join_possible(g->model, g->pointers[0], g->pointers[i]));
    }
}

static void free_group(struct group *g) {
    for (size_t i = 0; i < g->count; i++) {
        random_request_deinit(&g->requests[i]);
        free_result(&g->alone[i]);
    }
    attn_model_destroy(g->model);
}

/* Overwrites tensors and lengths of all requests, as if they were released. */
static void spoil_inputs(struct group *g) {
    const attn_model_info *info = attn_model_get_info(g->model);

    for (size_t i = 0; i < g->count; i++) {
        struct random_request *r = &g->requests[i];
        size_t queries = g->sizes[i].num_queries * info->width.query;
        size_t sequences = r->request.num_sequences * sizeof(size_t);
        memset(r->queries, 0xff, queries * sizeof(float));
        r->keys[0] = r->values[0] = NAN;
        memset(r->positions, 0xff, g->sizes[i].num_queries * sizeof *r->positions);
        r->key_positions[0] = r->axis_positions[0] = SIZE_MAX;
        memset(r->query_lens, 0xff, sequences);
        memset(r->key_lens, 0xff, sequences);
        if (r->valid_lens != NULL)
            r->valid_lens[0] = SIZE_MAX;
    }
}

/* Tasks in reverse, each with the scratch of another thread. */
static void run_backwards(void *context, size_t count,
                          void (*task)(void *data, size_t index, size_t thread),
                          void *data) {
    (void)context;
    for (size_t i = count; i > 0; i--)
        task(data, i - 1, i % 3);
}

static const attn_parallel backwards = {.num_threads = 3, .run = run_backwards};

static void expect_bits_of_each_alone(struct group *g) {
    size_t bytes = join_bytes(g->model, g->pointers, g->count), one_by_one = 0;
    unsigned char *memory = allocate(bytes + 64);
    attn_request joined;

    for (size_t i = 0; i < g->count; i++)
        one_by_one += join_bytes(g->model, &g->pointers[i], 1);
    assert_int_equal(bytes % ATTN_ALIGNMENT, 0);
    assert_in_range(one_by_one, bytes, bytes + 10 * ATTN_ALIGNMENT * (g->count - 1));

    memset(memory, UNTOUCHED, bytes + 64);
    g->requests[0].request.parallel = &backwards;
    join_pack(g->model, g->pointers, g->count, memory, &joined);
    assert_ptr_equal(joined.parallel, &backwards);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(memory[bytes + i], UNTOUCHED);
    spoil_inputs(g);

    attn_result all = run(g->model, &joined, NULL), rest = all;
    for (size_t i = 0; i < g->count; i++) {
        attn_result own = join_take(&rest, &g->sizes[i]);
        assert_same_bits(own.outputs, g->alone[i].outputs, g->sizes[i].outputs);
        assert_same_bits(own.weights, g->alone[i].weights, g->sizes[i].weights);
        assert_same_bits(own.heads, g->alone[i].heads, g->sizes[i].heads);
        assert_same_bits(own.lse, g->alone[i].lse, g->sizes[i].lse);
    }
    free_result(&all);
    free(memory);
}

static void join_random(uint64_t seed, unsigned cases, size_t longest) {
    seed = unit_seed(seed);
    for (unsigned i = 0; i < cases; i++) {
        struct group g;
        make_group(&seed, longest, &g);
        expect_bits_of_each_alone(&g);
        free_group(&g);
    }
}

static void test_joined_single_rows_have_the_bits_of_each_alone(void **state) {
    (void)state;
    join_random(20260011, 300, 1);
}

static void test_joined_small_requests_have_the_bits_of_each_alone(void **state) {
    (void)state;
    join_random(20260012, 600, 9);
}

/* Beyond 256 keys a thread gathers the rows of a head, for the whole batch. */
static void test_joined_long_requests_have_the_bits_of_each_alone(void **state) {
    (void)state;
    join_random(20260013, 12, 400);
}

/* Two requests, one row each, of a model with three heads; tests change the second. */
struct pair {
    attn_model *model;
    attn_request a, b;
};

static const float row_of_a[4] = {1, 2, 3, 4}, row_of_b[4] = {5, 6, 7, 8};
static const size_t one[] = {1};

static struct pair make_pair(void) {
    const attn_model_info info = {
        .name = "pair",
        .layout = "test",
        .width = {.query = 4, .key = 4, .value = 4, .out = 4, .head = 2},
        .num_heads = 3,
        .linears[ATTN_OUTPUT].weight = true};
    uint64_t seed = unit_seed(5);
    struct pair pair = {.model = random_model(&seed, &info)};

    assert_int_equal(attn_model_set_engine(pair.model, &engine, NULL), ATTN_OK);
    pair.a = (attn_request){.num_sequences = 1,
                            .query_lens = one,
                            .key_lens = one,
                            .queries = row_of_a,
                            .keys = row_of_a,
                            .values = row_of_a};
    pair.b = pair.a;
    pair.b.queries = pair.b.keys = pair.b.values = row_of_b;
    return pair;
}

static void expect_joinable(struct pair *pair, bool expected) {
    assert_int_equal(join_possible(pair->model, &pair->a, &pair->b), expected);
    assert_int_equal(join_possible(pair->model, &pair->b, &pair->a), expected);
    attn_model_destroy(pair->model);
}

static void test_masks_may_differ(void **state) {
    (void)state;
    struct pair pair = make_pair();
    pair.b.causal = true;
    pair.b.valid_lens = one;
    expect_joinable(&pair, true);

    pair = make_pair();
    pair.a.causal = pair.b.causal = true;
    pair.b.prefix_lens = one;
    expect_joinable(&pair, true);
}

static void test_biases_and_prefixes_within_windows_are_not_joined(void **state) {
    (void)state;
    struct pair pair = make_pair();
    pair.b.bias = row_of_b;
    expect_joinable(&pair, false);

    pair = make_pair();
    pair.a.causal = pair.b.causal = true;
    pair.a.window = pair.b.window = 2;
    pair.b.prefix_lens = one;
    expect_joinable(&pair, false);
}

static void test_masks_by_position_must_be_alike(void **state) {
    static const size_t position[] = {3};
    (void)state;
    struct pair pair = make_pair();
    pair.a.window = pair.b.window = pair.a.chunk = pair.b.chunk = 2;
    expect_joinable(&pair, true);

    for (int i = 0; i < 2; i++) {
        pair = make_pair();
        *(i == 0 ? &pair.b.window : &pair.b.chunk) = 2;
        expect_joinable(&pair, false);
    }

    pair = make_pair();
    pair.a.window = pair.b.window = 2;
    pair.b.causal = true;
    expect_joinable(&pair, false);

    pair = make_pair();
    pair.b.positions = position;
    expect_joinable(&pair, false);

    pair = make_pair();
    pair.a.positions = pair.b.positions = pair.b.key_positions = position;
    expect_joinable(&pair, false);
}

static void test_other_results_are_not_joined(void **state) {
    (void)state;
    struct pair pair = make_pair();
    pair.b.omit_outputs = true;
    expect_joinable(&pair, false);

    pair = make_pair();
    pair.b.need_heads = true;
    expect_joinable(&pair, false);

    pair = make_pair();
    pair.b.need_lse = true;
    expect_joinable(&pair, false);
}

static void test_other_weights_are_not_joined(void **state) {
    (void)state;
    struct pair pair = make_pair();
    pair.a.need_weights = ATTN_WEIGHTS_ALL;
    pair.b.need_weights = ATTN_WEIGHTS_MEAN;
    expect_joinable(&pair, false);
}

static void test_selected_weights_are_not_joined(void **state) {
    (void)state;
    struct pair pair = make_pair();
    pair.a.need_weights = pair.b.need_weights = ATTN_WEIGHTS_ALL;
    pair.b.weights_queries = (const ptrdiff_t[]){0};
    pair.b.num_weights_queries = 1;
    expect_joinable(&pair, false);
}

static void expect_masks(const float *a, const float *b, bool expected) {
    struct pair pair = make_pair();
    pair.a.head_mask = a;
    pair.b.head_mask = b;
    expect_joinable(&pair, expected);
}

static void test_head_mask_of_ones_is_as_none(void **state) {
    (void)state;
    expect_masks(NULL, (const float[]){1, 1, 1}, true);
}

static void test_other_head_masks_are_not_joined(void **state) {
    static const float no_number[] = {NAN, 1, 1};
    (void)state;
    expect_masks(NULL, (const float[]){1, 1, 0}, false);
    expect_masks((const float[]){1, 0.5F, 0}, (const float[]){1, 0, 0}, false);
    expect_masks(no_number, no_number, false);
}

static void test_inputs_that_share_otherwise_are_not_joined(void **state) {
    (void)state;
    struct pair pair = make_pair();
    pair.b.queries = row_of_a;
    expect_joinable(&pair, false);

    pair = make_pair();
    pair.b.values = row_of_a;
    expect_joinable(&pair, false);
}

/* One address is not one tensor when the widths or the rows differ. */
static void test_inputs_at_one_address_may_be_different_tensors(void **state) {
    (void)state;
    static const size_t two[] = {2};
    static const float rows[8] = {0};
    struct pair pair = make_pair();
    pair.a.queries = pair.a.keys = pair.a.values = rows;
    pair.a.query_lens = two;
    expect_joinable(&pair, false);

    pair = make_pair();
    pair.model->info.width.query = 2;
    pair.b.queries = row_of_a;
    expect_joinable(&pair, true);
}

static void test_rows_of_the_other_engine_are_not_joined(void **state) {
    (void)state;
    struct pair pair = make_pair();
    attn_engine_options other = {.engine = blas_engine};
    assert_int_equal(attn_model_set_engine(pair.model, &other, NULL), ATTN_OK);
    expect_joinable(&pair, false);
}

static void test_sizes_that_wrap_are_not_counted(void **state) {
    (void)state;
    static const size_t many[] = {INT_MAX};
    struct pair pair = make_pair();
    const attn_request *both[] = {&pair.a, &pair.b};

    pair.model->info.width.query = pair.model->info.width.key =
        pair.model->info.width.value = INT_MAX / 2;
    pair.a.query_lens = pair.a.key_lens = pair.b.query_lens = pair.b.key_lens = many;
    assert_true(join_bytes(pair.model, both, 1) < SIZE_MAX);
    assert_int_equal(join_bytes(pair.model, both, 2), SIZE_MAX);
    attn_model_destroy(pair.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_single_rows_have_the_bits_of_each_alone),
        cmocka_unit_test(test_joined_small_requests_have_the_bits_of_each_alone),
        cmocka_unit_test(test_joined_long_requests_have_the_bits_of_each_alone),
        cmocka_unit_test(test_masks_may_differ),
        cmocka_unit_test(test_biases_and_prefixes_within_windows_are_not_joined),
        cmocka_unit_test(test_masks_by_position_must_be_alike),
        cmocka_unit_test(test_other_results_are_not_joined),
        cmocka_unit_test(test_other_weights_are_not_joined),
        cmocka_unit_test(test_selected_weights_are_not_joined),
        cmocka_unit_test(test_head_mask_of_ones_is_as_none),
        cmocka_unit_test(test_other_head_masks_are_not_joined),
        cmocka_unit_test(test_inputs_that_share_otherwise_are_not_joined),
        cmocka_unit_test(test_inputs_at_one_address_may_be_different_tensors),
        cmocka_unit_test(test_rows_of_the_other_engine_are_not_joined),
        cmocka_unit_test(test_sizes_that_wrap_are_not_counted),
    };
    const struct kernels *kernels;
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
