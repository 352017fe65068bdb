/* SPDX-License-Identifier: Apache-2.0 */
/* layer.c: times a layer in process. The peaks of this CPU, reading memory and the
 * engines take turns in every round. */
#include "bench/bench.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/noise.h"
#include "base/size.h"
#include "math/dot_product.h"
#include "math/model.h"
#include "math/packed.h"
#include "math/plan/results.h"
#include "math/run/run.h"
#include "math/steps.h"
#include "models/spec.h"
#include "sched/loop.h"
#include "sched/pool.h"

#include <math.h>
#include <semaphore.h>
#include <string.h>

#define READ_WORDS  262144 /* read at a time: more are slower */
#define ENGINES_MAX 3
#define TOP_K       8 /* keys that BENCH_STORED asks for */

/* Everything for one shape. The job runs on a worker, which shares tasks with the
 * others. */
struct bench {
    struct sched_job job;
    const struct bench_config *config;
    const struct bench_layer *layer;
    struct bench_report *report;
    attn_model *models[ENGINES_MAX]; /* by contender */
    attn_model given;                /* all models of bench_is_given() */
    /* Of BENCH_STORED: keys in float32 and in bfloat16, by contender. */
    struct attn_packed packed[2];
    struct arena memory; /* of all that follows, and of these keys */
    attn_request request;
    attn_parallel parallel;
    attn_sizes sizes[ENGINES_MAX]; /* by contender */
    attn_result result;
    void *scratch;
    size_t *lens;      /* query_lens and key_lens, [B] each */
    size_t *positions; /* [B, Tq]; NULL: 0, 1, 2, ... */
    float *input;
    size_t turn; /* the contender that runs */
    sem_t done;  /* posted at the end of the job */
};

/* The steps of each part, and those whose results it needs. */
static const struct {
    unsigned timed, before;
} steps_of[] = {
    [BENCH_LAYER] = {ATTN_STEPS_ALL, 0},
    [BENCH_ATTENTION] = {ATTN_STEP_ATTEND, ATTN_STEP_PROJECT_IN},
    [BENCH_PROJECTION] = {ATTN_STEP_PROJECT_OUT, ATTN_STEP_PROJECT_IN | ATTN_STEP_ATTEND},
    [BENCH_DOT_PRODUCT] = {ATTN_STEPS_ALL, 0},
    [BENCH_STORED] = {ATTN_STEPS_ALL, 0},
};

/* --- timing --- */

/* Runs steps of the contender whose turn it is. */
static void run_steps(struct bench *b, unsigned steps) {
    if (b->report->part == BENCH_STORED)
        b->request.packed = &b->packed[b->turn];
    attn_run_steps(b->models[b->turn], &b->request, &b->sizes[b->turn], b->scratch,
                   &b->result, steps);
}

static void run_turn(void *context) {
    struct bench *b = context;
    run_steps(b, steps_of[b->report->part].timed);
}

/* Returns the seconds that one run of a contender needs. What the part reads is computed
 * before: each contender has it in another place. */
static double time_contender(struct bench *b, size_t contender) {
    unsigned before = steps_of[b->report->part].before;

    b->turn = contender;
    run_steps(b, before);
    return bench_time(b->report->threads, run_turn, b);
}

/* Reads as much as keys and values are in float32, in the memory where all contenders
 * have them: behind the queries, or where they are given. */
static void run_read_task(void *data, size_t index, size_t thread) {
    const struct bench *b = data;
    const struct bench_report *r = b->report;
    const float *words = b->scratch;
    size_t line = ATTN_ALIGNMENT / sizeof *words;
    size_t share = (r->read_words / bench_num_tasks(r->threads) / line + 1) * line;
    size_t first = index * share, end = first + share;

    (void)thread;
    if (bench_is_given(r->part))
        words = b->input;
    else
        words += r->sequences * r->query_len * r->info->num_heads * r->info->width.head;
    if (end > r->read_words)
        end = r->read_words;
    for (; first < end; first += READ_WORDS)
        b->models[0]->engine.kernels->sum_words(
            words + first, end - first < READ_WORDS ? end - first : READ_WORDS);
}

static void run_reading(void *context) {
    struct bench *b = context;
    b->parallel.run(b->parallel.context, bench_num_tasks(b->report->threads),
                    run_read_task, b);
}

static void run_round(void *context, size_t index) {
    struct bench *b = context;
    struct bench_report *r = b->report;

    for (size_t i = 0; i < r->num_peaks; i++)
        bench_peaks_time(&r->peaks[i], &b->parallel, index);
    if (bench_is_attention(r))
        r->reading[index] = (double)r->read_words * sizeof(float) /
                            bench_time(r->threads, run_reading, b);
    for (size_t c = 0; c < r->num_contenders; c++)
        r->contenders[c].seconds[index] = time_contender(b, c);
}

/* sched_job.run */
static void run_rounds(struct sched_job *job, struct sched_worker *worker) {
    struct bench *b = container_of(job, struct bench, job);
    struct bench_report *r = b->report;

    b->parallel = (attn_parallel){r->threads, sched_parallel_for, worker};
    b->request.parallel = &b->parallel;
    for (size_t c = 0; c < r->num_contenders; c++)
        time_contender(b, c); /* so that no round counts the first use of memory */
    r->num_rounds = bench_rounds(b->config->seconds, run_round, b);
    sem_post(&b->done);
}

/* --- what is timed --- */

/* Adds a contender, and the peaks of its kernels, unless another has them, too. */
static void add_contender(struct bench *b, attn_model *model, const char *engine,
                          const char *precision) {
    struct bench_report *r = b->report;
    size_t i = 0;

    while (i < r->num_peaks && r->peaks[i].kernels != model->engine.kernels)
        i++;
    r->peaks[i].kernels = model->engine.kernels;
    r->num_peaks += i == r->num_peaks;
    b->models[r->num_contenders] = model;
    r->contenders[r->num_contenders++] =
        (struct bench_times){.name = engine,
                             .cpu = model->info.engine.cpu,
                             .precision = precision,
                             .peaks = i};
}

/* Makes the contenders where no model is needed. */
static attn_status make_given(struct bench *b, attn_error *error) {
    const struct bench_shape *shape = b->layer->shape;
    const struct config_compute *compute = &b->config->compute;
    size_t size = shape->width / shape->heads;
    const attn_dot_product options = {
        .num_heads = shape->heads,
        .num_kv_heads = b->config->kv_heads,
        .head_size = size,
        .scale = 1 / sqrt((double)size),
        .cpu = compute_engine_options(compute, NULL, false).cpu};

    attn_status status = dot_product_init(&options, &b->given, error);
    if (status != ATTN_OK)
        return status;
    add_contender(b, &b->given, "native", "f32");
    if (b->report->part == BENCH_STORED)
        add_contender(b, &b->given, "native", "bf16");
    return ATTN_OK;
}

/* Makes the contenders: both engines, or the one that --engine names. Native runs in the
 * precision of the model or --precision, and in float32. */
static attn_status make_contenders(struct bench *b, attn_error *error) {
    const attn_engine_options options = compute_engine_options(
        &b->config->compute, b->layer->spec != NULL ? b->layer->spec->precision : NULL,
        false);
    const char *engine = options.engine, *cpu = options.cpu;
    const char *precision = options.precision;
    const attn_engine_options engines[ENGINES_MAX] = {
        {"native", cpu, precision, false},
        {"native", cpu, "f32", false},
        {"openblas", cpu, "f32", false},
    };
    size_t first = strcmp(precision, "f32") == 0 ? 1 : 0;
    attn_status status = ATTN_OK;
    attn_model *model;

    for (size_t i = first; i < ENGINES_MAX && status == ATTN_OK; i++) {
        if (strcmp(engine, "auto") != 0 && strcmp(engine, engines[i].engine) != 0)
            continue;

        status = bench_layer_create(b->layer, &engines[i], &model, error);
        if (status == ATTN_OK)
            add_contender(b, model, engines[i].engine, engines[i].precision);
    }
    return status;
}

/* Describes the layer in the report. Errors: ATTN_E_VALUE when it lacks the part that is
 * timed. */
static attn_status describe_timed_layer(struct bench *b, attn_error *error) {
    const attn_model_info *info = attn_model_get_info(b->models[0]);
    struct bench_report *r = b->report;

    r->info = info;
    r->causal = r->causal || info->mask.causal;
    if (r->part == BENCH_PROJECTION && !info->linears[ATTN_OUTPUT].weight)
        return error_set(error, ATTN_E_VALUE,
                         "%s has no output projection; choose another --part", r->model);
    return ATTN_OK;
}

/* Puts the queries of a causal model at the end of the keys, where a program that writes
 * text has them. */
static bool make_positions(struct bench *b) {
    struct bench_report *r = b->report;

    if ((b->layer->spec == NULL && !bench_is_given(r->part)) || !r->causal ||
        r->key_len <= r->query_len)
        return true;
    b->positions =
        arena_alloc(&b->memory, r->sequences * r->query_len, sizeof *b->positions);
    for (size_t i = 0; b->positions != NULL && i < r->sequences * r->query_len; i++)
        b->positions[i] = r->key_len - r->query_len + i % r->query_len;
    return b->positions != NULL;
}

/* Makes the lengths and the input, which serves as queries, keys and values. Values that
 * are given follow the keys. */
static attn_status make_input(struct bench *b) {
    struct bench_report *r = b->report;
    const attn_model_info *info = r->info;
    size_t rows = r->sequences * size_max(r->query_len, r->key_len);
    size_t width =
        size_max(info->width.query, size_max(info->width.key, info->width.value));

    b->lens = arena_alloc(&b->memory, r->sequences, 2 * sizeof *b->lens);
    if (bench_is_given(r->part))
        rows *= 2;
    b->input = arena_alloc(&b->memory, rows, width * sizeof *b->input);
    if (b->lens == NULL || b->input == NULL || !make_positions(b))
        return ATTN_E_NOMEM;

    noise_fill(b->input, rows * width, 1.0F);
    for (size_t s = 0; s < r->sequences; s++) {
        b->lens[s] = r->query_len;
        b->lens[r->sequences + s] = r->key_len;
    }
    return ATTN_OK;
}

/* Plans the request for every contender. Scratch must be enough for each of them. */
static attn_status plan_contenders(struct bench *b, size_t *ret_scratch_bytes,
                                   attn_error *error) {
    struct bench_report *r = b->report;
    enum plan_kind kind = r->part == BENCH_LAYER ? PLAN_RUN : PLAN_PROJECTED;
    struct plan plan;

    *ret_scratch_bytes = 0;
    for (size_t c = 0; c < r->num_contenders; c++) {
        b->request.packed = r->part == BENCH_STORED ? &b->packed[c] : NULL;
        attn_status status =
            run_plan(b->models[c], &b->request, kind, &b->sizes[c], error);
        if (status != ATTN_OK)
            return status;
        memcpy(&plan, b->sizes[c].plan, sizeof plan);
        r->contenders[c].by_head = plan.layer.by_head;
        *ret_scratch_bytes = size_max(*ret_scratch_bytes, b->sizes[c].scratch_bytes);
    }
    return ATTN_OK;
}

/* Makes the request, and allocates all memory that the contenders need. */
static attn_status make_request(struct bench *b, attn_error *error) {
    struct bench_report *r = b->report;
    attn_status status = make_input(b);
    if (status != ATTN_OK)
        return status;

    bool given = bench_is_given(r->part), stored = r->part == BENCH_STORED;
    b->parallel.num_threads = r->threads;
    b->request = (attn_request){
        .num_sequences = r->sequences,
        .query_lens = b->lens,
        .key_lens = b->lens + r->sequences,
        .queries = b->input,
        .keys = b->input,
        .values = b->input + (given ? r->sequences * r->key_len * r->info->width.key : 0),
        .omit_outputs = given,
        .need_heads = given && !stored,
        .reduce.top_k = stored ? TOP_K : 0,
        .positions = b->positions,
        .causal = r->causal,
        .window = r->info->mask.window,
        .chunk = r->info->mask.chunk,
        .need_weights = r->weights ? ATTN_WEIGHTS_ALL : ATTN_WEIGHTS_NONE,
        .parallel = &b->parallel,
    };

    if (stored && r->sequences != 1)
        return error_set(error, ATTN_E_VALUE, "kept keys are one sequence; use B 1");
    if (stored)
        status =
            bench_stored_make(&b->given, r->key_len, b->input, &b->memory, b->packed);

    size_t scratch_bytes;
    if (status == ATTN_OK)
        status = plan_contenders(b, &scratch_bytes, error);
    if (status != ATTN_OK)
        return status;

    b->scratch = arena_alloc(&b->memory, scratch_bytes, 1);
    return b->scratch != NULL && results_alloc(&b->memory, &b->sizes[0], &b->result)
               ? ATTN_OK
               : ATTN_E_NOMEM;
}

/* Runs the rounds on a pool of their own. */
static attn_status run_bench(struct bench *b, attn_error *error) {
    const struct sched_options options = {.num_workers = b->report->threads,
                                          .queue_slots = 1};
    struct sched_client client = {0};
    struct sched_pool *pool;

    attn_status status = bench_is_given(b->report->part) ? make_given(b, error)
                                                         : make_contenders(b, error);
    if (status == ATTN_OK)
        status = describe_timed_layer(b, error);
    if (status == ATTN_OK)
        status = make_request(b, error);
    if (status == ATTN_OK)
        status = sched_pool_create(&options, &pool);
    if (status != ATTN_OK)
        return status;

    bench_layer_count(b->models[0], &b->request, b->report);
    b->job.run = run_rounds;
    b->job.client = &client;
    if (sched_reserve(pool, &b->job)) { /* the queue is empty */
        sched_submit(pool, &b->job);
        /* Wait before the pool stops: workers of a stopping pool do not share tasks. */
        while (sem_wait(&b->done) != 0)
            ;
    }
    sched_pool_destroy(pool);
    return ATTN_OK;
}

int bench_layer_run(const struct bench_config *config, const struct bench_layer *layer) {
    static struct bench_report report; /* too large for a stack */
    const struct bench_shape *shape = layer->shape;
    attn_error error = {.text = ""};
    struct bench b = {.config = config, .layer = layer, .report = &report};

    sem_init(&b.done, 0, 0);
    report = (struct bench_report){
        .model = layer->name,
        .sequences = shape->sequences,
        .query_len = shape->query_len,
        .key_len = shape->key_len,
        .part = (enum bench_part)config->part,
        .causal = config->causal,
        .weights = config->weights,
        .threads =
            config->compute.workers > 0 ? config->compute.workers : machine_cpus(""),
    };
    attn_status status = run_bench(&b, &error);
    int exit_code =
        status == ATTN_OK
            ? bench_print(&report, config->json)
            : bench_report_error(
                  error.text[0] != '\0' ? error.text : attn_status_text(status), 1);
    for (size_t i = 0; i < ENGINES_MAX && b.models[i] != &b.given; i++)
        attn_model_destroy(b.models[i]);
    arena_deinit(&b.memory);
    return exit_code;
}
