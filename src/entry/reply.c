/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: lists the arrays of a reply, and releases them. */
#include "entry/call.h"

#include "wire/json/write.h"

#include <stdlib.h>

/* What begins with a struct wire_reply, see wire_reply_begin(). */
struct listed_reply {
    struct wire_reply reply;
    struct wire_reply_array arrays[WIRE_REPLY_ARRAYS_MAX];
    char text[32 + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX + WIRE_NOTE_BYTES];
};

bool call_make_reply(struct call *call, const attn_result *result) {
    const struct wire_request *request = &call->request;
    attn_reply *reply = call->reply;
    struct listed_reply *listed =
        wire_reply_begin(&reply->arena, sizeof *listed, request, result, &call->problem);
    if (listed == NULL)
        return false;

    reply->num_arrays =
        wire_reply_list(&listed->reply, request->lens_sent, listed->arrays);
    for (size_t i = 0; i < reply->num_arrays; i++) {
        const struct wire_reply_array *array = &listed->arrays[i];
        reply->arrays[i] = (attn_array){.name = array->name,
                                        .type = array->dtype,
                                        .rank = array->rank,
                                        .shape = array->shape,
                                        .data = array->data};
    }

    char *out = stpcpy(listed->text, "{\"model\":");
    out = wire_json_put_string(out, listed->reply.wanted.info->name);
    stpcpy(wire_reply_put_note(request->note, out), "}");
    reply->text = listed->text;
    return true;
}

const attn_array *attn_reply_array(const attn_reply *reply, size_t index) {
    return index < reply->num_arrays ? &reply->arrays[index] : NULL;
}

const char *attn_reply_text(const attn_reply *reply) {
    return reply->text;
}

void attn_reply_destroy(attn_reply *reply) {
    if (reply == NULL)
        return;
    arena_deinit(&reply->arena);
    free(reply);
}
