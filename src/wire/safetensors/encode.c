/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: writes a reply in safetensors: a header, the lengths of the sequences where a
 * batch has no padding, and the results. Integers come first, so that every tensor
 * begins at a multiple of the size of its elements. */
#include "base/endian.h"
#include "base/pace.h"
#include "base/size.h"
#include "safetensors/header.h"
#include "wire/json/write.h"
#include "wire/media.h"
#include "wire/reply.h"
#include "wire/safetensors/safetensors.h"

#include <stdio.h>
#include <string.h>

#define TENSORS_MAX (2 + NUM_RESULTS) /* query_lens, key_lens, and results */
#define ENTRY_BYTES 256 /* at most, of a tensor in the header: its name and 7 numbers */
#define HEADER_BYTES_MAX                                                                 \
    (SAFETENSORS_SIZE_BYTES + 64 + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX +                  \
     TENSORS_MAX * ENTRY_BYTES)

_Static_assert(sizeof(size_t) == sizeof(int64_t), "lengths are sent as I64");

/* A tensor of the reply, and its data. */
struct encoded_tensor {
    const char *name, *dtype;
    size_t rank, shape[WIRE_REPLY_RANK_MAX];
    size_t bytes;
    const void *data;
};

/* A reply that is being written, and how far that has got. */
struct safetensors_encoder {
    struct wire_reply reply;
    char header[HEADER_BYTES_MAX];
    struct encoded_tensor tensors[TENSORS_MAX];
    size_t num_tensors;
    struct wire_segments segments; /* the header, and the data of each tensor */
};

/* --- what the reply consists of --- */

static bool all_equal(const size_t *lens, size_t count) {
    for (size_t b = 1; b < count; b++) {
        pace_add(1);
        if (lens[b] != lens[0])
            return false;
    }
    return true;
}

/* Whether sequences follow each other without padding, and lengths are sent with them. */
static bool is_packed(const struct wire_reply *reply, bool lens_sent) {
    const attn_request *batch = &reply->batch;
    return lens_sent || !all_equal(batch->query_lens, batch->num_sequences) ||
           !all_equal(batch->key_lens, batch->num_sequences);
}

static void add_lens(struct safetensors_encoder *encoder, const char *name,
                     const size_t *lens, size_t count) {
    encoder->tensors[encoder->num_tensors++] =
        (struct encoded_tensor){.name = name,
                                .dtype = "I64",
                                .rank = 1,
                                .shape = {count},
                                .bytes = count * sizeof *lens,
                                .data = lens};
}

/* Adds a result. When it is packed, the rows of all sequences follow each other, as in
 * [sum of query_lens, width]; weights, whose rows differ in width, are [count], and so is
 * what they are reduced to. */
static void add_result(struct safetensors_encoder *encoder, enum result_id id,
                       bool packed) {
    const struct wire_reply *reply = &encoder->reply;
    const struct result *row = &result_table[id];
    struct encoded_tensor *added = &encoder->tensors[encoder->num_tensors++];
    size_t count = wire_reply_count(reply, id);

    *added = (struct encoded_tensor){.name = row->name,
                                     .dtype = row->integers ? "I64" : "F32",
                                     .bytes = count * result_number_bytes(id),
                                     .data = result_numbers(&reply->result, id)};
    if (!packed) {
        added->rank = wire_reply_shape(reply, id, added->shape);
        return;
    }

    added->rank = (row->kinds & RESULT_BY_ROW) != 0
                      ? 1
                      : results_shape(&reply->wanted, id, 0, added->shape);
    added->shape[0] = count;
    for (size_t axis = 1; axis < added->rank; axis++)
        added->shape[0] /= added->shape[axis];
}

/* Lists the tensors. Nothing can overflow, since attn_plan() has computed the sizes. */
static void list_tensors(struct safetensors_encoder *encoder, bool lens_sent) {
    const struct wire_reply *reply = &encoder->reply;
    const attn_request *batch = &reply->batch;
    bool packed = is_packed(reply, lens_sent);

    if (packed)
        add_lens(encoder, "query_lens", batch->query_lens, batch->num_sequences);
    if (packed && (reply->wanted.kinds & RESULT_BY_ROW) != 0)
        add_lens(encoder, "key_lens", batch->key_lens, batch->num_sequences);

    /* Integers come before floats, so that they are aligned. */
    for (int i = 0; i < 2 * NUM_RESULTS; i++) {
        enum result_id id = i % NUM_RESULTS;
        if (reply->wanted.has[id] && result_table[id].integers == (i < NUM_RESULTS))
            add_result(encoder, id, packed);
    }
}

/* Prepares the header of a reply, and returns the size of the whole reply. Spaces pad its
 * JSON to a multiple of 8 bytes, as in the reference implementation. */
static size_t prepare_reply(struct safetensors_encoder *encoder, bool lens_sent) {
    char *json = encoder->header + SAFETENSORS_SIZE_BYTES, *out = json;
    struct wire_segments *segments = &encoder->segments;
    size_t begin = 0;

    list_tensors(encoder, lens_sent);
    wire_segments_add(segments, false, encoder->header, 0);
    out = stpcpy(out, "{\"__metadata__\":{\"model\":");
    out = stpcpy(wire_json_put_string(out, encoder->reply.wanted.info->name), "}");
    for (size_t i = 0; i < encoder->num_tensors; i++) {
        const struct encoded_tensor *tensor = &encoder->tensors[i];
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
    .memory = wire_reply_lens_bytes,
    .begin = safetensors_reply_begin,
    .fill = safetensors_reply_fill,
    .smaller =
        "leave weights or heads out of need, set need_weights to mean, " WIRE_SELECT_FEWER
        ", send fewer sequences",
};
