/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: writes a reply as JSON, piece by piece.
 *
 * A piece may end after any number. The brackets around a row are written together with
 * it, so the encoder has only to remember the position of the next number. */
#include "base/size.h"
#include "wire/decimal/print.h"
#include "wire/json/write.h"
#include "wire/media.h"
#include "wire/native/native.h"

#include <string.h>

#define NUMBER_BYTES (WIRE_FLOAT_PRINT_MAX + 1) /* with its comma */
#define LIST_BYTES   3                          /* [ ] and a comma */
/* {"model":"","outputs":,"attention_weights":} and the brackets of its lists. */
#define KEYS_BYTES 64
/* Reserved after the numbers of a row: for the end of all lists, and for the bytes that
 * the printer of numbers may touch. */
#define ROW_END_BYTES (16 + WIRE_FLOAT_PRINT_ROOM)

_Static_assert(KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX + NUMBER_BYTES +
                       ROW_END_BYTES <=
                   WIRE_PIECE_MIN,
               "the smallest piece has room for a number and all text before it");

void wire_native_encoder_init(struct wire_native_encoder *encoder,
                              const struct wire_request *request,
                              const attn_result *result) {
    *encoder = (struct wire_native_encoder){
        .model = attn_model_get_info(request->model)->name,
        .num_tensors = 1,
        .tensors = {wire_reply_outputs(request, result)},
        .next = result->outputs,
    };
    if (request->batch.need_weights != ATTN_WEIGHTS_NONE)
        encoder->tensors[encoder->num_tensors++] = wire_reply_weights(request, result);
}

/* --- text --- */

/* Writes what separates a row from the number before it, up to its own bracket. */
static char *open_row(const struct wire_native_encoder *encoder, char *out) {
    const struct wire_reply_tensor *tensor = &encoder->tensors[encoder->tensor];
    if (encoder->row > 0)
        return stpcpy(out, ",[");
    if (encoder->plane > 0)
        return stpcpy(out, ",[[");

    if (encoder->sequence > 0) {
        *out++ = ',';
    } else {
        if (encoder->tensor == 0) {
            out = stpcpy(out, "{\"model\":");
            out = wire_json_put_string(out, encoder->model);
        }
        out = stpcpy(out, ",\"");
        out = stpcpy(out, tensor->name);
        out = stpcpy(out, tensor->batched ? "\":[" : "\":");
    }
    return stpcpy(out, tensor->plane_axis ? "[[[" : "[[");
}

/* Ends the row and all lists that end with it, and moves to the next row. */
static char *close_row(struct wire_native_encoder *encoder, char *out) {
    const struct wire_reply_tensor *tensor = &encoder->tensors[encoder->tensor];

    encoder->column = 0;
    *out++ = ']';
    if (++encoder->row < wire_reply_rows(tensor, encoder->sequence))
        return out;

    encoder->row = 0;
    *out++ = ']';
    if (++encoder->plane < tensor->num_planes)
        return out;

    encoder->plane = 0;
    if (tensor->plane_axis)
        *out++ = ']';
    if (++encoder->sequence < tensor->num_sequences)
        return out;

    encoder->sequence = 0;
    if (tensor->batched)
        *out++ = ']';
    if (++encoder->tensor == encoder->num_tensors)
        *out++ = '}';
    else
        encoder->next = encoder->tensors[encoder->tensor].numbers;
    return out;
}

size_t wire_native_encoder_fill(struct wire_native_encoder *encoder, char *piece,
                                size_t size) {
    char *out = piece, *end = piece + size;
    while (encoder->tensor < encoder->num_tensors && end - out >= WIRE_PIECE_MIN) {
        size_t width =
            wire_reply_width(&encoder->tensors[encoder->tensor], encoder->sequence);
        if (encoder->column == 0)
            out = open_row(encoder, out);

        size_t count = (size_t)(end - out - ROW_END_BYTES) / NUMBER_BYTES;
        if (count > width - encoder->column)
            count = width - encoder->column;
        out = wire_floats_print(encoder->next, count, out);
        encoder->next += count;
        encoder->column += count;
        if (encoder->column == width)
            out = close_row(encoder, out - 1); /* replaces the last comma */
    }
    return (size_t)(out - piece);
}

/* --- sizes --- */

size_t wire_native_reply_bound(const struct wire_request *request,
                               const attn_sizes *sizes) {
    const attn_request *batch = &request->batch;
    size_t sequences = batch->num_sequences;
    size_t planes = wire_reply_weights(request, &(attn_result){0}).num_planes;
    size_t bound = KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX;
    size_t queries = sizes->num_queries;
    size_t rows, lists; /* lists of planes, sequences included */
    if (batch->weights_queries != NULL)
        queries = sequences * batch->num_weights_queries; /* not more than there are */

    if (!size_mul(queries, planes, &rows) || !size_mul(sequences, planes, &lists) ||
        !size_add_mul(&lists, sequences, 3) ||
        !size_add(rows, sizes->num_queries, &rows) ||
        !size_add_mul(&bound, sizes->outputs, NUMBER_BYTES) ||
        !size_add_mul(&bound, sizes->weights, NUMBER_BYTES) ||
        !size_add_mul(&bound, rows, LIST_BYTES) ||
        !size_add_mul(&bound, lists, LIST_BYTES))
        return SIZE_MAX;
    return bound;
}

/* --- struct wire_writer --- */

static void *native_reply_begin(struct arena *arena, const struct wire_request *request,
                                const attn_result *result, struct wire_pace *pace,
                                struct wire_reply_head *ret_head,
                                struct wire_problem *ret_problem) {
    struct wire_request kept;
    struct wire_native_encoder *encoder = wire_reply_begin(
        arena, sizeof *encoder, request, result, pace, &kept, ret_problem);
    if (encoder == NULL)
        return NULL;

    wire_native_encoder_init(encoder, &kept, result);
    *ret_head =
        (struct wire_reply_head){WIRE_MEDIA_TYPE_JSON, WIRE_NO_SIZE, WIRE_NO_SIZE};
    return encoder;
}

static size_t native_reply_fill(void *encoder, char *piece, size_t size) {
    return wire_native_encoder_fill(encoder, piece, size);
}

const struct wire_writer wire_native_writer = {
    .bound = wire_native_reply_bound,
    .memory = wire_reply_lens_bytes,
    .begin = native_reply_begin,
    .fill = native_reply_fill,
    .smaller = "ask for \"need_weights\": \"mean\" or false, "
               "select by weights_heads and weights_queries, or send fewer sequences",
};
