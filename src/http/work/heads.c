/* SPDX-License-Identifier: Apache-2.0 */
/* http/work/heads.c: the analysis of POST /v1/heads on its worker. The request is one for
 * attention; the reply is a short text. */
#include "wire/native/heads.h"
#include "base/size.h"
#include "http/work/inference.h"
#include "wire/media.h"

#include <string.h>

static bool bound_text(struct inference *inference, struct wire_problem *problem) {
    return inference_bound_reply(
        inference, wire_native_heads_bound(inference->request.model), "", problem);
}

static size_t find_head_memory(struct inference *inference) {
    size_t num_heads = attn_model_get_info(inference->request.model)->num_heads;
    size_t bytes = inference->reply_bound;

    size_add_mul_saturating(&bytes, num_heads, sizeof(attn_head_sums));
    size_add_mul_saturating(&bytes, num_heads * sizeof(double), num_heads);
    inference->kept = inference->reply_bound;
    return bytes;
}

static bool analyse_heads(struct inference *inference, void *scratch) {
    struct arena *arena = &inference->worker->arena;
    const struct wire_request *request = &inference->request;
    size_t num_heads = attn_model_get_info(request->model)->num_heads;
    attn_heads *heads = &inference->heads;

    *heads = (attn_heads){.num_heads = num_heads};
    heads->sums = arena_alloc(arena, num_heads, sizeof *heads->sums);
    if (heads->sums == NULL)
        return false;
    memset(heads->sums, 0, num_heads * sizeof *heads->sums);
    if (!attn_model_get_info(request->model)->projection.given) {
        heads->gram = arena_alloc(arena, num_heads * num_heads, sizeof *heads->gram);
        if (heads->gram == NULL)
            return false;
        memset(heads->gram, 0, num_heads * num_heads * sizeof *heads->gram);
    }

    attn_heads_add(request->model, &request->batch, &inference->sizes, scratch, heads);
    return true;
}

static bool write_analysis(struct inference *inference, struct wire_problem *problem) {
    struct buf *text = &inference->exchange->reply.text;
    int64_t begun = sched_used_ns(inference->worker);

    if (!wire_native_heads_check(&inference->heads, problem))
        return false;
    buf_init(text, inference->reply_bound);
    text->status = buf_reserve(text, inference->reply_bound);
    wire_native_heads_print(attn_model_get_info(inference->request.model)->name,
                            inference->request.note, &inference->heads, text);
    if (text->status != ATTN_OK)
        return wire_problem_set_no_memory(problem);

    inference->exchange->reply.head =
        (struct wire_reply_head){WIRE_MEDIA_TYPE_JSON, WIRE_NO_SIZE, WIRE_NO_SIZE};
    inference->write_ns = sched_used_ns(inference->worker) - begun;
    return true;
}

const struct inference_kind heads_kind = {
    attn_heads_plan, bound_text, find_head_memory, analyse_heads, write_analysis, true};
