/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: prepares a model to serve: packs its weights, and compares the native engine
 * with OpenBLAS, and the attention of both with a plain one. */
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

static attn_status refuse_warm_up(const attn_model *model, attn_status status,
                                  attn_error *ret_error) {
    error_set(ret_error, status, "model '%s': warm-up: %s", model->info.name,
              attn_status_text(status));
    return status;
}

/* Runs the trial with the model's engine. */
static attn_status trial_run(struct trial *trial, const attn_model *model,
                             float **ret_outputs, size_t *ret_count,
                             attn_error *ret_error) {
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
        return refuse_warm_up(model, status, ret_error);
    free(trial->scratch);
    trial->scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    *ret_outputs = malloc(sizes.outputs * sizeof **ret_outputs);
    *ret_count = sizes.outputs;
    if (trial->scratch == NULL || *ret_outputs == NULL)
        return refuse_warm_up(model, ATTN_E_NOMEM, ret_error);
    status = attn_run(model, &request, trial->scratch,
                      &(attn_result){.outputs = *ret_outputs});
    return status == ATTN_OK ? status : refuse_warm_up(model, status, ret_error);
}

/* Returns the largest difference, relative to the largest number of `b`; infinite where
 * only one of a pair is finite. Pairs of which neither is finite do not count. */
static double relative_difference(const float *a, const float *b, size_t count) {
    double largest = 0, difference = 0;

    for (size_t i = 0; i < count; i++) {
        double magnitude = fabs((double)b[i]), apart = fabs((double)a[i] - (double)b[i]);
        if (!isfinite(a[i]) && !isfinite(b[i]))
            continue; /* these weights overflow float32 with any engine */
        if (!isfinite(apart))
            return (double)INFINITY;
        /* No fmax(): gcc 12 for arm64 fails to compile a loop of two of them. */
        if (magnitude > largest)
            largest = magnitude;
        if (apart > difference)
            difference = apart;
    }
    return largest > 0 ? difference / largest : difference;
}

/* Compares the attention, which both engines share, with a plain form of it. */
static attn_status check_attention(const attn_model *model, attn_error *ret_error) {
    const struct engine *engine = &model->engine;
    double limit =
        engine->kernels->k_step == 2 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32;
    double difference = 0;

    attn_status status =
        engine_check_attention(engine, model->info.head_size, &difference);
    if (status != ATTN_OK)
        return refuse_warm_up(model, status, ret_error);
    if (difference > limit)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "model '%s': attention by the instructions of %s is off by %.1e "
                         "on this CPU; choose others, as in --cpu portable",
                         model->info.name, engine->kernels->name, difference);
    return ATTN_OK;
}

/* Packs the weights, and compares the outputs with those of OpenBLAS. */
static attn_status pack_and_compare(attn_model *model, const attn_engine_options *options,
                                    struct trial *trial, bool *ret_agree,
                                    attn_error *ret_error) {
    size_t count;
    attn_status status = model_pack(model, options, ret_error);
    if (status == ATTN_OK)
        status = trial_run(trial, model, &trial->outputs, &count, ret_error);
    if (status != ATTN_OK)
        return status;

    bool bf16 = model->engine.kernels->k_step == 2;
    model->info.difference = relative_difference(trial->outputs, trial->expected, count);
    *ret_agree =
        model->info.difference <= (bf16 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32);
    return ATTN_OK;
}

attn_status model_prepare_to_serve(attn_model *model, const attn_engine_options *options,
                                   bool *ret_agree, attn_error *ret_error) {
    struct engine asked;
    struct trial trial;
    size_t count;

    attn_status status = engine_plan(&model->info, options, &asked, ret_error);
    if (status != ATTN_OK)
        return status;

    if (trial_init(&trial, &model->info))
        status = model_use_openblas(model, asked.kernels->name, ret_error);
    else
        status = refuse_warm_up(model, ATTN_E_NOMEM, ret_error);
    if (status == ATTN_OK)
        status = trial_run(&trial, model, &trial.expected, &count, ret_error);
    *ret_agree = true;
    if (status == ATTN_OK && asked.native)
        status = pack_and_compare(model, options, &trial, ret_agree, ret_error);
    if (status == ATTN_OK && *ret_agree)
        status = check_attention(model, ret_error);
    trial_deinit(&trial);
    return status;
}
