/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_pace.c: how many steps a request takes between two looks at others: in a task
 * of a parallel loop, and outside of all. Steps are counted, so that no time matters. */
#include "base/pace.h"
#include "random_model.h"

#include <attnd/heads.h>
#include <attnd/library.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#define FEATURES                                                                         \
    (RANDOM_KV_HEADS | RANDOM_ROTATION | RANDOM_HEAD_NORM | RANDOM_SOFTCAP |             \
     RANDOM_SINKS | RANDOM_BIAS | RANDOM_PRE_NORM | RANDOM_VALUE_ROWS |                  \
     RANDOM_QUERY_FACTOR | RANDOM_GATE | RANDOM_OUT_NORM | RANDOM_LATENTS)

static size_t num_threads = 2;

static void no_checkpoint(void *context) {
    (void)context;
}

/* Of what a request does on its own thread, and in its tasks. */
struct paces {
    struct pace own, tasks;
    size_t looked;  /* own steps before the last loop, where a request may be stopped */
    size_t longest; /* the most own steps between two loops */
};

/* Looks whether the request is over. */
static void look(struct paces *paces) {
    size_t steps = paces->own.total - paces->looked;

    paces->looked = paces->own.total;
    paces->longest = steps > paces->longest ? steps : paces->longest;
}

/* attn_parallel.run: in a task, there is no checkpoint. */
static void run_paced(void *context, size_t count,
                      void (*task)(void *data, size_t index, size_t thread), void *data) {
    struct paces *paces = context;
    pace_restart();
    look(paces);
    for (size_t i = 0; i < count; i++) {
        pace_enter(&paces->tasks);
        task(data, i, i % num_threads);
        pace_restart();
        pace_enter(&paces->own);
    }
}

/* Plans and runs a request, or the analysis of heads. */
static struct paces count_steps(const attn_model *model, attn_request request,
                                bool of_heads) {
    struct paces paces = {.own = {.checkpoint = no_checkpoint}};
    const attn_parallel parallel = {num_threads, run_paced, &paces};
    size_t num_heads = attn_model_get_info(model)->num_heads;
    attn_sizes sizes;

    request.parallel = &parallel;
    pace_enter(&paces.own);
    assert_int_equal(
        (of_heads ? attn_heads_plan : attn_plan)(model, &request, &sizes, NULL), ATTN_OK);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    const attn_result result = {.outputs = malloc((sizes.outputs + 1) * sizeof(float)),
                                .weights = malloc((sizes.weights + 1) * sizeof(float)),
                                .heads = malloc((sizes.heads + 1) * sizeof(float)),
                                .lse = malloc((sizes.lse + 1) * sizeof(float)),
                                .received = malloc((sizes.received + 1) * sizeof(float)),
                                .block_weights =
                                    malloc((sizes.block_weights + 1) * sizeof(float))};
    attn_heads heads = {.num_heads = num_heads,
                        .sums = calloc(num_heads, sizeof *heads.sums),
                        .gram = calloc(num_heads * num_heads, sizeof *heads.gram)};
    if (of_heads)
        attn_heads_add(model, &request, &sizes, scratch, &heads);
    else
        attn_run(model, &request, &sizes, scratch, &result);
    pace_restart();
    look(&paces);
    pace_enter(NULL);

    free(scratch);
    free(result.outputs);
    free(result.weights);
    free(result.heads);
    free(result.lse);
    free(result.received);
    free(result.block_weights);
    free(heads.sums);
    free(heads.gram);
    return paces;
}

static void assert_short(const struct paces *paces, unsigned case_number) {
    if (paces->own.longest > PACE_STEPS_MAX || paces->tasks.longest > PACE_STEPS_MAX)
        fail_msg("case %u: %zu steps between two checkpoints, %zu in a task", case_number,
                 paces->own.longest, paces->tasks.longest);
}

static void test_steps_between_checkpoints_are_few_in_random_requests(void **state) {
    uint64_t seed = unit_seed(20261122);
    (void)state;
    for (unsigned i = 0; i < 60; i++) {
        attn_model_info info = random_model_info(&seed);
        struct random_request request;

        info.score.kind = ATTN_SCALED_DOT_PRODUCT;
        random_add_features(&seed, FEATURES, &info);
        attn_model *model = random_model(&seed, &info);
        random_request_init(&seed, model, 200, 6000, &request);
        random_request_add(&seed, RANDOM_POSITIONS | RANDOM_WINDOW | RANDOM_NEED, model,
                           &request);
        for (int of_heads = 0; of_heads < 2; of_heads++) {
            const struct paces paces = count_steps(model, request.request, of_heads == 1);
            assert_short(&paces, i);
        }
        random_request_deinit(&request);
        attn_model_destroy(model);
    }
}

/* A model of two narrow heads, which positions cost the most. */
static attn_model *narrow_model(uint64_t *seed, attn_bias bias) {
    bool content = bias == ATTN_BIAS_CONTENT;
    attn_model_info info = {
        .name = "narrow",
        .layout = "d2l",
        .width = {.query = 8, .key = 8, .value = 8, .out = 8, .head = 4},
        .num_heads = 2,
        .score = {.bias = bias,
                  .bias_distance = bias == ATTN_BIAS_BUCKETS || content ? 100 : 0,
                  .position_rows = content ? 200 : 0,
                  .position_keys = content,
                  .position_queries = content},
        .linears[ATTN_OUTPUT].weight = true};
    return random_model(seed, &info);
}

static void test_unordered_keys_take_short_tasks_and_nothing_besides(void **state) {
    static const struct {
        attn_bias bias;
        bool causal;
        size_t window;
        bool ascend;
    } cases[] = {
        {ATTN_BIAS_NONE, true, 0, false},    {ATTN_BIAS_NONE, true, 1, false},
        {ATTN_BIAS_NONE, false, 9, false},   {ATTN_BIAS_ALIBI, true, 0, false},
        {ATTN_BIAS_ALIBI, false, 0, true},   {ATTN_BIAS_BUCKETS, true, 100, false},
        {ATTN_BIAS_BUCKETS, false, 0, true}, {ATTN_BIAS_CONTENT, true, 100, false},
        {ATTN_BIAS_CONTENT, false, 0, true},
    };
    enum { ROWS = 5000 };
    uint64_t seed = unit_seed(7);
    float *rows = malloc(sizeof(float) * ROWS * 8);
    size_t *positions = malloc(sizeof *positions * ROWS);

    (void)state;
    random_fill(&seed, rows, (size_t)ROWS * 8);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_model *model = narrow_model(&seed, cases[i].bias);
        const size_t len = ROWS;
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = &len,
                                      .key_lens = &len,
                                      .queries = rows,
                                      .keys = rows,
                                      .values = rows,
                                      .positions = positions,
                                      .key_positions = positions,
                                      .causal = cases[i].causal,
                                      .window = cases[i].window};

        for (size_t r = 0; r < ROWS; r++)
            positions[r] = cases[i].ascend ? r * r : r * 1999 % ROWS;
        for (int of_heads = 0; of_heads < 2; of_heads++) {
            const struct paces paces = count_steps(model, request, of_heads == 1);
            assert_short(&paces, i);
            /* Else the deadline would not stop it. */
            assert_true(paces.own.total <= (size_t)100 * ROWS);
            assert_true(paces.tasks.total >= (size_t)ROWS * ROWS / 2);
        }
        attn_model_destroy(model);
    }
    free(positions);
    free(rows);
}

/* The score of a row's only key is computed for its log-sum-exp. */
static void test_biases_of_single_keys_are_not_those_of_the_panel(void **state) {
    enum { ROWS = 40000, KEYS = 96 };
    const size_t query_len = ROWS, key_len = KEYS;
    uint64_t seed = unit_seed(9);
    float *rows = malloc(sizeof(float) * ROWS * 8);
    size_t *positions = malloc(sizeof *positions * ROWS);
    attn_model *model = narrow_model(&seed, ATTN_BIAS_ALIBI);
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &query_len,
                                  .key_lens = &key_len,
                                  .queries = rows,
                                  .keys = rows,
                                  .values = rows,
                                  .positions = positions,
                                  .causal = true,
                                  .window = 1,
                                  .need_lse = true};

    (void)state;
    random_fill(&seed, rows, (size_t)ROWS * 8);
    for (size_t r = 0; r < ROWS; r++)
        positions[r] = r * 7 % KEYS;
    const struct paces paces = count_steps(model, request, false);
    assert_short(&paces, 0);
    assert_true(paces.tasks.total <= (size_t)2 * ROWS * KEYS);
    attn_model_destroy(model);
    free(positions);
    free(rows);
}

static void test_short_sequences_are_found_without_a_walk(void **state) {
    enum { SEQUENCES = 20000, WIDTH = 32 };
    attn_model_info info = {.name = "panels",
                            .layout = "d2l",
                            .width = {.query = WIDTH,
                                      .key = WIDTH,
                                      .value = WIDTH,
                                      .out = WIDTH,
                                      .head = WIDTH},
                            .num_heads = 4,
                            .linears[ATTN_OUTPUT].weight = true};
    uint64_t seed = unit_seed(8);
    size_t *lens = malloc(sizeof *lens * SEQUENCES), rows = (size_t)2 * SEQUENCES;
    float *inputs = malloc(sizeof *inputs * rows * WIDTH);
    attn_model *model = random_model(&seed, &info);

    (void)state;
    random_fill(&seed, inputs, rows * WIDTH);
    for (size_t s = 0; s < SEQUENCES; s++)
        lens[s] = 2;
    const attn_request request = {.num_sequences = SEQUENCES,
                                  .query_lens = lens,
                                  .key_lens = lens,
                                  .queries = inputs,
                                  .keys = inputs,
                                  .values = inputs};
    for (int of_heads = 0; of_heads < 2; of_heads++) {
        const struct paces paces = count_steps(model, request, of_heads == 1);
        assert_short(&paces, 0);
        assert_true(paces.own.total + paces.tasks.total <= (size_t)1000 * SEQUENCES);
    }
    attn_model_destroy(model);
    free(inputs);
    free(lens);
}

/* A deadline, or a client that leaves, stops a request at the next loop. Sums over the
 * queries of one head have one task at a time. */
static void test_one_head_of_one_thread_is_looked_at_often(void **state) {
    enum { ROWS = 20000 };
    const attn_model_info info = {
        .name = "one",
        .layout = "d2l",
        .width = {.query = 1, .key = 1, .value = 1, .out = 1, .head = 1},
        .num_heads = 1,
        .linears[ATTN_OUTPUT].weight = true};
    const size_t len = ROWS;
    uint64_t seed = 10;
    float *rows = malloc(sizeof(float) * ROWS);
    attn_model *model = random_model(&seed, &info);

    (void)state;
    random_fill(&seed, rows, ROWS);
    for (size_t i = 0; i < 4; i++) {
        const attn_request request = {.num_sequences = 1,
                                      .query_lens = &len,
                                      .key_lens = &len,
                                      .queries = rows,
                                      .keys = rows,
                                      .values = rows,
                                      .omit_outputs = true,
                                      .reduce.received = i % 2 == 0,
                                      .reduce.block = i % 2 == 0 ? 0 : 100};
        num_threads = 1 + i / 2;
        const struct paces paces = count_steps(model, request, false);
        assert_true(paces.own.total >= (size_t)2 * PACE_STEPS_MAX);
        assert_true(paces.longest <= PACE_STEPS_MAX);
    }
    num_threads = 2;
    attn_model_destroy(model);
    free(rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_between_checkpoints_are_few_in_random_requests),
        cmocka_unit_test(test_unordered_keys_take_short_tasks_and_nothing_besides),
        cmocka_unit_test(test_biases_of_single_keys_are_not_those_of_the_panel),
        cmocka_unit_test(test_one_head_of_one_thread_is_looked_at_often),
        cmocka_unit_test(test_short_sequences_are_found_without_a_walk),
    };
    if (attn_init(NULL) != ATTN_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
