/* SPDX-License-Identifier: Apache-2.0 */
/* run_layer.h: runs a layer, with threads or without, and compares results. Include it
 * after cmocka.h. */
#ifndef ATTND_TESTS_RUN_LAYER_H
#define ATTND_TESTS_RUN_LAYER_H

#include "near_reference.h"

#include <attnd/attention.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Runs all tasks on one thread, the last first, as `num_threads` threads in turns. */
static inline void run_backwards(void *context, size_t count,
                                 void (*task)(void *data, size_t index, size_t thread),
                                 void *data) {
    const size_t *num_threads = context;
    for (size_t i = count; i-- > 0;)
        task(data, i, i % *num_threads);
}

/* Returns memory full of NaN. */
static float *nans(size_t count) {
    float *numbers = malloc((count + 1) * sizeof *numbers);
    assert_non_null(numbers);
    memset(numbers, 0xff, count * sizeof *numbers);
    return numbers;
}

/* Returns results of which all numbers are NaN or, of integers, -1. */
static attn_result make_result(const attn_sizes *sizes) {
    attn_result result = {.outputs = nans(sizes->outputs),
                          .weights = nans(sizes->weights),
                          .heads = nans(sizes->heads),
                          .lse = nans(sizes->lse),
                          .scores = nans(sizes->scores),
                          .span_weights = nans(sizes->span_weights),
                          .top_weights = nans(sizes->top),
                          .top_keys = malloc((sizes->top + 1) * sizeof(int64_t)),
                          .target_weights = nans(sizes->target_weights),
                          .received = nans(sizes->received),
                          .entropy = nans(sizes->entropy),
                          .block_weights = nans(sizes->block_weights)};
    assert_non_null(result.top_keys);
    memset(result.top_keys, 0xff, sizes->top * sizeof(int64_t));
    return result;
}

/* Returns the request of one sequence, whose first rows in the batch are given. */
static inline attn_request request_of_sequence(const attn_model_info *info,
                                               const attn_request *batch, size_t sequence,
                                               size_t query, size_t key) {
    attn_request one = *batch;

    one.num_sequences = 1;
    one.query_lens += sequence;
    one.key_lens += sequence;
    one.queries += query * info->width.query;
    one.keys += key * info->width.key;
    one.values += key * info->width.value;
    if (one.valid_lens != NULL)
        one.valid_lens += one.valid_lens_per_query ? query : sequence;
    if (one.prefix_lens != NULL)
        one.prefix_lens += sequence;
    one.positions = one.positions != NULL ? one.positions + query : NULL;
    one.key_positions = one.key_positions != NULL ? one.key_positions + key : NULL;
    if (one.axis_positions != NULL)
        one.axis_positions += ATTN_AXES * query;
    if (one.axis_key_positions != NULL)
        one.axis_key_positions += ATTN_AXES * key;
    return one;
}

/* Fills all memory with NaN, then runs; the caller frees the results. */
static attn_result run(const attn_model *model, const attn_request *request,
                       attn_sizes *ret_sizes) {
    attn_status status = attn_plan(model, request, ret_sizes, NULL);
    assert_int_equal(status, ATTN_OK);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, ret_sizes->scratch_bytes);
    attn_result result = make_result(ret_sizes);
    assert_non_null(scratch);
    memset(scratch, 0xff, ret_sizes->scratch_bytes);
    attn_run(model, request, ret_sizes, scratch, &result);
    free(scratch);
    return result;
}

/* Returns the summed magnitudes of the `size` products that make an output. */
static inline double sum_products(size_t size, const float *weights, const float *heads) {
    double sum = 0;

    for (size_t i = 0; i < size; i++)
        sum += fabs((double)weights[i] * (double)heads[i]);
    return sum;
}

static void free_result(attn_result *result) {
    free(result->outputs);
    free(result->weights);
    free(result->heads);
    free(result->lse);
    free(result->scores);
    free(result->span_weights);
    free(result->top_weights);
    free(result->top_keys);
    free(result->target_weights);
    free(result->received);
    free(result->entropy);
    free(result->block_weights);
}

/* Runs a request, and compares its results with the reference. */
static inline void assert_as_reference(const attn_model *model,
                                       const attn_request *request,
                                       unsigned case_number) {
    attn_sizes sizes;
    attn_result result = run(model, request, &sizes);
    double *weights = malloc((sizes.weights + 1) * sizeof *weights);
    double *outputs = sizes.outputs > 0 ? malloc(sizes.outputs * sizeof(double)) : NULL;
    double *heads = sizes.heads > 0 ? malloc(sizes.heads * sizeof(double)) : NULL;
    double *lse = sizes.lse > 0 ? malloc(sizes.lse * sizeof(double)) : NULL;
    const struct comparison c = compare_to_reference(model, request, case_number);
    run_reference(model, request,
                  &(struct ref_result){outputs, weights, heads, lse, NULL});
    assert_expected(&c, REF_OUTPUTS, result.outputs, outputs, sizes.outputs, 0);
    assert_expected(&c, REF_WEIGHTS, result.weights, weights, sizes.weights, 0);
    assert_expected(&c, REF_HEADS, result.heads, heads, sizes.heads, 0);
    assert_expected(&c, REF_LSE, result.lse, lse, sizes.lse, 1);
    free_result(&result);
    free(outputs);
    free(weights);
    free(heads);
    free(lse);
}

#endif
