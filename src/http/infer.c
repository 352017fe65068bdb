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
struct inference {
    struct exchange *exchange;
    struct sched_worker *worker;
    struct wire_request request;
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

/* wire_input.reserve */
static bool reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    return exchange_reserve(context, bytes, ret_problem);
}

static bool decode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct exchange_codec *codec = &exchange->codec;
    const struct buf *body = &exchange->body;
    const struct wire_input input = {.body = body->data != NULL ? body->data : "",
                                     .size = body->size,
                                     .json_size = codec->json_size,
                                     .models = codec->models,
                                     .num_models = codec->num_models,
                                     .arena = &inference->worker->arena,
                                     .reserve = reserve,
                                     .context = exchange};
    if (!codec->read(&input, &inference->request, problem))
        return false;
    if (!inference->request.in_body)
        buf_deinit(&exchange->body);
    return true;
}

static bool refuse_reply(const struct inference *inference, size_t max_reply,
                         struct wire_problem *problem) {
    wire_problem_set(problem, WIRE_E_REPLY_TOO_LARGE, NULL,
                     "the reply may take %zu bytes, over --max-reply %zu; %s",
                     inference->reply_bound, max_reply,
                     inference->exchange->codec.writer->smaller);
    return false;
}

/* Works out all sizes and takes them from the budget. *ret_kept is what the reply alone
 * will hold until it is sent. */
static bool plan(struct inference *inference, size_t *ret_kept,
                 struct wire_problem *problem) {
    const attn_sizes *sizes = &inference->sizes;
    const struct http_options *options = inference->exchange->options;
    attn_error error;
    inference->parallel = (attn_parallel){sched_num_workers(inference->worker->pool),
                                          sched_parallel_run, inference->worker};
    inference->request.batch.parallel = &inference->parallel;
    if (attn_plan(inference->request.model, &inference->request.batch, &inference->sizes,
                  &error) != ATTN_OK) {
        wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                         "%s; send fewer or shorter sequences", error.text);
        return false;
    }
    const struct wire_writer *writer = inference->exchange->codec.writer;
    inference->reply_bound = writer->bound(&inference->request, sizes);
    if (inference->reply_bound > options->max_reply)
        return refuse_reply(inference, options->max_reply, problem);
    inference->streamed = inference->reply_bound > WHOLE_REPLY_MAX;
    inference->arena = inference->streamed ? &inference->exchange->stream.arena
                                           : &inference->worker->arena;

    /* The results, and, when streamed, what the encoder keeps; else the text. */
    size_t weights = wire_selection_num_weights(&inference->request, sizes);
    size_t results = 0, kept = inference->reply_bound + WIRE_PIECE_MIN;
    size_t encoder = writer->memory(&inference->request);
    bool fits = size_add_mul(&results, sizes->outputs, sizeof(float)) &&
                size_add_mul(&results, weights, sizeof(float)) &&
                size_add(results, encoder, &results);
    if (inference->streamed) {
        kept = STREAM_PIECE_BYTES + STREAM_EXTRA_BYTES;
        fits = fits && size_add(kept, results, &kept);
    }
    size_t bytes = sizes->scratch_bytes;
    fits = fits && size_add(bytes, kept, &bytes) &&
           (inference->streamed || size_add(bytes, results, &bytes)) &&
           (!wire_selection_is_partial(&inference->request) ||
            size_add_mul(&bytes, sizes->weights, sizeof(float)));
    *ret_kept = kept;
    return exchange_reserve(inference->exchange, fits ? bytes : SIZE_MAX, problem);
}

/* Allocates `count` floats unless that is 0; false when there is no memory. */
static bool allocate(struct arena *arena, size_t count, float **ret_floats) {
    *ret_floats = count > 0 ? arena_alloc(arena, count, sizeof(float)) : NULL;
    return count == 0 || *ret_floats != NULL;
}

static bool compute(struct inference *inference, struct wire_problem *problem) {
    struct arena *arena = &inference->worker->arena;
    const attn_sizes *sizes = &inference->sizes;
    bool selects = wire_selection_is_partial(&inference->request);
    void *scratch = arena_alloc(arena, sizes->scratch_bytes, 1);
    if (scratch == NULL ||
        !allocate(inference->arena, sizes->outputs, &inference->result.outputs) ||
        !allocate(selects ? arena : inference->arena, sizes->weights,
                  &inference->result.weights)) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    /* attn_plan() has passed it */
    attn_run(inference->request.model, &inference->request.batch, scratch,
             &inference->result);
    inference->reply = inference->result;
    if (!selects)
        return true;
    if (!allocate(inference->arena,
                  wire_selection_num_weights(&inference->request, sizes),
                  &inference->reply.weights)) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    wire_selection_copy(&inference->request, inference->result.weights,
                        inference->reply.weights);
    return true;
}

/* The whole reply at once. */
static bool print(struct inference *inference, void *encoder,
                  struct wire_problem *problem) {
    struct buf *text = &inference->exchange->reply;
    size_t room = inference->reply_bound + WIRE_PIECE_MIN;
    buf_init(text, room);
    if (buf_reserve(text, room) != ATTN_OK) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    text->size = inference->exchange->codec.writer->fill(encoder, text->data, room);
    return true;
}

/* Writes the reply, or its first piece; the stream makes the others. */
static bool encode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct wire_writer *writer = exchange->codec.writer;
    void *encoder = writer->begin(inference->arena, &inference->request,
                                  &inference->reply, &exchange->head, problem);
    if (encoder == NULL)
        return false;
    if (exchange->codec.content_type != NULL)
        exchange->head.content_type = exchange->codec.content_type;
    if (!inference->streamed)
        return print(inference, encoder, problem);
    if (stream_begin(&exchange->stream, writer->fill, encoder))
        return true;
    wire_problem_set_no_memory(problem);
    return false;
}

/* The model's counters; NULL while it is not known. */
static struct model_stats *find_stats(const struct inference *inference) {
    const struct exchange *exchange = inference->exchange;
    const struct http_options *options = exchange->options;
    const attn_model *model = inference->request.model;
    if (model == NULL && exchange->codec.num_models == 1)
        model = exchange->codec.models[0];
    for (size_t i = 0; i < options->num_models; i++) {
        if (options->models[i] == model)
            return &exchange->thread->stats[i];
    }
    return NULL;
}

static void count_success(const struct inference *inference) {
    struct model_stats *stats = find_stats(inference);
    int64_t submitted = inference->exchange->submitted;
    model_stats_add(stats, MODEL_QUEUE, inference->begun - submitted);
    model_stats_add(stats, MODEL_INPUT, inference->decoded - inference->begun);
    model_stats_add(stats, MODEL_INFER, inference->computed - inference->decoded);
    model_stats_add(stats, MODEL_OUTPUT, inference->encoded - inference->computed);
    model_stats_add(stats, MODEL_SUCCESS, inference->encoded - submitted);
    model_stats_touch(stats);
}

static void count_failure(const struct inference *inference) {
    struct model_stats *stats = find_stats(inference);
    if (stats != NULL)
        model_stats_add(stats, MODEL_FAIL,
                        clock_now_ns() - inference->exchange->submitted);
}

/* From body to reply; false with *problem set. */
static bool answer(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    size_t kept;
    inference->begun = clock_now_ns();
    if (!decode(inference, problem))
        return false;
    inference->decoded = clock_now_ns();
    if (!plan(inference, &kept, problem) || !compute(inference, problem))
        return false;
    inference->computed = clock_now_ns();
    buf_deinit(&exchange->body);
    if (!encode(inference, problem))
        return false;
    inference->encoded = clock_now_ns();
    exchange_keep(exchange, kept);
    return true;
}

/* The job. */
static void run(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange =
        (struct exchange *)((char *)job - offsetof(struct exchange, job));
    struct inference inference = {.exchange = exchange, .worker = worker};
    struct wire_problem problem;
    if (answer(&inference, &problem)) {
        count_success(&inference);
        exchange->status = MHD_HTTP_OK;
    } else {
        count_failure(&inference);
        stream_deinit(&exchange->stream);
        exchange_set_problem(exchange, &problem);
    }
    exchange_resume(exchange);
}

void infer_submit(struct exchange *exchange, const struct exchange_codec *codec) {
    exchange->codec = *codec;
    exchange->submitted = clock_now_ns();
    exchange_submit(exchange, run);
}
