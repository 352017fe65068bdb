/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: POST /v1/attention. Everything that costs time happens on a worker. */
#include "base/size.h"
#include "http/routes.h"
#include "wire/native.h"

#include <stddef.h>
#include <string.h>

/* A reply that could be larger is streamed. */
#define WHOLE_REPLY_MOST ((size_t)256 * 1024)
/* Of a streamed reply: the encoder, and what the arena adds, at most a chunk. */
#define STREAM_EXTRA_BYTES ((size_t)260 * 1024)

/* One call on its worker. */
struct job {
    struct exchange *exchange;
    struct sched_worker *worker;
    struct wire_call call;
    attn_crew crew; /* of call.request */
    attn_sizes sizes;
    size_t reply_bound; /* bytes of text */
    bool streamed;
    struct arena *arena; /* of what the reply is printed from */
    attn_result result;
    attn_result reply; /* its weights are those selected */
};

/* attn_crew.run: idle workers take part. */
static void run_shared(void *context, size_t count,
                       void (*task)(void *data, size_t index, size_t slot), void *data) {
    sched_share(context, count, task, data);
}

static bool decode(struct job *job, struct wire_problem *problem) {
    struct exchange *exchange = job->exchange;
    const struct http_options *options = exchange->options;
    const struct buf *body = &exchange->body;
    const char *text = body->data != NULL ? body->data : "";
    struct wire_native_scan scan;
    if (!wire_native_scan(text, body->size, &scan, problem) ||
        !exchange_reserve(exchange, scan.decode_bytes, problem) ||
        !wire_native_decode(text, &scan, options->models, options->num_models,
                            &job->worker->arena, &job->call, problem))
        return false;
    buf_deinit(&exchange->body);
    return true;
}

static bool refuse_reply(const struct job *job, size_t max_reply,
                         struct wire_problem *problem) {
    wire_problem_set(
        problem, MHD_HTTP_CONTENT_TOO_LARGE, "Reply too large", NULL,
        "the reply may take %zu bytes, over --max-reply %zu; ask for \"need_weights\": "
        "\"mean\" or false, select by weights_heads and weights_queries, or send fewer "
        "sequences",
        job->reply_bound, max_reply);
    return false;
}

/* Works out all sizes and takes them from the budget. *ret_kept is what the reply alone
 * will hold until it is sent. */
static bool plan(struct job *job, size_t *ret_kept, struct wire_problem *problem) {
    const attn_sizes *sizes = &job->sizes;
    const struct http_options *options = job->exchange->options;
    attnd_error error;
    job->crew =
        (attn_crew){sched_num_workers(job->worker->pool), run_shared, job->worker};
    job->call.request.crew = &job->crew;
    if (attn_plan(job->call.model, &job->call.request, &job->sizes, &error) != ATTND_OK) {
        wire_problem_set(problem, MHD_HTTP_CONTENT_TOO_LARGE, "Request too large", NULL,
                         "%s; send fewer or shorter sequences", error.text);
        return false;
    }
    job->reply_bound = wire_native_reply_bound(&job->call, sizes);
    if (job->reply_bound > options->max_reply)
        return refuse_reply(job, options->max_reply, problem);
    job->streamed = job->reply_bound > WHOLE_REPLY_MOST;
    job->arena = job->streamed ? &job->exchange->stream.arena : &job->worker->arena;

    /* The results, and, when streamed, lengths that the encoder reads; else the text. */
    size_t weights = wire_native_num_weights(&job->call, sizes);
    size_t results = 0, kept = job->reply_bound + WIRE_NATIVE_PIECE_LEAST;
    bool fits = size_add_mul(&results, sizes->outputs, sizeof(float)) &&
                size_add_mul(&results, weights, sizeof(float));
    if (job->streamed) {
        kept = STREAM_PIECE_BYTES + STREAM_EXTRA_BYTES;
        fits = fits && size_add(kept, results, &kept) &&
               size_add_mul(&kept, job->call.request.num_sequences, 2 * sizeof(size_t));
    }
    size_t bytes = sizes->scratch_bytes;
    fits = fits && size_add(bytes, kept, &bytes) &&
           (job->streamed || size_add(bytes, results, &bytes)) &&
           (!wire_native_selects(&job->call) ||
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
    bool selects = wire_native_selects(&job->call);
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
    if (!allocate(job->arena, wire_native_num_weights(&job->call, sizes),
                  &job->reply.weights)) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    wire_native_select(&job->call, job->result.weights, job->reply.weights);
    return true;
}

/* The whole text at once. */
static bool print(struct job *job, struct wire_problem *problem) {
    struct buf *text = &job->exchange->reply;
    struct wire_native_encoder encoder;
    wire_native_encoder_init(&encoder, &job->call, &job->reply);
    if (!wire_native_encoder_check(&encoder, problem))
        return false;
    size_t room = job->reply_bound + WIRE_NATIVE_PIECE_LEAST;
    buf_init(text, room);
    if (buf_reserve(text, room) != ATTND_OK) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    text->size = wire_native_encoder_fill(&encoder, text->data, room);
    return true;
}

/* stream_fill */
static size_t fill(void *source, char *piece, size_t size) {
    return wire_native_encoder_fill(source, piece, size);
}

/* Returns lengths that outlive the job; NULL when memory is short. */
static const size_t *keep_lengths(struct job *job, const size_t *lengths) {
    size_t count = job->call.request.num_sequences;
    size_t *kept = arena_alloc(job->arena, count, sizeof *kept);
    if (kept != NULL)
        memcpy(kept, lengths, count * sizeof *kept);
    return kept;
}

/* The first piece; the stream makes the others. */
static bool begin_stream(struct job *job, struct wire_problem *problem) {
    attn_request *request = &job->call.request;
    struct wire_native_encoder *encoder = arena_alloc(job->arena, 1, sizeof *encoder);
    request->query_lens = keep_lengths(job, request->query_lens);
    request->key_lens = keep_lengths(job, request->key_lens);
    if (encoder == NULL || request->query_lens == NULL || request->key_lens == NULL) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    wire_native_encoder_init(encoder, &job->call, &job->reply);
    if (!wire_native_encoder_check(encoder, problem))
        return false;
    if (!stream_begin(&job->exchange->stream, fill, encoder)) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    return true;
}

/* From body to reply; false with *problem set. */
static bool answer(struct exchange *exchange, struct sched_worker *worker,
                   struct wire_problem *problem) {
    struct job job = {.exchange = exchange, .worker = worker};
    size_t kept;
    if (!decode(&job, problem) || !plan(&job, &kept, problem) || !compute(&job, problem))
        return false;
    if (!(job.streamed ? begin_stream(&job, problem) : print(&job, problem)))
        return false;
    exchange_keep(exchange, kept);
    return true;
}

/* The job. */
static void run(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange =
        (struct exchange *)((char *)job - offsetof(struct exchange, job));
    struct wire_problem problem;
    if (answer(exchange, worker, &problem)) {
        exchange_set_json(exchange, ATTND_OK, MHD_HTTP_OK);
    } else {
        stream_deinit(&exchange->stream);
        exchange_set_problem(exchange, &problem);
    }
    exchange_resume(exchange);
}

void attention_handle(struct exchange *exchange) {
    exchange_submit(exchange, run);
}
