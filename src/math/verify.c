/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: compares the native engine with OpenBLAS before a model serves. */
#include "base/error.h"
#include "base/noise.h"
#include "math/model.h"

#include <attnd/attention.h>
#include <math.h>
#include <stdlib.h>

#define TOKENS 37 /* more than one panel of queries, and the last is not full */

/* One small request of noise, which queries, keys and values share. */
struct trial {
    size_t tokens;
    float *input;    /* [tokens, widest input] */
    void *scratch;   /* of the last run */
    float *outputs;  /* [tokens, out_size], of the model's engine */
    float *expected; /* [tokens, out_size], of OpenBLAS */
};

static void trial_deinit(struct trial *trial) {
    free(trial->input);
    free(trial->scratch);
    free(trial->outputs);
    free(trial->expected);
}

static bool trial_init(struct trial *trial, const attn_model_info *info) {
    size_t limit = info->context_length, width = info->query_size;

    width = info->key_size > width ? info->key_size : width;
    width = info->value_size > width ? info->value_size : width;
    *trial = (struct trial){.tokens = limit > 0 && limit < TOKENS ? limit : TOKENS};
    trial->input = calloc(width, trial->tokens * sizeof *trial->input);
    if (trial->input == NULL)
        return false;
    noise_fill(trial->input, width * trial->tokens, 1.0F);
    return true;
}

/* Runs the trial with the model's engine. */
static attn_status trial_run(struct trial *trial, const attn_model *model,
                             float **ret_outputs, size_t *ret_count) {
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &trial->tokens,
                                  .key_lens = &trial->tokens,
                                  .queries = trial->input,
                                  .keys = trial->input,
                                  .values = trial->input,
                                  .causal = model->info.causal};
    attn_sizes sizes;

    attn_status status = attn_plan(model, &request, &sizes, NULL);
    if (status != ATTN_OK)
        return status;
    free(trial->scratch);
    trial->scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    *ret_outputs = malloc(sizes.outputs * sizeof **ret_outputs);
    *ret_count = sizes.outputs;
    if (trial->scratch == NULL || *ret_outputs == NULL)
        return ATTN_E_NOMEM;
    return attn_run(model, &request, trial->scratch, &(attn_result){*ret_outputs, NULL});
}

/* Returns the largest difference, relative to the largest number of `b`; infinite where
 * one of a pair is NaN and the other is finite. Pairs of which neither is finite do not
 * count. */
static double relative_difference(const float *a, const float *b, size_t count) {
    double largest = 0, difference = 0;

    for (size_t i = 0; i < count; i++) {
        double magnitude = fabs((double)b[i]), apart = fabs((double)a[i] - (double)b[i]);
        if (!isfinite(a[i]) && !isfinite(b[i]))
            continue; /* these weights overflow float32 with any engine */
        if (isnan(apart))
            return (double)INFINITY;
        /* No fmax(): gcc 12 for arm64 fails to compile a loop of two of them. */
        if (magnitude > largest)
            largest = magnitude;
        if (apart > difference)
            difference = apart;
    }
    return largest > 0 ? difference / largest : difference;
}

/* Compares the model's outputs with those of an openblas engine of its own, which borrows
 * the weights. Leaves the model with that engine when the two disagree. */
static attn_status check_native(attn_model *model, struct trial *trial,
                                double *ret_difference) {
    const attn_engine_options options = {"openblas", model->info.cpu, "f32"};
    bool bf16 = model->engine.kernels->k_step == 2;
    attn_model twin = *model;
    size_t count;

    attn_status status = model_make_engine(model, &options, &twin.engine, NULL);
    if (status != ATTN_OK)
        return status;
    status = trial_run(trial, &twin, &trial->expected, &count);
    if (status != ATTN_OK) {
        engine_deinit(&twin.engine);
        return status;
    }

    *ret_difference = relative_difference(trial->outputs, trial->expected, count);
    if (*ret_difference <= (bf16 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32))
        engine_deinit(&twin.engine);
    else
        model_use_engine(model, &twin.engine);
    return ATTN_OK;
}

attn_status attn_model_verify(attn_model *model, double *ret_difference,
                              attn_error *ret_error) {
    struct trial trial;
    double difference = 0;
    size_t count;

    attn_status status = trial_init(&trial, &model->info) ? ATTN_OK : ATTN_E_NOMEM;
    if (status == ATTN_OK)
        status = trial_run(&trial, model, &trial.outputs, &count);
    if (status == ATTN_OK && model->engine.native)
        status = check_native(model, &trial, &difference);

    trial_deinit(&trial);
    if (status != ATTN_OK)
        return error_set(ret_error, status, "model '%s': warm-up: %s", model->info.name,
                         attn_status_text(status));
    *ret_difference = difference;
    return ATTN_OK;
}
