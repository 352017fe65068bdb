/* SPDX-License-Identifier: Apache-2.0 */
/* infer.c: what a worker does for a request: read it, compute, write the reply.
 *
 * The worker owns the exchange meanwhile. All sizes are known, and reserved from the
 * budget, before memory is allocated for them. */
#include "http/infer.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/size.h"
#include "http/exchange.h"
#include "wire/reply.h"
#include "wire/selection.h"

/* A reply that could be larger is streamed. */
#define UNSTREAMED_REPLY_MAX ((size_t)256 * 1024)
/* What a streamed reply needs besides its piece: the encoder, and at most one chunk more
 * in the arena. */
#define STREAM_EXTRA_BYTES ((size_t)260 * 1024)

/* One request on its worker. */
struct inference {
    struct exchange *exchange;
    struct sched_worker *worker;
    struct wire_request request;
    attn_parallel parallel; /* of request.batch */
    attn_sizes sizes;
    size_t reply_bound; /* bytes of text */
    bool streamed;
    struct arena *reply_arena; /* holds what the reply is written from */
    attn_result result;
    attn_result reply; /* the result with the weights that are selected */
    /* clock_now_ns, when it began and when each of its phases ended. */
    int64_t begun, decoded, computed, encoded;
};

/* wire_input.reserve */
static bool infer_reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    return exchange_reserve(context, bytes, ret_problem);
}

static bool infer_decode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct exchange_codec *codec = &exchange->codec;
    const struct buf *body = &exchange->body;
    const struct wire_input input = {.body = body->data != NULL ? body->data : "",
                                     .size = body->size,
                                     .json_size = codec->json_size,
                                     .models = codec->models,
                                     .num_models = codec->num_models,
                                     .arena = &inference->worker->arena,
                                     .reserve = infer_reserve,
                                     .context = exchange};

    if (!codec->read(&input, &inference->request, problem))
        return false;
    if (!inference->request.in_body)
        buf_deinit(&exchange->body);
    return true;
}

/* Plans the layer and bounds the reply; decides whether it is streamed. */
static bool infer_plan(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    struct sched_worker *worker = inference->worker;
    const struct wire_writer *writer = exchange->codec.writer;
    size_t max_reply = exchange->options->max_reply;
    attn_error error;

    inference->parallel =
        (attn_parallel){sched_num_workers(worker->pool), sched_parallel_for, worker};
    inference->request.batch.parallel = &inference->parallel;
    if (attn_plan(inference->request.model, &inference->request.batch, &inference->sizes,
                  &error) != ATTN_OK)
        return wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                "%s; send fewer or shorter sequences", error.text);

    inference->reply_bound = writer->bound(&inference->request, &inference->sizes);
    if (inference->reply_bound > max_reply)
        return wire_problem_set(
            problem, WIRE_E_REPLY_TOO_LARGE, NULL,
            "the reply could have %zu bytes, more than --max-reply %zu; %s",
            inference->reply_bound, max_reply, writer->smaller);
    inference->streamed = inference->reply_bound > UNSTREAMED_REPLY_MAX;
    inference->reply_arena =
        inference->streamed ? &exchange->stream.arena : &worker->arena;
    return true;
}

/* Reserves the memory of everything that follows. *ret_kept is what the reply alone holds
 * until it is sent. */
static bool infer_reserve_all(struct inference *inference, size_t *ret_kept,
                              struct wire_problem *problem) {
    const struct wire_request *request = &inference->request;
    const attn_sizes *sizes = &inference->sizes;

    /* What the reply is written from: the results and the encoder. */
    size_t source = inference->exchange->codec.writer->memory(request);
    size_add_mul_saturating(&source, sizes->outputs, sizeof(float));
    size_add_mul_saturating(&source, wire_reply_num_weights(request), sizeof(float));

    /* A streamed reply keeps its source until the end; any other keeps only its text. */
    size_t kept, bytes = sizes->scratch_bytes;
    if (inference->streamed) {
        kept = STREAM_PIECE_BYTES + STREAM_EXTRA_BYTES;
        size_add_saturating(&kept, source);
    } else {
        kept = inference->reply_bound + WIRE_PIECE_MIN;
        size_add_saturating(&bytes, source);
    }
    size_add_saturating(&bytes, kept);

    /* A selection is copied from all weights, so both are in memory. */
    if (wire_selection_is_partial(request))
        size_add_mul_saturating(&bytes, sizes->weights, sizeof(float));

    *ret_kept = kept;
    return exchange_reserve(inference->exchange, bytes, problem);
}

/* Allocates `count` floats, or NULL for 0; returns false when memory is short. */
static bool alloc_floats(struct arena *arena, size_t count, float **ret_floats) {
    *ret_floats = count > 0 ? arena_alloc(arena, count, sizeof(float)) : NULL;
    return count == 0 || *ret_floats != NULL;
}

static bool infer_compute(struct inference *inference, struct wire_problem *problem) {
    struct arena *arena = &inference->worker->arena,
                 *reply_arena = inference->reply_arena;
    const struct wire_request *request = &inference->request;
    const attn_sizes *sizes = &inference->sizes;
    bool selects = wire_selection_is_partial(request);
    void *scratch = arena_alloc(arena, sizes->scratch_bytes, 1);

    if (scratch == NULL ||
        !alloc_floats(reply_arena, sizes->outputs, &inference->result.outputs) ||
        !alloc_floats(selects ? arena : reply_arena, sizes->weights,
                      &inference->result.weights))
        return wire_problem_set_no_memory(problem);

    /* Cannot fail: attn_plan() has accepted this batch. */
    attn_run(request->model, &request->batch, scratch, &inference->result);

    inference->reply = inference->result;
    if (!selects)
        return true;
    if (!alloc_floats(reply_arena, wire_reply_num_weights(request),
                      &inference->reply.weights))
        return wire_problem_set_no_memory(problem);
    wire_selection_copy(request, inference->result.weights, NULL,
                        inference->reply.weights);
    return true;
}

/* Writes a reply that is not streamed. */
static bool encode_unstreamed(struct inference *inference, void *encoder,
                              struct wire_problem *problem) {
    struct buf *text = &inference->exchange->reply;
    size_t max = inference->reply_bound + WIRE_PIECE_MIN;

    buf_init(text, max);
    if (buf_reserve(text, max) != ATTN_OK)
        return wire_problem_set_no_memory(problem);
    text->size = inference->exchange->codec.writer->fill(encoder, text->data, max);
    return true;
}

/* Writes the reply, or its first piece; the stream writes the others. */
static bool infer_encode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct wire_writer *writer = exchange->codec.writer;
    void *encoder = writer->begin(inference->reply_arena, &inference->request,
                                  &inference->reply, NULL, &exchange->head, problem);

    if (encoder == NULL)
        return false;
    if (exchange->codec.content_type != NULL)
        exchange->head.content_type = exchange->codec.content_type;
    if (!inference->streamed)
        return encode_unstreamed(inference, encoder, problem);
    if (stream_begin(&exchange->stream, writer->fill, encoder))
        return true;
    return wire_problem_set_no_memory(problem);
}

/* Returns the counters of the model, or NULL while the model is not known. */
static struct model_stats *find_model_stats(const struct inference *inference) {
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
    struct model_stats *stats = find_model_stats(inference);
    int64_t submitted = inference->exchange->submitted;

    model_stats_add(stats, MODEL_QUEUE, inference->begun - submitted);
    model_stats_add(stats, MODEL_INPUT, inference->decoded - inference->begun);
    model_stats_add(stats, MODEL_INFER, inference->computed - inference->decoded);
    model_stats_add(stats, MODEL_OUTPUT, inference->encoded - inference->computed);
    model_stats_add(stats, MODEL_SUCCESS, inference->encoded - submitted);
    model_stats_touch(stats);
}

static void count_failure(const struct inference *inference) {
    struct model_stats *stats = find_model_stats(inference);
    if (stats != NULL)
        model_stats_add(stats, MODEL_FAIL,
                        clock_now_ns() - inference->exchange->submitted);
}

/* Does everything from reading the body to writing the reply. Returns false with *problem
 * set. */
static bool infer_reply(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    size_t kept;

    inference->begun = clock_now_ns();
    if (!infer_decode(inference, problem))
        return false;
    inference->decoded = clock_now_ns();

    if (!infer_plan(inference, problem) ||
        !infer_reserve_all(inference, &kept, problem) ||
        !infer_compute(inference, problem))
        return false;
    inference->computed = clock_now_ns();

    buf_deinit(&exchange->body);
    if (!infer_encode(inference, problem))
        return false;
    inference->encoded = clock_now_ns();

    exchange_keep(exchange, kept);
    return true;
}

/* sched_job.run */
static void infer_run(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, job);
    struct inference inference = {.exchange = exchange, .worker = worker};
    struct wire_problem problem;

    if (infer_reply(&inference, &problem)) {
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
    exchange_submit(exchange, infer_run);
}
