/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: the native engine held against OpenBLAS before it serves. */
#include "base/error.h"
#include "base/noise.h"
#include "math/model.h"

#include <attnd/attention.h>
#include <math.h>
#include <stdlib.h>

#define TOKENS 37 /* more than one panel of queries, and a rest */

/* Memory of one small request. */
struct trial {
    float *input, *outputs[2];
    void *scratch;
};

static void trial_deinit(struct trial *trial) {
    free(trial->input);
    free(trial->outputs[0]);
    free(trial->outputs[1]);
    free(trial->scratch);
}

/* The largest difference, relative to the largest of `b`; infinite when one is not a
 * number. */
static double difference(const float *a, const float *b, size_t count) {
    double largest = 0, apart = 0;
    for (size_t i = 0; i < count; i++) {
        double magnitude = fabs((double)b[i]), off = fabs((double)a[i] - (double)b[i]);
        if (!isfinite(a[i]) && !isfinite(b[i]))
            continue; /* float32 is too small for these weights, whoever computes */
        if (isnan(off))
            return (double)INFINITY;
        /* No fmax(): gcc 12 for arm64 fails to compile a loop of two of them. */
        if (magnitude > largest)
            largest = magnitude;
        if (off > apart)
            apart = off;
    }
    return largest > 0 ? apart / largest : apart;
}

/* Runs the request with the present engine. */
static attn_status run(const attn_model *model, const attn_request *request,
                       struct trial *trial, float **ret_outputs, size_t *ret_count) {
    attn_sizes sizes;
    attn_status status = attn_plan(model, request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;
    free(trial->scratch);
    trial->scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    *ret_outputs = malloc(sizes.outputs * sizeof(float));
    *ret_count = sizes.outputs;
    if (trial->scratch == NULL || *ret_outputs == NULL)
        return ATTN_E_NOMEM;
    return attn_run(model, request, trial->scratch, &(attn_result){*ret_outputs, NULL});
}

attn_status attn_model_verify(attn_model *model, double *ret_difference,
                              attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    size_t limit = info->context_length, count = 0;
    size_t tokens = limit > 0 && limit < TOKENS ? limit : TOKENS,
           width = info->query_size;
    double apart = 0;
    struct trial trial = {.input = NULL};
    width = info->key_size > width ? info->key_size : width;
    width = info->value_size > width ? info->value_size : width;
    trial.input = calloc(width, tokens * sizeof(float));
    attn_status status = trial.input != NULL ? ATTN_OK : ATTN_E_NOMEM;
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &tokens,
                                  .key_lens = &tokens,
                                  .queries = trial.input,
                                  .keys = trial.input,
                                  .values = trial.input,
                                  .causal = info->causal};
    if (status == ATTN_OK) {
        noise_fill(trial.input, width * tokens, 1.0F);
        status = run(model, &request, &trial, &trial.outputs[0], &count);
    }
    if (status == ATTN_OK && model->engine.native) {
        const attn_engine_options asked = {"native", info->cpu, info->precision};
        const attn_engine_options openblas = {"openblas", info->cpu, "f32"};
        bool bf16 = model->engine.kernels->numbers == 2;
        status = engine_make(model, &openblas, NULL);
        if (status == ATTN_OK)
            status = run(model, &request, &trial, &trial.outputs[1], &count);
        if (status == ATTN_OK) {
            apart = difference(trial.outputs[0], trial.outputs[1], count);
            if (apart <= (bf16 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32))
                status = engine_make(model, &asked, NULL);
        }
    }
    trial_deinit(&trial);
    if (status != ATTN_OK)
        return error_set(ret_error, status, "model '%s': warm-up: %s", info->name,
                         attn_status_text(status));
    *ret_difference = apart;
    return ATTN_OK;
}
