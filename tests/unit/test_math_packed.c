/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_packed.c: keys and values that are kept as the kernels read them give the
 * bits that the same numbers give when they are sent, in every set of kernels. */
#include "base/dtype.h"
#include "base/heap.h"
#include "math/dot_product.h"
#include "math/packed.h"
#include "random_model.h"
#include "sample.h"

#include <attnd/heads.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

static const char *cpu;

#include "random_dot_product.h"
#include "run_layer.h"

/* Rounds numbers to bfloat16. */
static void round_numbers(float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        numbers[i] = dtype_round_bf16(numbers[i]);
}

/* Stores a number as its type has it. */
static void put_number(void *to, size_t at, float number, bool bf16) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (bf16)
        ((uint16_t *)to)[at] = (uint16_t)(bits >> 16);
    else
        ((float *)to)[at] = number;
}

/* Returns room for all heads, which is full of NaN. */
static void *alloc_heads(const struct attn_packed *packed, size_t size) {
    size_t bytes =
        (packed->num_kv_heads * packed_head_ld(packed, size) + KEY_BLOCK) * sizeof(float);
    bytes += HEAP_ALIGNMENT - bytes % HEAP_ALIGNMENT;
    void *room = heap_alloc(bytes);
    assert_non_null(room);
    memset(room, 0xff, bytes);
    return room;
}

/* Packs the keys and values of the first sequence of a request. */
static struct attn_packed pack(const struct example *e, bool bf16) {
    const attn_request *request = &e->r.request;
    const attn_model_info *info = &e->model.info;
    const char *type = bf16 ? "BF16" : "F32";
    struct attn_packed packed = {.num_kv_heads = info->num_kv_heads,
                                 .num_keys = request->key_lens[0],
                                 .head_size = e->options.head_size,
                                 .value_size = info->width.head,
                                 .keys_type = type,
                                 .values_type = type};
    void *keys = alloc_heads(&packed, packed.head_size);
    void *values = alloc_heads(&packed, packed.value_size);

    for (size_t h = 0; h < packed.num_kv_heads; h++) {
        for (size_t k = 0; k < packed.num_keys; k++) {
            size_t step, first = packed_find_key(&packed, k, &step);
            first += h * packed_head_ld(&packed, packed.head_size);
            const float *key = request->keys + k * info->width.key + h * packed.head_size;
            for (size_t d = 0; d < packed.head_size; d++)
                put_number(keys, first + d * step, key[d], bf16);
            first =
                h * packed_head_ld(&packed, packed.value_size) + k * packed.value_size;
            const float *value =
                request->values + k * info->width.value + h * packed.value_size;
            for (size_t d = 0; d < packed.value_size; d++)
                put_number(values, first + d, value[d], bf16);
        }
    }
    packed.keys = keys;
    packed.values = values;
    return packed;
}

static void assert_same(const float *a, const float *b, size_t count) {
    assert_memory_equal(a, b, count * sizeof *a);
}

static void assert_same_results(const attn_result *a, const attn_result *b,
                                const attn_sizes *sizes) {
    assert_same(a->outputs, b->outputs, sizes->outputs);
    assert_same(a->weights, b->weights, sizes->weights);
    assert_same(a->heads, b->heads, sizes->heads);
    assert_same(a->lse, b->lse, sizes->lse);
    assert_same(a->scores, b->scores, sizes->scores);
    assert_same(a->span_weights, b->span_weights, sizes->span_weights);
    assert_same(a->top_weights, b->top_weights, sizes->top);
    assert_memory_equal(a->top_keys, b->top_keys, sizes->top * sizeof *a->top_keys);
    assert_same(a->target_weights, b->target_weights, sizes->target_weights);
    assert_same(a->received, b->received, sizes->received);
    assert_same(a->entropy, b->entropy, sizes->entropy);
    assert_same(a->block_weights, b->block_weights, sizes->block_weights);
}

/* Returns the sums of what heads do; the caller frees them. */
static attn_head_sums *sum_heads(const struct example *e) {
    attn_request request = e->r.request;
    attn_heads heads = {.num_heads = e->model.info.num_heads};
    attn_sizes sizes;

    request.bias = NULL;
    request.keys_are_queries = true;
    assert_int_equal(attn_heads_plan(&e->model, &request, &sizes, NULL), ATTN_OK);
    heads.sums = calloc(heads.num_heads, sizeof *heads.sums);
    float *scratch = heap_alloc(sizes.scratch_bytes);
    assert_non_null(heads.sums);
    assert_true(scratch != NULL || sizes.scratch_bytes == 0);
    attn_heads_add(&e->model, &request, &sizes, scratch, &heads);
    free(scratch);
    return heads.sums;
}

/* Compares the results of random requests, sent and kept, alone and with threads. */
static void compare_random(uint64_t seed, unsigned cases, size_t queries, size_t keys,
                           float factor) {
    size_t num_threads = 3;
    const attn_parallel parallel = {
        .num_threads = num_threads, .run = run_backwards, .context = &num_threads};

    seed = unit_seed(seed);
    for (unsigned i = 0; i < sample_cases(cases); i++) {
        struct example *e = make_example(&seed, cpu, queries, keys);
        attn_request *request = &e->r.request;
        attn_sizes sizes;
        bool bf16 = i % 2 == 1;
        request->num_sequences = 1;
        assert_int_equal(attn_plan(&e->model, request, &sizes, NULL), ATTN_OK);
        for (size_t k = 0; k < sizes.num_keys * e->model.info.width.key; k++)
            e->r.keys[k] *= factor;
        if (bf16) {
            round_numbers(e->r.keys, sizes.num_keys * e->model.info.width.key);
            round_numbers(e->r.values, sizes.num_keys * e->model.info.width.value);
        }
        request->reduce.scores = i % 3 == 0;
        attn_result sent = run(&e->model, request, &sizes);
        attn_head_sums *sums = sum_heads(e);
        struct attn_packed packed = pack(e, bf16);
        request->packed = &packed;
        request->keys = request->values = NULL;
        attn_result kept = run(&e->model, request, &sizes);
        assert_same_results(&kept, &sent, &sizes);
        free_result(&kept);
        attn_head_sums *kept_sums = sum_heads(e);
        assert_memory_equal(kept_sums, sums, e->model.info.num_heads * sizeof *sums);
        free(kept_sums);
        free(sums);
        request->parallel = &parallel;
        kept = run(&e->model, request, &sizes);
        assert_same_results(&kept, &sent, &sizes);
        free_result(&kept);
        free_result(&sent);
        free((void *)(uintptr_t)packed.keys);
        free((void *)(uintptr_t)packed.values);
        destroy_example(e);
    }
}

static void test_small_requests_have_the_same_bits(void **state) {
    (void)state;
    compare_random(20261401, 400, 9, 300, 1);
}

static void test_many_queries_have_the_same_bits(void **state) {
    (void)state;
    compare_random(20261402, 60, 150, 300, 1);
}

static void test_chunks_have_the_same_bits(void **state) {
    (void)state;
    compare_random(20261403, 30, 6, 2 * KERNEL_CHUNK_KEYS + 700, 1);
}

/* Sums of products leave the range of float32 in passing. */
static void test_overflows_have_the_same_bits(void **state) {
    (void)state;
    compare_random(20261404, 60, 9, 300, 1e38F);
}

static void test_what_is_not_one_sequence_is_refused(void **state) {
    uint64_t seed = unit_seed(20261405);
    struct example *e = make_example(&seed, cpu, 9, 30);
    attn_request *request = &e->r.request;
    attn_sizes sizes;
    attn_error error;
    (void)state;

    request->num_sequences = 1;
    struct attn_packed packed = pack(e, false);
    request->packed = &packed;
    packed.num_keys++;
    assert_int_equal(attn_plan(&e->model, request, &sizes, &error), ATTN_E_SHAPE);
    assert_string_equal(error.text, "packed keys are one sequence");
    free((void *)(uintptr_t)packed.keys);
    free((void *)(uintptr_t)packed.values);
    destroy_example(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_requests_have_the_same_bits),
        cmocka_unit_test(test_many_queries_have_the_same_bits),
        cmocka_unit_test(test_chunks_have_the_same_bits),
        cmocka_unit_test(test_overflows_have_the_same_bits),
        cmocka_unit_test(test_what_is_not_one_sequence_is_refused),
    };
    int failures = 0;

    for (size_t i = 0; kernels_available(i) != NULL; i++) {
        cpu = kernels_available(i)->name;
        if (kernels_available(i)->k_step == 1)
            failures += _cmocka_run_group_tests(cpu, tests, sizeof tests / sizeof *tests,
                                                NULL, NULL);
    }
    return failures;
}
