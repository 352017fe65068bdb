/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: writes a reply in safetensors: a header, the lengths of the sequences where a
 * batch has no padding, and the results. Integers come first, so that every tensor
 * begins at a multiple of the size of its elements. */
#include "base/size.h"
#include "safetensors/header.h"
#include "wire/json/write.h"
#include "wire/media.h"
#include "wire/reply.h"
#include "wire/safetensors/safetensors.h"

#include <stdio.h>
#include <string.h>

#define ENTRY_BYTES 256 /* at most, of a tensor in the header: its name and 7 numbers */
#define HEADER_BYTES_MAX                                                                 \
    (SAFETENSORS_SIZE_BYTES + 64 + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX +                  \
     WIRE_REPLY_ARRAYS_MAX * ENTRY_BYTES)

/* A reply that is being written, and how far that has got. */
struct safetensors_encoder {
    struct wire_reply reply;
    char header[HEADER_BYTES_MAX];
    struct wire_reply_array tensors[WIRE_REPLY_ARRAYS_MAX];
    size_t num_tensors;
    struct wire_segments segments; /* the header, and the data of each tensor */
};

/* Prepares the header of a reply, and returns the size of the whole reply. Spaces pad its
 * JSON to a multiple of 8 bytes, as in the reference implementation. */
static size_t prepare_reply(struct safetensors_encoder *encoder, bool lens_sent) {
    char *json = encoder->header + SAFETENSORS_SIZE_BYTES, *out = json;
    struct wire_segments *segments = &encoder->segments;
    size_t begin = 0;

    encoder->num_tensors = wire_reply_list(&encoder->reply, lens_sent, encoder->tensors);
    wire_segments_add(segments, false, encoder->header, 0);
    out = stpcpy(out, "{\"__metadata__\":{\"model\":");
    out = stpcpy(wire_json_put_string(out, encoder->reply.wanted.info->name), "}");
    for (size_t i = 0; i < encoder->num_tensors; i++) {
        const struct wire_reply_array *tensor = &encoder->tensors[i];
        out += sprintf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":", tensor->name,
                       tensor->dtype);
        for (size_t axis = 0; axis < tensor->rank; axis++)
            out += sprintf(out, "%c%zu", axis == 0 ? '[' : ',', tensor->shape[axis]);
        out +=
            sprintf(out, "],\"data_offsets\":[%zu,%zu]}", begin, begin + tensor->bytes);
        begin += tensor->bytes;
        wire_segments_add(segments, false, tensor->data, tensor->bytes);
    }
    *out++ = '}';
    while ((out - json) % 8 != 0)
        *out++ = ' ';

    uint64_t size = (uint64_t)(out - json);
    memcpy(encoder->header, &size, sizeof size);
    segments->items[0].count = SAFETENSORS_SIZE_BYTES + size;
    return SAFETENSORS_SIZE_BYTES + size + begin;
}

/* --- struct wire_writer --- */

static size_t safetensors_reply_bound(const struct wire_request *request) {
    struct safetensors_encoder encoder = {0};
    const struct wire_reply *reply = &encoder.reply;
    size_t bytes = HEADER_BYTES_MAX;

    wire_reply_init(&encoder.reply, request, &(attn_result){0});
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        if (reply->wanted.has[id])
            size_add_mul_saturating(&bytes, wire_reply_count(reply, id),
                                    result_number_bytes(id));
    }
    size_add_mul_saturating(&bytes, request->batch.num_sequences, 2 * sizeof(int64_t));
    return bytes < SIZE_MAX ? prepare_reply(&encoder, request->lens_sent) : SIZE_MAX;
}

static void *safetensors_reply_begin(struct arena *arena,
                                     const struct wire_request *request,
                                     const attn_result *result,
                                     struct wire_reply_head *ret_head,
                                     struct wire_problem *ret_problem) {
    struct safetensors_encoder *encoder =
        wire_reply_begin(arena, sizeof *encoder, request, result, ret_problem);
    if (encoder == NULL)
        return NULL;

    *ret_head =
        (struct wire_reply_head){.content_type = WIRE_MEDIA_TYPE_SAFETENSORS,
                                 .size = prepare_reply(encoder, request->lens_sent),
                                 .json_size = WIRE_NO_SIZE};
    return encoder;
}

static size_t safetensors_reply_fill(void *context, char *piece, size_t size) {
    struct safetensors_encoder *encoder = context;
    return wire_segments_fill(&encoder->segments, piece, size);
}

const struct wire_writer wire_safetensors_writer = {
    .bound = safetensors_reply_bound,
    .memory = wire_reply_copies_bytes,
    .begin = safetensors_reply_begin,
    .fill = safetensors_reply_fill,
    .smaller =
        "leave weights or heads out of need, set need_weights to mean, " WIRE_SELECT_FEWER
        ", send fewer sequences",
};
