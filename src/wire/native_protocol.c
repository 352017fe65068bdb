/* SPDX-License-Identifier: Apache-2.0 */
/* native_protocol.c: /v1/attention in JSON, as the server calls it. */
#include "base/size.h"
#include "wire/native.h"

#include <string.h>

bool wire_native_read(const struct wire_input *input, struct wire_call *ret_call,
                      struct wire_problem *ret_problem) {
    struct wire_native_scan scan;
    return wire_native_scan(input->body, input->size, &scan, ret_problem) &&
           input->reserve(input->context, scan.decode_bytes, ret_problem) &&
           wire_native_decode(input->body, &scan, input->models, input->num_models,
                              input->arena, ret_call, ret_problem);
}

/* The lengths of sequences, twice. */
static size_t memory(const struct wire_call *call) {
    size_t bytes = 0;
    bool fits = size_add_mul(&bytes, call->request.num_sequences, 2 * sizeof(size_t));
    return fits ? bytes : SIZE_MAX;
}

/* Copies lengths, which outlive the call then; NULL when memory is short. */
static const size_t *keep_lengths(struct arena *arena, const size_t *lengths,
                                  size_t count) {
    size_t *kept = arena_alloc(arena, count, sizeof *kept);
    if (kept != NULL)
        memcpy(kept, lengths, count * sizeof *kept);
    return kept;
}

static void *begin(struct arena *arena, const struct wire_call *call,
                   const attn_result *result, struct wire_reply_head *ret_head,
                   struct wire_problem *ret_problem) {
    struct wire_call kept = *call;
    attn_request *request = &kept.request;
    struct wire_native_encoder *encoder = arena_alloc(arena, 1, sizeof *encoder);
    request->query_lens =
        keep_lengths(arena, request->query_lens, request->num_sequences);
    request->key_lens = keep_lengths(arena, request->key_lens, request->num_sequences);
    if (encoder == NULL || request->query_lens == NULL || request->key_lens == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    wire_native_encoder_init(encoder, &kept, result);
    if (!wire_reply_check(&kept, result, ret_problem))
        return NULL;
    *ret_head = (struct wire_reply_head){"application/json", WIRE_NO_SIZE, WIRE_NO_SIZE};
    return encoder;
}

static size_t fill(void *encoder, char *piece, size_t size) {
    return wire_native_encoder_fill(encoder, piece, size);
}

const struct wire_writer wire_native_writer = {
    wire_native_reply_bound, memory, begin, fill,
    "ask for \"need_weights\": \"mean\" or false, select by weights_heads and "
    "weights_queries, or send fewer sequences"};
