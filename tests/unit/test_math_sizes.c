/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_sizes.c: sizes of a plan never wrap, whatever model and batch are. */
#include "math/kernels/kernels.h"
#include "math/model.h"
#include "math/plan/rules.h"
#include "math/run/run.h"
#include "sample.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state;

static uint64_t random_bits(unsigned bits) {
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return bits == 0 ? 0 : random_state >> (64 - bits);
}

/* Returns a number of at least 1 with at most `bits_max` bits; small ones are as likely
 * as large ones. */
static size_t random_size(unsigned bits_max) {
    return (size_t)random_bits((unsigned)random_bits(16) % (bits_max + 1)) + 1;
}

/* Checks a plan against the same sizes in long double, which cannot wrap. */
static void check_plan(const attn_model *model, const attn_request *request,
                       const attn_sizes *sizes) {
    struct plan planned;
    const struct plan *plan = memcpy(&planned, sizes->plan, sizeof planned);
    const attn_model_info *info = &model->info;
    long double queries = 0, keys = 0, weights = 0, projected = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        long double matrices = request->need_weights == ATTN_WEIGHTS_ALL ? info->num_heads
                               : request->need_weights == ATTN_WEIGHTS_MEAN ? 1
                                                                            : 0;
        queries += request->query_lens[s];
        keys += request->key_lens[s];
        if (plan_find_kind(plan, s) != SEQUENCE_DIRECT)
            projected += request->key_lens[s];
        weights += matrices * request->query_lens[s] * request->key_lens[s];
    }
    assert_true(sizes->num_queries == queries && sizes->num_keys == keys);
    assert_true(sizes->weights == weights);
    assert_true(plan->batch.projected_keys == projected);
    if (plan->kind == PLAN_RUN)
        assert_true(sizes->outputs == queries * info->width.out);

    const struct plan_layer *layer = &plan->layer;
    const struct plan_scratch *scratch = &plan->scratch;
    size_t k_step = model->engine.kernels->k_step;
    long double floats = queries * layer->score_width +
                         projected * layer->key_width / k_step +
                         projected * layer->value_width / k_step +
                         (long double)plan->batch.direct_rows * scratch->direct_ld +
                         (long double)plan->num_threads * plan->arrays.thread_floats;
    if (plan->batch.num_direct > 0)
        assert_true(scratch->direct_ld >= info->width.key &&
                    scratch->direct_ld >= info->width.value);
    if (plan->kind == PLAN_HEADS)
        floats +=
            2.0L * (info->num_heads + 1) * (info->num_heads + 1) * scratch->num_strips;
    assert_true(sizes->scratch_bytes >= floats * sizeof(float));
}

/* Plans one random batch for a model that has sizes but no weights. */
static bool plan_random_batch(const struct kernels *kernels) {
    const size_t group = random_size(3), heads = group * random_size(18);
    const size_t head_size = random_size(40);
    attn_model model = {
        .info = {.num_heads = heads,
                 .num_kv_heads = heads / group,
                 .width = {.head = head_size,
                           .query = random_size(62),
                           .key = random_size(62),
                           .value = random_size(62),
                           .out = random_size(62)},
                 .rotation.size = random_bits(1) ? 2 : 0, /* tables of its own */
                 .linears[ATTN_OUTPUT].weight = random_bits(1)},
        .engine = {.kernels = kernels,
                   .native = random_bits(1),
                   .score_size = random_bits(1) ? head_size : random_size(40)},
    };
    size_t query_lens[3], key_lens[3];
    attn_parallel parallel = {.num_threads = random_size(20)};
    attn_request request = {.num_sequences = 1 + random_bits(8) % 3,
                            .query_lens = query_lens,
                            .key_lens = key_lens,
                            .need_weights = random_bits(8) % 3,
                            .reduce.token_ids = random_bits(1) ? key_lens : NULL,
                            .parallel = random_bits(1) ? &parallel : NULL};
    for (size_t i = 0; i < 3; i++) {
        query_lens[i] = random_size(random_bits(4) == 0 ? 63 : 30);
        key_lens[i] = random_size(random_bits(4) == 0 ? 63 : 30);
    }

    attn_sizes sizes;
    attn_error error = {ATTN_OK, ""};
    attn_status status = run_plan(&model, &request,
                                  random_bits(1) ? PLAN_RUN : PLAN_HEADS, &sizes, &error);
    if (status != ATTN_OK) {
        assert_int_equal(status, ATTN_E_OVERFLOW);
        assert_string_equal(error.text, "the batch is too large");
        return false;
    }
    check_plan(&model, &request, &sizes);
    return true;
}

static void test_sizes_of_a_plan_never_wrap(void **state) {
    (void)state;
    const struct kernels *kernels;
    for (size_t set = 0; (kernels = kernels_available(set)) != NULL; set++) {
        size_t planned = 0, tries = sample_cases(30000);
        random_state = unit_seed(set + 1);
        for (size_t i = 0; i < tries; i++)
            planned += plan_random_batch(kernels);
        print_message("%s: %zu of %zu batches have sizes\n", kernels->name, planned,
                      tries);
        assert_true(planned > tries / 100 && planned < tries * 99 / 100);
    }
}

/* Returns the bytes of scratch besides the projections, for each thread. */
static size_t bytes_of_a_thread(const struct kernels *kernels, bool native,
                                size_t query_len, size_t key_len, size_t num_threads) {
    enum { WIDTH = 768, HEADS = 12 };
    const attn_model model = {
        .info = {.num_heads = HEADS,
                 .num_kv_heads = HEADS,
                 .width = {.head = WIDTH / HEADS,
                           .query = WIDTH,
                           .key = WIDTH,
                           .value = WIDTH,
                           .out = WIDTH},
                 .linears[ATTN_OUTPUT].weight = true},
        .engine = {.kernels = kernels, .native = native, .score_size = WIDTH / HEADS},
    };
    const attn_parallel parallel = {.num_threads = num_threads};
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &query_len,
                                  .key_lens = &key_len,
                                  .parallel = &parallel};
    attn_sizes sizes;
    assert_int_equal(attn_plan(&model, &request, &sizes, NULL), ATTN_OK);

    size_t projected = (query_len + 2 * key_len) * WIDTH;
    if (engine_converts(&model.engine)) /* a part of the input */
        projected +=
            4 * num_threads * kernels->strip_rows * plan_converted_ld(kernels, WIDTH);
    size_t bytes = projected * sizeof(float);
    return sizes.scratch_bytes > bytes ? (sizes.scratch_bytes - bytes) / num_threads : 0;
}

static void test_a_window_costs_little_of_a_long_sequence(void **state) {
    const size_t len = 8192;
    const attn_model model = {
        .info = {.num_heads = 8,
                 .num_kv_heads = 2,
                 .width = {.head = 64, .query = 8, .key = 8, .value = 8, .out = 8},
                 .linears[ATTN_OUTPUT].weight = true},
        .engine = {.kernels = kernels_available(0), .native = true, .score_size = 64},
    };
    attn_request request = {.num_sequences = 1, .query_lens = &len, .key_lens = &len};
    attn_sizes full, causal, symmetric;
    (void)state;

    assert_int_equal(attn_plan(&model, &request, &full, NULL), ATTN_OK);
    request.window = 512;
    assert_int_equal(attn_plan(&model, &request, &symmetric, NULL), ATTN_OK);
    request.causal = true;
    assert_int_equal(attn_plan(&model, &request, &causal, NULL), ATTN_OK);
    assert_true(causal.flops < 0.1 * full.flops && causal.flops > 0.05 * full.flops);
    assert_true(symmetric.flops < 0.2 * full.flops && symmetric.flops > causal.flops);
}

/* Else one task is long when few heads have far positions. */
static void test_angles_of_given_positions_count_on_each_axis(void **state) {
    enum { ROWS = 1000, PAIRS = 32 };
    static size_t positions[3 * ROWS];
    const size_t len = ROWS, two = 2;
    const attn_model model = {
        .info = {.num_heads = 1,
                 .num_kv_heads = 1,
                 .width = {.head = 64, .query = 8, .key = 8, .value = 8, .out = 8},
                 .rotation = {.size = 2 * PAIRS, .axes = 3},
                 .linears[ATTN_OUTPUT].weight = true},
        .effects = {.indirect = true, .finishes = true},
        .engine = {.kernels = kernels_available(0), .native = true, .score_size = 64},
    };
    attn_request request = {.num_sequences = 1, .query_lens = &len, .key_lens = &two};
    attn_sizes ordered, plain, axes;
    (void)state;

    assert_int_equal(attn_plan(&model, &request, &ordered, NULL), ATTN_OK);
    request.positions = positions;
    assert_int_equal(attn_plan(&model, &request, &plain, NULL), ATTN_OK);
    request.axis_positions = positions;
    assert_int_equal(attn_plan(&model, &request, &axes, NULL), ATTN_OK);
    assert_true(plain.flops - ordered.flops >= 100.0 * PAIRS * ROWS);
    assert_true(axes.flops - ordered.flops >= 300.0 * PAIRS * ROWS);
}

static void test_many_keys_need_little_scratch_besides_projections(void **state) {
    (void)state;
    const struct kernels *kernels;
    const size_t query_lens[] = {1, 4, 16, 40}, threads[] = {1, 2, 8};
    size_t most = 0;
    for (size_t set = 0; (kernels = kernels_available(set)) != NULL; set++) {
        for (size_t i = 0; i < 2 * 4 * 3; i++) {
            for (size_t keys = 1024; keys <= 524288; keys *= 2) {
                size_t bytes = bytes_of_a_thread(
                    kernels, i % 2 == 0, query_lens[i / 2 % 4], keys, threads[i / 8]);
                most = bytes > most ? bytes : most;
            }
        }
    }
    print_message("at most %zu bytes for each thread\n", most);
    assert_in_range(most, 1, 2 << 20);
}

static void test_model_whose_sizes_wrap_is_refused(void **state) {
    (void)state;
    random_state = unit_seed(1);
    for (size_t i = 0; i < 100000; i++) {
        const attn_model_info info = {
            .num_heads = random_size(62),
            .width = {.head = random_size(62),
                      .query = random_size(62),
                      .key = random_size(62),
                      .value = random_size(62),
                      .out = random_size(62),
                      .additive = random_bits(1) ? random_size(62) : 0},
            .score.kind = random_bits(1) ? ATTN_ADDITIVE : ATTN_SCALED_DOT_PRODUCT,
            .linears[ATTN_OUTPUT].weight = random_bits(1),
        };
        attn_model *model = NULL;
        long double hidden = (long double)info.num_heads * info.width.head;
        if (hidden * info.width.query < 0x1p50L) /* the machine might have that much */
            continue;
        attn_status status = attn_model_create(&info, &model);
        assert_true(status == ATTN_E_OVERFLOW || status == ATTN_E_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_a_plan_never_wrap),
        cmocka_unit_test(test_a_window_costs_little_of_a_long_sequence),
        cmocka_unit_test(test_angles_of_given_positions_count_on_each_axis),
        cmocka_unit_test(test_many_keys_need_little_scratch_besides_projections),
        cmocka_unit_test(test_model_whose_sizes_wrap_is_refused),
    };
    return cmocka_run_group_tests_name("math_sizes", tests, NULL, NULL);
}
