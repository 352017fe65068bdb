/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: prepares a model to serve: packs its weights, and compares the native engine
 * with that of blas.h, and the attention of both with a plain one. That is done once in a
 * process for all models of the same sizes. The request of noise that this needs also
 * warms threads up and is timed. */
#include "base/clock.h"
#include "base/error.h"
#include "base/noise.h"
#include "math/model.h"

#include <attnd/attention.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* More than one panel of queries, and the last is not full. */
#define ROWS_TO_COMPARE 37
#define ROWS_TO_TIME    8
#define RUNS_TO_TIME    3

#define CHECKED_MAX 64 /* sizes of attention that are remembered */

/* The attention of a model depends on these, and on its options. */
struct attention_sizes {
    const struct kernels *kernels;
    size_t score, head;
    bool additive;
};

/* One small request of noise, which queries, keys and values share. */
struct trial {
    size_t rows;
    float *input;    /* [rows, widest input] */
    void *scratch;   /* of the last run */
    float *outputs;  /* [rows, out_size], of the model's engine */
    float *expected; /* [rows, out_size], of the engine of blas.h */
    float *heads;    /* [rows, H*D], of the same, with need_heads */
    bool need_heads;
    double largest_sum; /* see find_largest_sum(); or 0 */
    attn_sizes sizes;
    double fastest_ns; /* of the runs; 0: there were none */
};

static void trial_deinit(struct trial *trial) {
    free(trial->input);
    free(trial->scratch);
    free(trial->outputs);
    free(trial->expected);
    free(trial->heads);
}

static bool trial_init(struct trial *trial, const attn_model_info *info, size_t rows) {
    size_t limit = info->context_length, width = info->width.query;

    width = info->width.key > width ? info->width.key : width;
    width = info->width.value > width ? info->width.value : width;
    *trial = (struct trial){.rows = limit > 0 && limit < rows ? limit : rows};
    trial->input = calloc(width, trial->rows * sizeof *trial->input);
    if (trial->input == NULL)
        return false;
    noise_fill(trial->input, width * trial->rows, 1.0F);
    return true;
}

static attn_status refuse_warm_up(const attn_model *model, attn_status status,
                                  attn_error *ret_error) {
    error_set(ret_error, status, "model '%s': warm-up: %s", model->info.name,
              attn_status_text(status));
    return status;
}

/* Runs the trial `runs` times with the model's engine. */
static attn_status trial_run(struct trial *trial, const attn_model *model, int runs,
                             float **ret_outputs, attn_error *ret_error) {
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = &trial->rows,
                                  .key_lens = &trial->rows,
                                  .queries = trial->input,
                                  .keys = trial->input,
                                  .values = trial->input,
                                  .need_heads = trial->need_heads,
                                  .causal = model->info.mask.causal};

    attn_status status = attn_plan(model, &request, &trial->sizes, NULL);
    if (status != ATTN_OK)
        return refuse_warm_up(model, status, ret_error);
    free(trial->scratch);
    trial->scratch = aligned_alloc(ATTN_ALIGNMENT, trial->sizes.scratch_bytes);
    *ret_outputs = malloc(trial->sizes.outputs * sizeof **ret_outputs);
    if (trial->need_heads)
        trial->heads = malloc(trial->sizes.heads * sizeof *trial->heads);
    if (trial->scratch == NULL || *ret_outputs == NULL ||
        (trial->need_heads && trial->heads == NULL))
        return refuse_warm_up(model, ATTN_E_NOMEM, ret_error);
    for (int i = 0; i < runs; i++) {
        int64_t begun = clock_now_ns();
        attn_run(model, &request, &trial->sizes, trial->scratch,
                 &(attn_result){.outputs = *ret_outputs,
                                .heads = trial->need_heads ? trial->heads : NULL});
        double took = (double)(clock_now_ns() - begun);
        trial->fastest_ns = i == 0 || took < trial->fastest_ns ? took : trial->fastest_ns;
    }
    return status;
}

attn_status model_try(const attn_model *model, double *ret_flops, double *ret_ns) {
    struct trial trial;
    attn_status status = ATTN_E_NOMEM;

    if (trial_init(&trial, &model->info, ROWS_TO_TIME))
        status = trial_run(&trial, model, RUNS_TO_TIME, &trial.outputs, NULL);
    *ret_flops = trial.sizes.flops;
    *ret_ns = trial.fastest_ns;
    trial_deinit(&trial);
    return status;
}

/* Returns the largest sum of magnitudes that an output of the first row is the sum of.
 * Rounding to bfloat16 is relative to it, however many columns cancel. */
static double find_largest_sum(const attn_model *model, const float *heads) {
    const struct linear *linear = &model->engine.linears[ATTN_OUTPUT];
    double largest = 0;

    for (size_t o = 0; o < linear->out; o++) {
        const float *weight = linear->weight + o * linear->in;
        double sum = linear->bias != NULL ? fabs((double)linear->bias[o]) : 0;
        for (size_t i = 0; i < linear->in; i++)
            sum += fabs((double)weight[i] * (double)heads[i]);
        if (isfinite(sum) && sum > largest)
            largest = sum;
    }
    return largest;
}

/* Returns the largest difference, relative to `largest` or a larger number of `b`;
 * infinite where only one of a pair is finite. Pairs of which neither is finite do not
 * count. */
static double relative_difference(const float *a, const float *b, size_t count,
                                  double largest) {
    double difference = 0;

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

/* Returns whether attention of these sizes was found right before; adds it when
 * `right`. Where the list is full, the next ones are compared each time. */
static bool was_right(const struct attention_sizes *sizes, bool right) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct attention_sizes known[CHECKED_MAX];
    static size_t count;
    bool found = false;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && !found; i++)
        found = known[i].kernels == sizes->kernels && known[i].score == sizes->score &&
                known[i].head == sizes->head && known[i].additive == sizes->additive;
    if (right && !found && count < CHECKED_MAX)
        known[count++] = *sizes;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Compares the attention, which both engines share, with a plain form of it: once for its
 * sizes, since it depends on nothing else of a model. */
static attn_status check_attention(const attn_model *model, attn_error *ret_error) {
    const struct engine *engine = &model->engine;
    const struct attention_sizes sizes = {engine->kernels, engine->score_size,
                                          model->info.width.head,
                                          engine->additive_score != NULL};
    double limit =
        engine->kernels->k_step == 2 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32;
    double difference = 0;

    if (was_right(&sizes, false))
        return ATTN_OK;
    attn_status status = engine_check_attention(engine, sizes.head, &difference);
    if (status != ATTN_OK)
        return refuse_warm_up(model, status, ret_error);
    if (difference > limit)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "model '%s': attention by the instructions of %s is off by %.1e "
                         "on this CPU; choose others, as in --cpu portable",
                         model->info.name, engine->kernels->name, difference);
    was_right(&sizes, true);
    return ATTN_OK;
}

/* Packs the weights, and compares the outputs with those of blas.h. */
static attn_status pack_and_compare(attn_model *model, const attn_engine_options *options,
                                    struct trial *trial, bool *ret_agree,
                                    attn_error *ret_error) {
    attn_status status = model_pack(model, options, ret_error);
    if (status != ATTN_OK)
        return status;
    status = trial_run(trial, model, 1, &trial->outputs, ret_error);
    if (status != ATTN_OK)
        return status;

    bool bf16 = model->engine.kernels->k_step == 2;
    model->info.engine.difference = relative_difference(
        trial->outputs, trial->expected, trial->sizes.outputs, trial->largest_sum);
    *ret_agree = model->info.engine.difference <=
                 (bf16 ? ATTN_TOLERANCE_BF16 : ATTN_TOLERANCE_F32);
    return ATTN_OK;
}

attn_status model_prepare_to_serve(attn_model *model, const attn_engine_options *options,
                                   bool *ret_agree, attn_error *ret_error) {
    struct engine asked;
    struct trial trial;

    attn_status status = engine_plan(&model->info, options, &asked, ret_error);
    if (status != ATTN_OK)
        return status;

    if (trial_init(&trial, &model->info, ROWS_TO_COMPARE))
        status = model_use_blas(model, asked.kernels->name, ret_error);
    else
        status = refuse_warm_up(model, ATTN_E_NOMEM, ret_error);
    if (status == ATTN_OK) {
        trial.need_heads = asked.kernels->k_step == 2;
        status = trial_run(&trial, model, 1, &trial.expected, ret_error);
        if (status == ATTN_OK && trial.need_heads)
            trial.largest_sum = find_largest_sum(model, trial.heads);
        trial.need_heads = false;
    }
    *ret_agree = true;
    if (status == ATTN_OK && asked.native)
        status = pack_and_compare(model, options, &trial, ret_agree, ret_error);
    if (status == ATTN_OK && *ret_agree)
        status = check_attention(model, ret_error);
    trial_deinit(&trial);
    return status;
}
