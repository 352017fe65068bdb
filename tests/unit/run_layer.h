/* SPDX-License-Identifier: Apache-2.0 */
/* run_layer.h: runs a layer, with threads or without, and compares results. Include it
 * after every_engine.h. */
#ifndef ATTND_TESTS_RUN_LAYER_H
#define ATTND_TESTS_RUN_LAYER_H

#include "math/ref/ref.h"

#include <attnd/attention.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Runs all tasks on one thread, the last first, as `num_threads` threads in turns. */
static void run_backwards(void *context, size_t count,
                          void (*task)(void *data, size_t index, size_t thread),
                          void *data) {
    const size_t *num_threads = context;
    for (size_t i = count; i-- > 0;)
        task(data, i, i % *num_threads);
}

/* Fills all memory with NaN, then runs; the caller frees both results. */
static attn_result run(const attn_model *model, const attn_request *request,
                       attn_sizes *ret_sizes) {
    attn_status status = attn_plan(model, request, ret_sizes, NULL);
    assert_int_equal(status, ATTN_OK);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, ret_sizes->scratch_bytes);
    attn_result result = {.outputs = malloc(ret_sizes->outputs * sizeof(float)),
                          .weights = malloc((ret_sizes->weights + 1) * sizeof(float))};
    assert_true(scratch != NULL && result.outputs != NULL && result.weights != NULL);
    memset(scratch, 0xff, ret_sizes->scratch_bytes);
    memset(result.outputs, 0xff, ret_sizes->outputs * sizeof(float));
    memset(result.weights, 0xff, ret_sizes->weights * sizeof(float));
    assert_int_equal(attn_run(model, request, scratch, &result), ATTN_OK);
    free(scratch);
    return result;
}

static void free_result(attn_result *result) {
    free(result->outputs);
    free(result->weights);
}

static void assert_close(const float *got, const double *expected, size_t count,
                         unsigned case_number) {
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (size_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - expected[i]) <= tolerance * largest))
            fail_msg("case %u: number %zu is %.9g, not %.9g", case_number, i,
                     (double)got[i], expected[i]);
    }
}

/* Runs a request, and compares its results with the reference. */
static void assert_as_reference(const attn_model *model, const attn_request *request,
                                unsigned case_number) {
    attn_sizes sizes;
    attn_result result = run(model, request, &sizes);
    double *outputs = malloc(sizes.outputs * sizeof *outputs);
    double *weights = malloc((sizes.weights + 1) * sizeof *weights);
    assert_int_equal(
        attn_ref_run(model, request,
                     &(struct ref_result){.outputs = outputs, .weights = weights}),
        ATTN_OK);
    assert_close(result.outputs, outputs, sizes.outputs, case_number);
    assert_close(result.weights, weights, sizes.weights, case_number);
    free_result(&result);
    free(outputs);
    free(weights);
}

#endif
