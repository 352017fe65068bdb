/* SPDX-License-Identifier: Apache-2.0 */
/* inference.c: the phases of a request on its worker, and what they are for attention. */
#include "http/work/inference.h"

#include "base/pace.h"
#include "base/size.h"
#include "captures/store.h"
#include "math/plan/results.h"
#include "sched/loop.h"

/* A reply that could be larger is streamed. */
#define UNSTREAMED_REPLY_MAX ((size_t)256 * 1024)
/* A streamed reply needs its piece, the encoder, and at most one chunk more in the
 * arena. */
#define STREAM_EXTRA_BYTES ((size_t)264 * 1024)

bool inference_check_deadline(const struct inference *inference,
                              struct wire_problem *problem) {
    const struct sched_job *job = &inference->exchange->work.job;
    if (!sched_job_is_over(job))
        return true;

    int64_t allowed = job->deadline - inference->exchange->work.submitted;
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

    int64_t default_ns = (int64_t)exchange->options->config->default_timeout * 1000000;
    int64_t timeout = request->timeout_ns != 0 ? request->timeout_ns : default_ns;
    if (timeout != 0)
        exchange->work.job.deadline = exchange->work.submitted + timeout;
    exchange->work.job.priority = (uint32_t)request->priority;
}

bool inference_decode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct exchange_codec *codec = &exchange->work.codec;
    const struct buf *body = &exchange->body.text;
    const struct wire_input input = {.body = body->data != NULL ? body->data : "",
                                     .size = body->size,
                                     .json_size = codec->json_size,
                                     .models = codec->body.models,
                                     .num_models = codec->body.num_models,
                                     .targets_alone = codec->kind->analyses,
                                     .capture =
                                         capture_get_layers(exchange->work.capture),
                                     .arena = &exchange->work.decoded,
                                     .reserve = memory_reserve,
                                     .context = &exchange->memory};

    bool decoded = codec->read(&input, &inference->request, problem);
    inference->decode_ns = sched_used_ns(inference->worker);
    if (!decoded)
        return false;
    if (!inference->request.in_body)
        buf_deinit(&exchange->body.text);
    apply_limits(inference);
    return true;
}

bool inference_bound_reply(struct inference *inference, size_t bytes, const char *smaller,
                           struct wire_problem *problem) {
    size_t max_reply = inference->exchange->options->config->max_reply;

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
    const struct inference_kind *kind = inference->exchange->work.codec.kind;
    struct wire_request *request = &inference->request;
    struct sched_worker *worker = inference->worker;
    attn_error error;

    /* Other workers share the loops of the request, unless it is cheap. */
    inference->parallel =
        (attn_parallel){sched_num_workers(worker->pool), sched_parallel_for, worker};
    request->batch.parallel = worker->inner != NULL ? &inference->parallel : NULL;
    if (kind->plan(request->model, &request->batch, &inference->sizes, &error) != ATTN_OK)
        return wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                "%s; send fewer or shorter sequences", error.text);
    return kind->bound(inference, problem);
}

bool inference_compute(struct inference *inference, struct wire_problem *problem) {
    const struct inference_kind *kind = inference->exchange->work.codec.kind;
    struct sched_worker *worker = inference->worker;
    int64_t begun = sched_used_ns(worker);
    size_t bytes = kind->memory(inference);

    size_add_saturating(&bytes, inference->sizes.scratch_bytes);
    if (!memory_reserve(&inference->exchange->memory, bytes, problem))
        return false;
    void *scratch = arena_alloc(&worker->arena, inference->sizes.scratch_bytes, 1);
    if (scratch == NULL || !kind->compute(inference, scratch))
        return wire_problem_set_no_memory(problem);

    inference->compute_ns = sched_used_ns(worker) - begun;
    inference->helped_ns = atomic_load(&worker->helped_ns);
    return inference_check_deadline(inference, problem);
}

bool inference_encode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    int64_t begun = sched_used_ns(inference->worker);

    buf_deinit(&exchange->body.text);
    if (!exchange->work.codec.kind->write(inference, problem))
        return false;
    exchange->reply.note = inference->request.note;
    inference->encode_ns = sched_used_ns(inference->worker) - begun;
    memory_keep(&exchange->memory, inference->kept);
    return true;
}

/* --- attention --- */

/* A reply that could be large is streamed. */
static bool bound_reply(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct wire_writer *writer = exchange->work.codec.writer;

    if (!inference_bound_reply(inference, writer->bound(&inference->request),
                               writer->smaller, problem))
        return false;
    inference->streamed = inference->reply_bound > UNSTREAMED_REPLY_MAX;
    inference->reply_arena =
        inference->streamed ? &exchange->reply.stream.arena : &inference->worker->arena;
    return true;
}

/* Returns the bytes of the text and of what it is written from: the encoder, and so many
 * bytes of results. A streamed reply keeps all of them until its end, another one only
 * its text. */
static size_t find_reply_bytes(struct inference *inference, size_t result_bytes) {
    size_t text = inference->streamed ? STREAM_PIECE_BYTES + STREAM_EXTRA_BYTES
                                      : inference->reply_bound + WIRE_PIECE_MIN;
    size_t bytes = inference->exchange->work.codec.writer->memory(&inference->request);

    size_add_saturating(&bytes, result_bytes);
    size_add_saturating(&bytes, text);
    inference->kept = inference->streamed ? bytes : text;
    return bytes;
}

static size_t find_memory(struct inference *inference) {
    size_t result_bytes = 0;
    results_add_bytes(&inference->sizes, &result_bytes);
    return find_reply_bytes(inference, result_bytes);
}

bool inference_reserve_reply(struct inference *inference, struct wire_problem *problem) {
    return memory_reserve(&inference->exchange->memory, find_reply_bytes(inference, 0),
                          problem);
}

static bool run_layer(struct inference *inference, void *scratch) {
    const struct wire_request *request = &inference->request;

    if (!results_alloc(inference->reply_arena, &inference->sizes, &inference->result))
        return false;
    /* Tasks may have been omitted. */
    attn_run(request->model, &request->batch, &inference->sizes, scratch,
             &inference->result);
    return true;
}

/* Writes the bytes of a reply that is not streamed; false when memory is short. */
static bool write_unstreamed(struct inference *inference, void *encoder) {
    struct buf *text = &inference->exchange->reply.text;
    size_t max = inference->reply_bound + WIRE_PIECE_MIN;

    buf_init(text, max);
    if (buf_reserve(text, max) != ATTN_OK)
        return false;
    text->size = inference->exchange->work.codec.writer->fill(encoder, text->data, max);
    pace_add(text->size);
    return true;
}

/* Checks the results, and writes the reply or its first piece. */
static bool write_reply(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    const struct wire_writer *writer = exchange->work.codec.writer;
    void *encoder = writer->begin(inference->reply_arena, &inference->request,
                                  &inference->result, &exchange->reply.head, problem);

    if (encoder == NULL)
        return false;
    if (exchange->work.codec.content_type != NULL)
        exchange->reply.head.content_type = exchange->work.codec.content_type;

    int64_t begun = sched_used_ns(inference->worker);
    if (!(inference->streamed
              ? stream_begin(&exchange->reply.stream, writer->fill, encoder)
              : write_unstreamed(inference, encoder)))
        return wire_problem_set_no_memory(problem);
    inference->write_ns = sched_used_ns(inference->worker) - begun;
    return true;
}

const struct inference_kind attention_kind = {attn_plan, bound_reply, find_memory,
                                              run_layer, write_reply, false};
