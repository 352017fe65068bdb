/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: the phases of POST /v1/heads on its worker. The request is one for attention;
 * the reply is a short text. */
#include "wire/native/heads.h"
#include "base/size.h"
#include "http/work/inference.h"
#include "wire/media.h"

#include <string.h>

static bool heads_plan(struct inference *inference, struct wire_problem *problem) {
    struct wire_request *request = &inference->request;
    attn_error error;

    /* What the reply of POST /v1/attention would have does not matter here. */
    request->batch.omit_outputs = request->batch.need_heads = request->batch.need_lse =
        false;
    inference_share(inference);
    if (attn_heads_plan(request->model, &request->batch, &inference->sizes, &error) !=
        ATTN_OK)
        return wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                "%s; send fewer or shorter sequences", error.text);
    return inference_bound_reply(inference, wire_native_heads_bound(request->model), "",
                                 problem);
}

static bool heads_compute(struct inference *inference, struct wire_problem *problem) {
    struct arena *arena = &inference->worker->arena;
    const struct wire_request *request = &inference->request;
    size_t num_heads = attn_model_get_info(request->model)->num_heads;
    size_t bytes = inference->sizes.scratch_bytes;
    int64_t begun = sched_used_ns(inference->worker);

    inference->kept = inference->reply_bound;
    size_add_mul_saturating(&bytes, num_heads, sizeof(attn_head_sums));
    size_add_mul_saturating(&bytes, num_heads * sizeof(double), num_heads);
    size_add_saturating(&bytes, inference->kept);
    if (!exchange_reserve(inference->exchange, bytes, problem))
        return false;

    void *scratch = arena_alloc(arena, inference->sizes.scratch_bytes, 1);
    attn_heads heads = {.num_heads = num_heads};
    heads.sums = arena_alloc(arena, num_heads, sizeof *heads.sums);
    heads.gram = arena_alloc(arena, num_heads * num_heads, sizeof *heads.gram);
    if (scratch == NULL || heads.sums == NULL || heads.gram == NULL)
        return wire_problem_set_no_memory(problem);
    memset(heads.sums, 0, num_heads * sizeof *heads.sums);
    memset(heads.gram, 0, num_heads * num_heads * sizeof *heads.gram);

    /* Cannot fail: attn_heads_plan() has accepted this batch. */
    attn_heads_add(request->model, &request->batch, scratch, &heads);
    inference->heads = heads;
    inference->compute_ns = sched_used_ns(inference->worker) - begun;
    inference->helped_ns = sched_helped_ns(inference->worker);
    return inference_check_deadline(inference, problem);
}

static bool heads_encode(struct inference *inference, struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;
    int64_t begun = sched_used_ns(inference->worker);

    buf_deinit(&exchange->body);
    if (!wire_native_heads_check(&inference->heads, problem))
        return false;
    buf_init(&exchange->reply, inference->reply_bound);
    if (buf_reserve(&exchange->reply, inference->reply_bound) != ATTN_OK ||
        wire_native_heads_print(inference->request.model, &inference->heads,
                                &exchange->reply) != ATTN_OK)
        return wire_problem_set_no_memory(problem);

    exchange->head =
        (struct wire_reply_head){WIRE_MEDIA_TYPE_JSON, WIRE_NO_SIZE, WIRE_NO_SIZE};
    inference->write_ns = inference->encode_ns = sched_used_ns(inference->worker) - begun;
    exchange_keep(exchange, inference->kept);
    return true;
}

const struct inference_phases heads_phases = {heads_plan, heads_compute, heads_encode,
                                              false};
