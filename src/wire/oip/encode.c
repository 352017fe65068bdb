/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: writes replies of the Open Inference Protocol.
 *
 * A reply is a few segments: JSON that is ready from the start, numbers that are printed
 * as JSON, and binary data. */
#include "base/pace.h"
#include "base/size.h"
#include "wire/json/write.h"
#include "wire/media.h"
#include "wire/oip/oip.h"
#include "wire/reply.h"

#include <stdio.h>
#include <string.h>

/* All text but outputs, id and the model's name; that of an output but its numbers in
 * JSON: its name and a size for each axis and for its data. */
#define TEXT_BYTES   ((size_t)64)
#define OUTPUT_BYTES ((size_t)240)
#define NAME_BYTES   ((size_t)ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX + 3)

/* --- sizes --- */

/* Returns the most bytes of JSON without numbers, which is all that the arena holds. The
 * id is a part of the body, so this cannot overflow. */
static size_t oip_reply_memory(const struct wire_request *request) {
    return TEXT_BYTES + NAME_BYTES + request->oip->id_size +
           request->oip->num_outputs * OUTPUT_BYTES;
}

static size_t oip_reply_bound(const struct wire_request *request) {
    size_t bytes = oip_reply_memory(request);
    struct wire_reply reply;

    wire_reply_init(&reply, request, &(attn_result){0});
    for (size_t i = 0; i < request->oip->num_outputs; i++)
        size_add_mul_saturating(
            &bytes, wire_reply_count(&reply, request->oip->outputs[i].which),
            request->oip->outputs[i].binary ? sizeof(float) : WIRE_NUMBER_BYTES);
    return bytes;
}

/* --- the start of a reply --- */

/* Writes the description of an output, up to its numbers if they are JSON. */
static char *put_output(char *out, const struct wire_reply *reply, enum result_id id,
                        bool binary) {
    size_t shape[WIRE_REPLY_RANK_MAX], rank = wire_reply_shape(reply, id, shape);

    out += sprintf(
        out, "{\"name\":\"%s\",\"datatype\":\"FP32\",\"shape\":", result_table[id].name);
    for (size_t i = 0; i < rank; i++)
        out += sprintf(out, "%c%zu", i == 0 ? '[' : ',', shape[i]);
    if (binary)
        return out + sprintf(out, "],\"parameters\":{\"binary_data_size\":%zu}}",
                             wire_reply_count(reply, id) * sizeof(float));
    return stpcpy(out, "],\"data\":[");
}

/* Makes the segments of the JSON. `out` has room for oip_reply_memory(). */
static void make_json(const struct wire_oip_reply *wanted, const struct wire_reply *reply,
                      struct wire_segments *segments, char *out) {
    const char *start = out;

    out = stpcpy(out, "{\"model_name\":");
    out = wire_json_put_string(out, reply->wanted.info->name);
    out = stpcpy(out, ",\"model_version\":\"" WIRE_OIP_VERSION "\"");
    if (wanted->id != NULL) {
        out = stpcpy(out, ",\"id\":");
        memcpy(out, wanted->id, wanted->id_size);
        out += wanted->id_size;
    }

    out = stpcpy(out, ",\"outputs\":[");
    for (size_t i = 0; i < wanted->num_outputs; i++) {
        enum result_id id = wanted->outputs[i].which;
        if (i > 0)
            *out++ = ',';
        out = put_output(out, reply, id, wanted->outputs[i].binary);
        if (wanted->outputs[i].binary)
            continue;
        wire_segments_add(segments, false, start, (size_t)(out - start));
        wire_segments_add(segments, true, result_numbers(&reply->result, id),
                          wire_reply_count(reply, id));
        start = out;
        out = stpcpy(out, "]}");
    }
    out = stpcpy(out, "]}");
    wire_segments_add(segments, false, start, (size_t)(out - start));
}

/* Makes the segments of binary data. */
static void add_binary_outputs(const struct wire_oip_reply *wanted,
                               const struct wire_reply *reply,
                               struct wire_segments *segments) {
    for (size_t i = 0; i < wanted->num_outputs; i++) {
        enum result_id id = wanted->outputs[i].which;
        if (wanted->outputs[i].binary)
            wire_segments_add(segments, false, result_numbers(&reply->result, id),
                              wire_reply_count(reply, id) * sizeof(float));
    }
}

/* Returns the bytes that a segment will have. Numbers are printed once to know that. */
static size_t measure_segment(const struct wire_segment *segment) {
    const float *numbers = segment->data;
    char text[WIRE_NUMBER_ROOM];
    if (!segment->numbers)
        return segment->count;

    size_t bytes = segment->count - 1; /* commas */
    for (size_t i = 0; i < segment->count; i++) {
        size_t size = (size_t)(wire_json_put_number(text, numbers[i]) - text);
        bytes += size;
        pace_add(size);
    }
    return bytes;
}

static void *oip_reply_begin(struct arena *arena, const struct wire_request *request,
                             const attn_result *result, struct wire_reply_head *ret_head,
                             struct wire_problem *ret_problem) {
    struct wire_segments *encoder = arena_alloc(arena, 1, sizeof *encoder);
    char *text = arena_alloc(arena, oip_reply_memory(request), 1);
    struct wire_reply reply;
    if (encoder == NULL || text == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    if (!wire_reply_check(request, result, ret_problem))
        return NULL;

    *encoder = (struct wire_segments){0};
    wire_reply_init(&reply, request, result);
    make_json(request->oip, &reply, encoder, text);
    size_t json_segments = encoder->count;
    add_binary_outputs(request->oip, &reply, encoder);
    if (encoder->count == json_segments) {
        *ret_head =
            (struct wire_reply_head){WIRE_MEDIA_TYPE_JSON, WIRE_NO_SIZE, WIRE_NO_SIZE};
        return encoder;
    }

    /* A header states where binary data begins, so it must be known before the reply. */
    struct wire_reply_head head = {.content_type = WIRE_MEDIA_TYPE_OCTETS};
    for (size_t i = 0; i < encoder->count; i++) {
        size_t size = measure_segment(&encoder->items[i]);
        head.size += size;
        if (i < json_segments)
            head.json_size += size;
    }
    *ret_head = head;
    return encoder;
}

const struct wire_writer wire_oip_writer = {
    .bound = oip_reply_bound,
    .memory = oip_reply_memory,
    .begin = oip_reply_begin,
    .fill = wire_segments_fill,
    .smaller = "leave attention_weights or heads out of outputs, "
               "ask for \"need_weights\": \"mean\", " WIRE_SELECT_FEWER
               ", request binary data, send fewer sequences",
};

/* --- errors --- */

static void oip_print_error(const struct wire_problem *problem, struct buf *body) {
    char text[sizeof problem->detail + 64];

    snprintf(text, sizeof text, "%.60s: %s", problem->title, problem->detail);
    buf_append_text(body, "{\"error\":");
    wire_json_add_string(body, text);
    buf_append_text(body, "}");
}

static char oip_out_of_memory[] = "{\"error\":\"Out of memory: retry later\"}";

const struct wire_error_format wire_oip_error_format = {
    .content_type = WIRE_MEDIA_TYPE_JSON,
    .print = oip_print_error,
    .out_of_memory = oip_out_of_memory,
};
