/* SPDX-License-Identifier: Apache-2.0 */
/* infer.c: what a worker does for a request: read it, compute, write the reply.
 *
 * The worker owns the exchange meanwhile. All sizes are known, and reserved from the
 * budget, before memory is allocated for them.
 *
 * A request that is expected to be large waits in two parts: its decoding alone, which
 * may be cheap, and then what follows, whose cost is known by then. It does not wait
 * twice when nothing else waits, nor when its decoding was a large job already. */
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

/* One request on its worker. Allocated in the worker's arena. */
struct inference {
    struct exchange *exchange;
    struct sched_worker *worker;
    struct wire_request request;
    attn_parallel parallel; /* of request.batch */
    struct wire_pace pace;
    attn_sizes sizes;
    size_t reply_bound; /* bytes of text */
    bool streamed;
    struct arena *reply_arena; /* holds what the reply is written from */
    attn_result result;
    attn_result reply; /* the result with the weights that are selected */
    int64_t decode_ns, compute_ns, encode_ns;
};

/* wire_input.reserve */
static bool infer_reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    return exchange_reserve(context, bytes, ret_problem);
}

/* Returns false with *problem set when nobody waits for the reply any more. */
static bool check_deadline(const struct inference *inference,
                           struct wire_problem *problem) {
    const struct sched_job *job = &inference->exchange->job;
    if (!sched_job_is_over(job))
        return true;

    int64_t allowed = job->deadline - inference->exchange->submitted;
    return wire_problem_set(
        problem, WIRE_E_DEADLINE_EXCEEDED, NULL,
        "the result was not computed within %g ms; allow more time, send a smaller "
        "request, or send it when there is less to do",
        job->deadline != 0 ? (double)allowed / 1e6 : 0);
}

/* wire_pace.checkpoint */
static void infer_checkpoint(void *context) {
    const struct inference *inference = context;
    sched_checkpoint(inference->worker);
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
                                     .context = exchange,
                                     .pace = &inference->pace};

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
    inference->request.batch.parallel = worker->inner != NULL
                                            ? &inference->parallel
                                            : NULL; /* cheap ones share nothing */
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

    /* Cannot fail: attn_plan() has accepted this batch. Tasks may have been omitted. */
    attn_run(request->model, &request->batch, scratch, &inference->result);
    if (!check_deadline(inference, problem))
        return false;

    inference->reply = inference->result;
    if (!selects)
        return true;
    if (!alloc_floats(reply_arena, wire_reply_num_weights(request),
                      &inference->reply.weights))
        return wire_problem_set_no_memory(problem);
    wire_selection_copy(request, inference->result.weights, &inference->pace,
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
    void *encoder =
        writer->begin(inference->reply_arena, &inference->request, &inference->reply,
                      &inference->pace, &exchange->head, problem);

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
    int64_t total = clock_now_ns() - inference->exchange->submitted;
    int64_t worked = inference->decode_ns + inference->compute_ns + inference->encode_ns;

    model_stats_add(stats, MODEL_QUEUE, total - worked);
    model_stats_add(stats, MODEL_INPUT, inference->decode_ns);
    model_stats_add(stats, MODEL_INFER, inference->compute_ns);
    model_stats_add(stats, MODEL_OUTPUT, inference->encode_ns);
    model_stats_add(stats, MODEL_SUCCESS, total);
    model_stats_touch(stats);
}

static void count_failure(const struct inference *inference) {
    struct model_stats *stats = find_model_stats(inference);
    if (stats != NULL)
        model_stats_add(stats, MODEL_FAIL,
                        clock_now_ns() - inference->exchange->submitted);
}

/* --- what it will take --- */

static struct estimate_body body_to_estimate(const struct exchange *exchange) {
    const struct exchange_codec *codec = &exchange->codec;
    return (struct estimate_body){.models = codec->models,
                                  .num_models = codec->num_models,
                                  .size = exchange->body_size,
                                  .text = codec->text};
}

/* Returns how many bytes of the reply the job itself writes. */
static size_t first_piece_bytes(const struct inference *inference) {
    return inference->streamed ? STREAM_PIECE_BYTES : inference->reply_bound;
}

static void learn_times(const struct inference *inference) {
    const struct exchange *exchange = inference->exchange;
    const struct estimate_body body = body_to_estimate(exchange);
    const struct estimate_measured measured = {
        .model = inference->request.model,
        .flops = inference->sizes.flops,
        .reply = first_piece_bytes(inference),
        .decode = inference->decode_ns,
        .compute = inference->compute_ns + sched_helped_ns(inference->worker),
        .encode = inference->encode_ns};

    estimate_learn(exchange->thread->estimate, &body, &measured);
}

/* Sets the estimates of a job that was not decoded yet. */
static void estimate_job(struct exchange *exchange) {
    const struct estimate_body body = body_to_estimate(exchange);
    struct sched_job *job = &exchange->job;

    estimate_body(exchange->thread->estimate, &body, &job->cost, &job->later);
    if (job->cost + job->later > SCHED_CHEAP_NS)
        return;
    job->cost += job->later;
    job->later = 0;
}

/* Estimates what follows the decoding. */
static int64_t estimate_rest(const struct inference *inference) {
    const struct exchange *exchange = inference->exchange;
    const struct estimate *estimate = exchange->thread->estimate;
    return estimate_compute(estimate, inference->request.model, inference->sizes.flops) +
           estimate_reply(estimate, exchange->codec.text, first_piece_bytes(inference));
}

/* --- the phases --- */

/* Applies what the request says about its deadline and priority. */
static void apply_limits(const struct inference *inference) {
    struct exchange *exchange = inference->exchange;
    const struct wire_request *request = &inference->request;

    int64_t timeout = request->timeout_ns != 0 ? request->timeout_ns
                                               : exchange->options->default_timeout;
    if (timeout != 0)
        exchange->job.deadline = exchange->submitted + timeout;
    exchange->job.priority = request->priority;
}

static bool decode_and_plan(struct inference *inference, struct wire_problem *problem) {
    if (!check_deadline(inference, problem))
        return false;
    bool decoded = infer_decode(inference, problem);
    inference->decode_ns = sched_used_ns(inference->worker);
    if (!decoded)
        return false;

    apply_limits(inference);
    return check_deadline(inference, problem) && infer_plan(inference, problem);
}

/* Does everything that follows the decoding. Returns false with *problem set. */
static bool compute_and_encode(struct inference *inference,
                               struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    int64_t begun = sched_used_ns(inference->worker);
    size_t kept;

    if (!infer_reserve_all(inference, &kept, problem) ||
        !infer_compute(inference, problem))
        return false;
    int64_t computed = sched_used_ns(inference->worker);
    inference->compute_ns = computed - begun;

    buf_deinit(&exchange->body);
    if (!infer_encode(inference, problem))
        return false;
    inference->encode_ns = sched_used_ns(inference->worker) - computed;

    exchange_keep(exchange, kept);
    return true;
}

/* Ends the job; `problem` is the reply, unless it is NULL. */
static void end_inference(struct inference *inference,
                          const struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;

    if (problem == NULL) {
        count_success(inference);
        learn_times(inference);
        exchange->status = MHD_HTTP_OK;
    } else {
        count_failure(inference);
        stream_deinit(&exchange->stream);
        exchange_set_problem(exchange, problem);
    }
    sched_end_job(inference->worker);
    exchange_resume(exchange);
}

/* sched_job.run of a request that waited decoded. */
static void run_decoded(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, job);
    struct inference *inference = exchange->inference;
    struct wire_problem problem;

    arena_move(&exchange->stream.arena, &worker->arena);
    inference->worker = worker;
    bool done = check_deadline(inference, &problem) &&
                infer_plan(inference, &problem) && /* for another worker */
                compute_and_encode(inference, &problem);
    end_inference(inference, done ? NULL : &problem);
}

/* Lets a decoded request wait for its turn among the large ones, when its decoding was
 * cheap and others wait. Returns whether it does; the caller then no longer owns it. */
static bool wait_decoded(struct inference *inference) {
    struct exchange *exchange = inference->exchange;
    struct sched_worker *worker = inference->worker;
    struct sched_job *job = &exchange->job;
    int64_t rest = estimate_rest(inference);

    if (job->cost > SCHED_CHEAP_NS || rest <= SCHED_CHEAP_NS ||
        (worker->inner != NULL && !sched_any_waits(worker))) {
        if (rest > SCHED_CHEAP_NS)
            sched_go_on(worker, rest);
        return false;
    }

    job->run = run_decoded;
    job->cost = rest;
    job->later = 0;
    exchange->inference = inference;
    arena_move(&worker->arena, &exchange->stream.arena);
    sched_resubmit(worker->pool, job);
    return true;
}

/* sched_job.run */
static void infer_run(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, job);
    struct inference *inference = arena_alloc(&worker->arena, 1, sizeof *inference);
    struct wire_problem problem;

    if (inference == NULL) {
        wire_problem_set_no_memory(&problem);
        exchange_set_problem(exchange, &problem);
        exchange_resume(exchange);
        return;
    }
    *inference = (struct inference){
        .exchange = exchange, .worker = worker, .pace = {infer_checkpoint, inference, 0}};

    if (!decode_and_plan(inference, &problem))
        end_inference(inference, &problem);
    else if (!wait_decoded(inference))
        end_inference(inference,
                      compute_and_encode(inference, &problem) ? NULL : &problem);
}

void infer_submit(struct exchange *exchange, const struct exchange_codec *codec) {
    exchange->codec = *codec;
    exchange->submitted = clock_now_ns();
    exchange->body_size = exchange->body.size;
    estimate_job(exchange);
    exchange_submit(exchange, infer_run);
}
