/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: writes a reply to POST /v1/attention as JSON, piece by piece.
 *
 * A piece may end after any number. The brackets around a part of a row are written with
 * it, so the encoder has only to remember the position of the next number. */
#include "base/pace.h"
#include "base/size.h"
#include "wire/decimal/print.h"
#include "wire/json/write.h"
#include "wire/media.h"
#include "wire/native/native.h"
#include "wire/reply.h"

#include <string.h>

#define NUMBER_BYTES (WIRE_FLOAT_PRINT_MAX + 1) /* with its comma */
#define LIST_BYTES   3                          /* [ ] and a comma */
/* {"model":""}, the names of all results, and brackets of lists. */
#define KEYS_BYTES 320
/* Reserved after the numbers of a row: for the end of all lists, and for the bytes that
 * the printer of numbers may touch. */
#define ROW_END_BYTES (16 + WIRE_FLOAT_PRINT_ROOM)

_Static_assert(KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX + NUMBER_BYTES +
                       ROW_END_BYTES <=
                   WIRE_PIECE_MIN,
               "the smallest piece has room for a number and all text before it");

/* A reply that is being written, and how far that has got. */
struct native_encoder {
    const char *model; /* its name */
    size_t num_tensors;
    struct wire_reply_tensor tensors[WIRE_NUM_RESULTS];
    /* The next number; tensor == num_tensors at the end. */
    size_t tensor, sequence, plane, row, part, column;
    size_t next; /* among the numbers of its tensor */
};

/* --- text --- */

/* Writes what comes before the first number of a tensor, up to its lists. */
static char *open_tensor(const struct native_encoder *encoder, char *out) {
    const struct wire_reply_tensor *tensor = &encoder->tensors[encoder->tensor];
    if (encoder->tensor == 0) {
        out = stpcpy(out, "{\"model\":");
        out = wire_json_put_string(out, encoder->model);
    }
    out = stpcpy(out, ",\"");
    out = stpcpy(out, tensor->name);
    return stpcpy(out, tensor->batched ? "\":[" : "\":");
}

/* Writes what separates a part of a row from the number before it, up to its own
 * bracket. */
static char *open_part(const struct native_encoder *encoder, char *out) {
    const struct wire_reply_tensor *tensor = &encoder->tensors[encoder->tensor];
    bool first_part = encoder->part == 0, first_row = first_part && encoder->row == 0;
    bool first_plane = first_row && encoder->plane == 0;

    if (first_plane && encoder->sequence == 0)
        out = open_tensor(encoder, out);
    else
        *out++ = ',';
    if (first_plane && tensor->plane_axis)
        *out++ = '[';
    if (first_row)
        *out++ = '[';
    if (first_part && tensor->num_parts > 0)
        *out++ = '[';
    *out++ = '[';
    return out;
}

/* Ends the part and all lists that end with it, and moves to the next part. */
static char *close_part(struct native_encoder *encoder, char *out) {
    const struct wire_reply_tensor *tensor = &encoder->tensors[encoder->tensor];

    encoder->column = 0;
    *out++ = ']';
    if (++encoder->part < wire_reply_parts(tensor))
        return out;

    encoder->part = 0;
    if (tensor->num_parts > 0)
        *out++ = ']';
    if (++encoder->row < wire_reply_rows(tensor, encoder->sequence))
        return out;

    encoder->row = 0;
    *out++ = ']';
    if (++encoder->plane < wire_reply_planes(tensor, encoder->sequence))
        return out;

    encoder->plane = 0;
    if (tensor->plane_axis)
        *out++ = ']';
    if (++encoder->sequence < tensor->num_sequences)
        return out;

    encoder->sequence = encoder->next = 0;
    if (tensor->batched)
        *out++ = ']';
    if (++encoder->tensor == encoder->num_tensors)
        *out++ = '}';
    return out;
}

/* Prints numbers with a comma after each. */
static char *put_numbers(const struct wire_reply_tensor *tensor, size_t first,
                         size_t count, char *out) {
    const void *numbers = wire_reply_number(tensor, first);
    if (!tensor->nullable)
        return wire_floats_print(numbers, count, out);
    for (size_t i = 0; i < count; i++) {
        out = tensor->integers ? wire_json_put_index(out, ((const int64_t *)numbers)[i])
                               : wire_json_put_number(out, ((const float *)numbers)[i]);
        *out++ = ',';
    }
    return out;
}

static size_t native_reply_fill(void *context, char *piece, size_t size) {
    struct native_encoder *encoder = context;
    char *out = piece, *end = piece + size;
    while (encoder->tensor < encoder->num_tensors && end - out >= WIRE_PIECE_MIN) {
        const struct wire_reply_tensor *tensor = &encoder->tensors[encoder->tensor];
        size_t width = wire_reply_width(tensor, encoder->sequence);
        if (encoder->column == 0)
            out = open_part(encoder, out);

        size_t count = (size_t)(end - out - ROW_END_BYTES) / NUMBER_BYTES;
        if (count > width - encoder->column)
            count = width - encoder->column;
        out = put_numbers(tensor, encoder->next, count, out);
        encoder->next += count;
        encoder->column += count;
        if (encoder->column == width)
            out = close_part(encoder, out - 1); /* replaces the last comma */
    }
    return (size_t)(out - piece);
}

/* --- sizes --- */

static size_t count_lists(const struct wire_reply_tensor *tensor) {
    size_t lists = tensor->num_sequences + 1;
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        pace_add(4);
        size_add_mul_saturating(&lists, wire_reply_planes(tensor, b),
                                wire_reply_rows(tensor, b) * (tensor->num_parts + 1) + 1);
    }
    return lists;
}

static size_t native_reply_bound(const struct wire_request *request) {
    size_t bound = KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX;
    struct wire_reply_tensor tensors[WIRE_NUM_RESULTS];
    size_t count = wire_reply_list(request, &(attn_result){0}, tensors);
    for (size_t i = 0; i < count; i++) {
        size_add_mul_saturating(&bound, wire_reply_count(&tensors[i]), NUMBER_BYTES);
        size_add_mul_saturating(&bound, count_lists(&tensors[i]), LIST_BYTES);
    }
    return bound;
}

/* --- struct wire_writer --- */

static void *native_reply_begin(struct arena *arena, const struct wire_request *request,
                                const attn_result *result,
                                struct wire_reply_head *ret_head,
                                struct wire_problem *ret_problem) {
    struct wire_request kept;
    struct native_encoder *encoder =
        wire_reply_begin(arena, sizeof *encoder, request, result, &kept, ret_problem);
    if (encoder == NULL)
        return NULL;

    *encoder = (struct native_encoder){.model = attn_model_get_info(kept.model)->name};
    encoder->num_tensors = wire_reply_list(&kept, result, encoder->tensors);
    *ret_head =
        (struct wire_reply_head){WIRE_MEDIA_TYPE_JSON, WIRE_NO_SIZE, WIRE_NO_SIZE};
    return encoder;
}

const struct wire_writer wire_native_writer = {
    .bound = native_reply_bound,
    .memory = wire_reply_lens_bytes,
    .begin = native_reply_begin,
    .fill = native_reply_fill,
    .smaller = "leave weights or heads out of need, ask for \"need_weights\": \"mean\", "
               "select by weights_heads and weights_queries, send fewer sequences",
};
