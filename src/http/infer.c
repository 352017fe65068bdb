/* SPDX-License-Identifier: Apache-2.0 */
/* infer.c: everything that costs time happens on a worker. */
#include "http/infer.h"

#include "base/clock.h"
#include "base/size.h"
#include "http/exchange.h"
#include "wire/selection.h"

#include <stddef.h>

/* A reply that could be larger is streamed. */
#define WHOLE_REPLY_MAX ((size_t)256 * 1024)
/* Of a streamed reply: the encoder, and what the arena adds, at most a chunk. */
#define STREAM_EXTRA_BYTES ((size_t)260 * 1024)

/* One call on its worker. */
struct job {
    struct exchange *exchange;
    struct sched_worker *worker;
    struct wire_call call;
    attn_parallel parallel; /* of call.request */
    attn_sizes sizes;
    size_t reply_bound; /* bytes of text */
    bool streamed;
    struct arena *arena; /* of what the reply is printed from */
    attn_result result;
    attn_result reply; /* its weights are those selected */
    /* clock_now_ns: when each of its steps ended. */
    int64_t begun, decoded, computed, encoded;
};

/* attn_parallel.run: idle workers take part. */
static void run_shared(void *context, size_t count,
                       void (*task)(void *data, size_t index, size_t thread),
                       void *data) {
    sched_parallel_for(context, count, task, data);
}

/* wire_input.reserve */
static bool reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    return exchange_reserve(context, bytes, ret_problem);
}

static bool decode(struct job *job, struct wire_problem *problem) {
    struct exchange *exchange = job->exchange;
    const struct exchange_codec *codec = &exchange->codec;
    const struct buf *body = &exchange->body;
    const struct wire_input input = {.body = body->data != NULL ? body->data : "",
                                     .size = body->size,
                                     .json_size = codec->json_size,
                                     .models = codec->models,
                                     .num_models = codec->num_models,
                                     .arena = &job->worker->arena,
                                     .reserve = reserve,
                                     .context = exchange};
    if (!codec->read(&input, &job->call, problem))
        return false;
    if (!job->call.in_body)
        buf_deinit(&exchange->body);
    return true;
}

static bool refuse_reply(const struct job *job, size_t max_reply,
                         struct wire_problem *problem) {
    wire_problem_set(problem, MHD_HTTP_CONTENT_TOO_LARGE, "Reply too large", NULL,
                     "the reply may take %zu bytes, over --max-reply %zu; %s",
                     job->reply_bound, max_reply, job->exchange->codec.writer->smaller);
    return false;
}

/* Works out all sizes and takes them from the budget. *ret_kept is what the reply alone
 * will hold until it is sent. */
static bool plan(struct job *job, size_t *ret_kept, struct wire_problem *problem) {
    const attn_sizes *sizes = &job->sizes;
    const struct http_options *options = job->exchange->options;
    attn_error error;
    job->parallel =
        (attn_parallel){sched_num_workers(job->worker->pool), run_shared, job->worker};
    job->call.request.parallel = &job->parallel;
    if (attn_plan(job->call.model, &job->call.request, &job->sizes, &error) != ATTN_OK) {
        wire_problem_set(problem, MHD_HTTP_CONTENT_TOO_LARGE, "Request too large", NULL,
                         "%s; send fewer or shorter sequences", error.text);
        return false;
    }
    const struct wire_writer *writer = job->exchange->codec.writer;
    job->reply_bound = writer->bound(&job->call, sizes);
    if (job->reply_bound > options->max_reply)
        return refuse_reply(job, options->max_reply, problem);
    job->streamed = job->reply_bound > WHOLE_REPLY_MAX;
    job->arena = job->streamed ? &job->exchange->stream.arena : &job->worker->arena;

    /* The results, and, when streamed, what the encoder keeps; else the text. */
    size_t weights = wire_selection_num_weights(&job->call, sizes);
    size_t results = 0, kept = job->reply_bound + WIRE_PIECE_MIN;
    size_t encoder = writer->memory(&job->call);
    bool fits = size_add_mul(&results, sizes->outputs, sizeof(float)) &&
                size_add_mul(&results, weights, sizeof(float)) &&
                size_add(results, encoder, &results);
    if (job->streamed) {
        kept = STREAM_PIECE_BYTES + STREAM_EXTRA_BYTES;
        fits = fits && size_add(kept, results, &kept);
    }
    size_t bytes = sizes->scratch_bytes;
    fits = fits && size_add(bytes, kept, &bytes) &&
           (job->streamed || size_add(bytes, results, &bytes)) &&
           (!wire_selection_is_partial(&job->call) ||
            size_add_mul(&bytes, sizes->weights, sizeof(float)));
    *ret_kept = kept;
    return exchange_reserve(job->exchange, fits ? bytes : SIZE_MAX, problem);
}

/* Allocates `count` floats unless that is 0; false when there is no memory. */
static bool allocate(struct arena *arena, size_t count, float **ret_floats) {
    *ret_floats = count > 0 ? arena_alloc(arena, count, sizeof(float)) : NULL;
    return count == 0 || *ret_floats != NULL;
}

static bool compute(struct job *job, struct wire_problem *problem) {
    struct arena *arena = &job->worker->arena;
    const attn_sizes *sizes = &job->sizes;
    bool selects = wire_selection_is_partial(&job->call);
    void *scratch = arena_alloc(arena, sizes->scratch_bytes, 1);
    if (scratch == NULL || !allocate(job->arena, sizes->outputs, &job->result.outputs) ||
        !allocate(selects ? arena : job->arena, sizes->weights, &job->result.weights)) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    /* attn_plan() has passed it */
    attn_run(job->call.model, &job->call.request, scratch, &job->result);
    job->reply = job->result;
    if (!selects)
        return true;
    if (!allocate(job->arena, wire_selection_num_weights(&job->call, sizes),
                  &job->reply.weights)) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    wire_selection_copy(&job->call, job->result.weights, job->reply.weights);
    return true;
}

/* The whole reply at once. */
static bool print(struct job *job, void *encoder, struct wire_problem *problem) {
    struct buf *text = &job->exchange->reply;
    size_t room = job->reply_bound + WIRE_PIECE_MIN;
    buf_init(text, room);
    if (buf_reserve(text, room) != ATTN_OK) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    text->size = job->exchange->codec.writer->fill(encoder, text->data, room);
    return true;
}

/* Writes the reply, or its first piece; the stream makes the others. */
static bool encode(struct job *job, struct wire_problem *problem) {
    struct exchange *exchange = job->exchange;
    const struct wire_writer *writer = exchange->codec.writer;
    void *encoder =
        writer->begin(job->arena, &job->call, &job->reply, &exchange->head, problem);
    if (encoder == NULL)
        return false;
    if (!job->streamed)
        return print(job, encoder, problem);
    if (stream_begin(&exchange->stream, writer->fill, encoder))
        return true;
    wire_problem_set_no_memory(problem);
    return false;
}

/* The model's counters; NULL while it is not known. */
static struct model_stats *stats_of(const struct job *job) {
    const struct exchange *exchange = job->exchange;
    const struct http_options *options = exchange->options;
    const attn_model *model = job->call.model;
    if (model == NULL && exchange->codec.num_models == 1)
        model = exchange->codec.models[0];
    for (size_t i = 0; i < options->num_models; i++) {
        if (options->models[i] == model)
            return &exchange->thread->stats[i];
    }
    return NULL;
}

static void count_success(const struct job *job) {
    struct model_stats *stats = stats_of(job);
    int64_t submitted = job->exchange->submitted;
    model_stats_add(stats, MODEL_QUEUE, job->begun - submitted);
    model_stats_add(stats, MODEL_INPUT, job->decoded - job->begun);
    model_stats_add(stats, MODEL_INFER, job->computed - job->decoded);
    model_stats_add(stats, MODEL_OUTPUT, job->encoded - job->computed);
    model_stats_add(stats, MODEL_SUCCESS, job->encoded - submitted);
    model_stats_touch(stats);
}

static void count_failure(const struct job *job) {
    struct model_stats *stats = stats_of(job);
    if (stats != NULL)
        model_stats_add(stats, MODEL_FAIL, clock_now_ns() - job->exchange->submitted);
}

/* From body to reply; false with *problem set. */
static bool answer(struct job *job, struct wire_problem *problem) {
    struct exchange *exchange = job->exchange;
    size_t kept;
    job->begun = clock_now_ns();
    if (!decode(job, problem))
        return false;
    job->decoded = clock_now_ns();
    if (!plan(job, &kept, problem) || !compute(job, problem))
        return false;
    job->computed = clock_now_ns();
    buf_deinit(&exchange->body);
    if (!encode(job, problem))
        return false;
    job->encoded = clock_now_ns();
    exchange_keep(exchange, kept);
    return true;
}

/* The job. */
static void run(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange =
        (struct exchange *)((char *)job - offsetof(struct exchange, job));
    struct job call = {.exchange = exchange, .worker = worker};
    struct wire_problem problem;
    if (answer(&call, &problem)) {
        count_success(&call);
        exchange->status = MHD_HTTP_OK;
    } else {
        count_failure(&call);
        stream_deinit(&exchange->stream);
        exchange_set_problem(exchange, &problem);
    }
    exchange_resume(exchange);
}

void call_submit(struct exchange *exchange, const struct exchange_codec *codec) {
    exchange->codec = *codec;
    exchange->submitted = clock_now_ns();
    exchange_submit(exchange, run);
}
