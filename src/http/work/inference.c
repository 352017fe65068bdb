/* SPDX-License-Identifier: Apache-2.0 */
/* inference.c: the phases of a request on its worker. */
#include "http/work/inference.h"

#include "base/pace.h"
#include "base/size.h"
#include "sched/loop.h"
#include "wire/reply.h"

/* A reply that could be larger is streamed. */
#define UNSTREAMED_REPLY_MAX ((size_t)256 * 1024)
/* What a streamed reply needs besides its piece: the encoder, and at most one chunk more
 * in the arena. */
#define STREAM_EXTRA_BYTES ((size_t)260 * 1024)

/* wire_input.reserve */
static bool reserve_for_input(void *context, size_t bytes,
                              struct wire_problem *ret_problem) {
    return exchange_reserve(context, bytes, ret_problem);
}

void inference_init(struct inference *inference, struct exchange *exchange,
                    struct sched_worker *worker) {
    *inference = (struct inference){.exchange = exchange, .worker = worker};
}

bool inference_check_deadline(const struct inference *inference,
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

bool inference_decode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct exchange_codec *codec = &exchange->codec;
    const struct buf *body = &exchange->body;
    const struct wire_input input = {.body = body->data != NULL ? body->data : "",
                                     .size = body->size,
                                     .json_size = codec->json_size,
                                     .models = codec->models,
                                     .num_models = codec->num_models,
                                     .arena = &exchange->decoded,
                                     .reserve = reserve_for_input,
                                     .context = exchange};

    bool decoded = codec->read(&input, &inference->request, problem);
    inference->decode_ns = sched_used_ns(inference->worker);
    if (!decoded)
        return false;
    if (!inference->request.in_body)
        buf_deinit(&exchange->body);
    apply_limits(inference);
    return true;
}

void inference_share(struct inference *inference) {
    struct sched_worker *worker = inference->worker;

    inference->parallel =
        (attn_parallel){sched_num_workers(worker->pool), sched_parallel_for, worker};
    inference->request.batch.parallel =
        worker->inner != NULL ? &inference->parallel : NULL;
}

bool inference_bound_reply(struct inference *inference, size_t bytes, const char *smaller,
                           struct wire_problem *problem) {
    size_t max_reply = inference->exchange->options->max_reply;

    inference->reply_bound = bytes;
    if (bytes <= max_reply)
        return true;
    return wire_problem_set(
        problem, WIRE_E_REPLY_TOO_LARGE, NULL,
        "the reply could have %zu bytes, more than --max-reply %zu; %s%sstart attnd with "
        "a larger --max-reply",
        bytes, max_reply, smaller, *smaller != '\0' ? ", or " : "");
}

bool inference_plan(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct wire_writer *writer = exchange->codec.writer;
    attn_error error;

    inference_share(inference);
    if (attn_plan(inference->request.model, &inference->request.batch, &inference->sizes,
                  &error) != ATTN_OK)
        return wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                "%s; send fewer or shorter sequences", error.text);

    if (!inference_bound_reply(inference, writer->bound(&inference->request),
                               writer->smaller, problem))
        return false;
    inference->streamed = inference->reply_bound > UNSTREAMED_REPLY_MAX;
    inference->reply_arena =
        inference->streamed ? &exchange->stream.arena : &inference->worker->arena;
    return true;
}

void inference_add_result_bytes(const attn_sizes *sizes, size_t *bytes) {
    const size_t counts[] = {sizes->outputs, sizes->weights, sizes->heads, sizes->lse};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        size_add_mul_saturating(bytes, counts[i], sizeof(float));
}

/* Allocates `count` floats, or NULL for 0; returns false when memory is short. */
static bool alloc_floats(struct arena *arena, size_t count, float **ret_floats) {
    *ret_floats = count > 0 ? arena_alloc(arena, count, sizeof(float)) : NULL;
    return count == 0 || *ret_floats != NULL;
}

bool inference_alloc_result(struct arena *arena, const attn_sizes *sizes,
                            attn_result *ret_result) {
    return alloc_floats(arena, sizes->outputs, &ret_result->outputs) &&
           alloc_floats(arena, sizes->weights, &ret_result->weights) &&
           alloc_floats(arena, sizes->heads, &ret_result->heads) &&
           alloc_floats(arena, sizes->lse, &ret_result->lse);
}

/* Reserves the memory of everything that follows. */
static bool reserve_all(struct inference *inference, struct wire_problem *problem) {
    const struct wire_request *request = &inference->request;
    const attn_sizes *sizes = &inference->sizes;

    /* What the reply is written from: the results and the encoder. */
    size_t source = inference->exchange->codec.writer->memory(request);
    inference_add_result_bytes(sizes, &source);

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

    inference->kept = kept;
    return exchange_reserve(inference->exchange, bytes, problem);
}

bool inference_reserve_reply(struct inference *inference, struct wire_problem *problem) {
    size_t bytes = inference->exchange->codec.writer->memory(&inference->request);

    inference->kept = inference->reply_bound + WIRE_PIECE_MIN;
    size_add_saturating(&bytes, inference->kept);
    return exchange_reserve(inference->exchange, bytes, problem);
}

/* Runs the layer. */
static bool run_layer(struct inference *inference, struct wire_problem *problem) {
    struct arena *arena = &inference->worker->arena,
                 *reply_arena = inference->reply_arena;
    const struct wire_request *request = &inference->request;
    const attn_sizes *sizes = &inference->sizes;
    void *scratch = arena_alloc(arena, sizes->scratch_bytes, 1);

    if (scratch == NULL ||
        !inference_alloc_result(reply_arena, sizes, &inference->result))
        return wire_problem_set_no_memory(problem);

    /* Cannot fail: attn_plan() has accepted this batch. Tasks may have been omitted. */
    attn_run(request->model, &request->batch, scratch, &inference->result);
    return inference_check_deadline(inference, problem);
}

bool inference_compute(struct inference *inference, struct wire_problem *problem) {
    int64_t begun = sched_used_ns(inference->worker);

    if (!reserve_all(inference, problem) || !run_layer(inference, problem))
        return false;
    inference->compute_ns = sched_used_ns(inference->worker) - begun;
    inference->helped_ns = sched_helped_ns(inference->worker);
    return true;
}

/* Writes the bytes of a reply that is not streamed; false when memory is short. */
static bool write_unstreamed(struct inference *inference, void *encoder) {
    struct buf *text = &inference->exchange->reply;
    size_t max = inference->reply_bound + WIRE_PIECE_MIN;

    buf_init(text, max);
    if (buf_reserve(text, max) != ATTN_OK)
        return false;
    text->size = inference->exchange->codec.writer->fill(encoder, text->data, max);
    pace_add(text->size);
    return true;
}

/* Checks the results, and writes the reply or its first piece. */
static bool write_reply(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct wire_writer *writer = exchange->codec.writer;
    void *encoder = writer->begin(inference->reply_arena, &inference->request,
                                  &inference->result, &exchange->head, problem);

    if (encoder == NULL)
        return false;
    if (exchange->codec.content_type != NULL)
        exchange->head.content_type = exchange->codec.content_type;

    int64_t begun = sched_used_ns(inference->worker);
    if (!(inference->streamed ? stream_begin(&exchange->stream, writer->fill, encoder)
                              : write_unstreamed(inference, encoder)))
        return wire_problem_set_no_memory(problem);
    inference->write_ns = sched_used_ns(inference->worker) - begun;
    return true;
}

bool inference_encode(struct inference *inference, struct wire_problem *problem) {
    int64_t begun = sched_used_ns(inference->worker);

    buf_deinit(&inference->exchange->body);
    if (!write_reply(inference, problem))
        return false;
    inference->encode_ns = sched_used_ns(inference->worker) - begun;
    exchange_keep(inference->exchange, inference->kept);
    return true;
}

const struct inference_phases attention_phases = {inference_plan, inference_compute,
                                                  inference_encode, true};
