/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: decodes a request of the Open Inference Protocol: what its outputs and
 * parameters ask for together, and the fields that scan.c has found. */
#include "wire/fields/readers.h"
#include "wire/oip/request.h"

/* Sets what the reply has. Refuses outputs and need_weights that disagree. */
static bool set_needs(const struct wire_oip_scan *scan, struct wire_decoder *decoder) {
    const struct wire_value *value = &scan->source.values[WIRE_FIELD_NEED_WEIGHTS];
    const struct wire_cursor cursor = wire_value_cursor(&scan->source, value);
    attn_request *batch = &decoder->request.batch;
    bool named = false;

    for (size_t i = 0; i < scan->reply.num_outputs; i++) {
        enum result_id which = scan->reply.outputs[i].which;
        decoder->needs[which] = true;
        named = named || which == RESULT_WEIGHTS;
    }
    if (!wire_need_weights_read(&cursor, &value->text, &batch->need_weights))
        return false;
    if (wire_value_is_sent(value) && named != (batch->need_weights != ATTN_WEIGHTS_NONE))
        return wire_problem_set(
            scan->source.problem, WIRE_E_OUTPUTS_DISAGREE, "need_weights",
            named ? "outputs has attention_weights, but need_weights is false; "
                    "leave one of them out"
                  : "need_weights asks for weights, but outputs does not have "
                    "attention_weights; add it, or leave need_weights out");
    wire_need_apply(decoder);
    return true;
}

/* Returns the most bytes that copy_reply() needs. */
static size_t find_reply_cost(const struct wire_oip_reply *reply) {
    size_t bytes = sizeof *reply + (size_t)2 * ARENA_ALIGNMENT;

    if (reply->id != NULL)
        bytes += wire_json_cost(reply->id_size) + reply->id_size;
    return bytes;
}

/* Checks the id, and copies it with the rest, since the body may be released before the
 * reply is written. */
static bool copy_reply(const struct wire_oip_scan *scan,
                       const struct wire_oip_reply **ret_reply) {
    const struct wire_oip_reply *found = &scan->reply;
    struct arena *arena = scan->source.input->arena;
    struct wire_oip_reply *copy = arena_alloc(arena, 1, sizeof *copy);
    char *id = NULL;

    if (found->id != NULL) {
        struct wire_span span = {found->id, found->id + found->id_size, 0, 0};
        const struct wire_cursor cursor = {.body = scan->source.text,
                                           .problem = scan->source.problem};
        json_t *parsed = wire_string_load(&cursor, &span);
        if (parsed == NULL)
            return false;
        json_decref(parsed);
        id = arena_alloc(arena, found->id_size, 1);
    }
    if (copy == NULL || (found->id != NULL && id == NULL))
        return wire_problem_set_no_memory(scan->source.problem);

    *copy = *found;
    copy->id = id;
    if (id != NULL)
        memcpy(id, found->id, found->id_size);
    *ret_reply = copy;
    return true;
}

bool wire_oip_read(const struct wire_input *input, struct wire_request *ret_request,
                   struct wire_problem *ret_problem) {
    struct wire_oip_scan scan;
    struct wire_decoder decoder = {.source = &scan.source, .request.oip = &scan.reply};

    if (!wire_oip_scan(input, &scan, ret_problem) || !set_needs(&scan, &decoder) ||
        !wire_decode(&decoder, find_reply_cost(&scan.reply)) ||
        !copy_reply(&scan, &decoder.request.oip))
        return false;
    *ret_request = decoder.request;
    return true;
}
