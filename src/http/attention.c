/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: POST /v1/attention. Everything that costs time happens on a worker. */
#include "base/size.h"
#include "http/routes.h"
#include "wire/native.h"

#include <stddef.h>

/* Takes from the budget what computing and answering will hold, besides the decoded
 * request. */
static bool reserve_results(struct exchange *exchange, const struct wire_call *call,
                            const attn_sizes *sizes, struct wire_problem *problem) {
    size_t bytes = sizes->scratch_bytes;
    if (!size_add_mul(&bytes, sizes->outputs, sizeof(float)) ||
        !size_add_mul(&bytes, sizes->weights, sizeof(float)) ||
        !size_add(bytes, wire_native_reply_bound(call, sizes), &bytes))
        bytes = SIZE_MAX;
    return exchange_reserve(exchange, bytes, problem);
}

/* attn_crew.run: idle workers take part. */
static void run_shared(void *context, size_t count,
                       void (*task)(void *data, size_t index, size_t slot), void *data) {
    sched_share(context, count, task, data);
}

/* From body to reply; false with *problem set. */
static bool answer(struct exchange *exchange, struct sched_worker *worker,
                   struct wire_problem *problem) {
    struct arena *arena = &worker->arena;
    const struct http_options *options = exchange->options;
    const struct buf *body = &exchange->body;
    const char *text = body->data != NULL ? body->data : "";
    size_t decode_bytes;
    struct wire_call call;
    attn_sizes sizes;
    attnd_error error;
    if (!wire_native_scan(text, body->size, &decode_bytes, problem) ||
        !exchange_reserve(exchange, decode_bytes, problem) ||
        !wire_native_decode(text, body->size, options->models, options->num_models, arena,
                            &call, problem))
        return false;
    buf_deinit(&exchange->body);
    const attn_crew crew = {sched_num_workers(worker->pool), run_shared, worker};
    call.request.crew = &crew;
    if (attn_plan(call.model, &call.request, &sizes, &error) != ATTND_OK) {
        wire_problem_set(problem, MHD_HTTP_CONTENT_TOO_LARGE, "Request too large", NULL,
                         "%s; send fewer or shorter sequences", error.text);
        return false;
    }
    if (!reserve_results(exchange, &call, &sizes, problem))
        return false;
    attn_result result = {.outputs = arena_alloc(arena, sizes.outputs, sizeof(float))};
    if (sizes.weights > 0)
        result.weights = arena_alloc(arena, sizes.weights, sizeof(float));
    void *scratch = arena_alloc(arena, sizes.scratch_bytes, 1);
    if (result.outputs == NULL || scratch == NULL ||
        (sizes.weights > 0 && result.weights == NULL)) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    attn_run(call.model, &call.request, scratch, &result); /* attn_plan() has passed it */
    return wire_native_encode(&call, &result, &exchange->reply, problem);
}

/* The job. */
static void run(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange =
        (struct exchange *)((char *)job - offsetof(struct exchange, job));
    struct wire_problem problem;
    if (answer(exchange, worker, &problem))
        exchange_set_json(exchange, ATTND_OK, MHD_HTTP_OK);
    else
        exchange_set_problem(exchange, &problem);
    exchange_resume(exchange);
}

void attention_handle(struct exchange *exchange) {
    exchange_submit(exchange, run);
}
