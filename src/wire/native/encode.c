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

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LIST_BYTES 3 /* [ ] and a comma */
/* {"model":""}, the names of all results, and brackets of lists. */
#define KEYS_BYTES 320
/* Reserved after the numbers of a row: for the end of all lists, and for the bytes that
 * the printer of numbers may touch. */
#define ROW_END_BYTES (16 + WIRE_FLOAT_PRINT_ROOM)

_Static_assert(KEYS_BYTES + WIRE_NOTE_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX +
                       WIRE_NUMBER_BYTES + ROW_END_BYTES <=
                   WIRE_PIECE_MIN,
               "the smallest piece has room for a number and all text before it");

/* A reply that is being written, and how far that has got. */
struct native_encoder {
    struct wire_reply reply;
    enum result_id first, id; /* of the results; NUM_RESULTS at the end */
    size_t sequence;          /* of it */
    size_t rank, shape[RESULT_AXES_MAX], index[RESULT_AXES_MAX]; /* of the next number */
    size_t next; /* among the numbers of the result */
};

/* --- text --- */

/* Moves to a sequence of a result, or to the next result that is wanted. */
static void move_to(struct native_encoder *encoder, enum result_id id, size_t sequence) {
    const struct wanted_results *wanted = &encoder->reply.wanted;

    while (id < NUM_RESULTS && !wanted->has[id])
        id++;
    encoder->id = id;
    encoder->sequence = sequence;
    if (id < NUM_RESULTS)
        encoder->rank = results_shape(wanted, id, sequence, encoder->shape);
}

/* Writes what comes before the first number of a result, up to its lists. */
static char *open_result(const struct native_encoder *encoder, char *out) {
    if (encoder->id == encoder->first) {
        out = stpcpy(out, "{\"model\":");
        out = wire_json_put_string(out, encoder->reply.wanted.info->name);
        out = wire_reply_put_note(encoder->reply.note, out);
    }
    out = stpcpy(out, ",\"");
    out = stpcpy(out, result_table[encoder->id].name);
    return stpcpy(out, encoder->reply.batched ? "\":[" : "\":");
}

/* Writes what separates a row from the number before it, and a bracket for each list that
 * begins with it. */
static char *open_row(const struct native_encoder *encoder, char *out) {
    size_t axis = encoder->rank - 1;

    while (axis > 0 && encoder->index[axis - 1] == 0)
        axis--;
    if (axis == 0 && encoder->sequence == 0)
        out = open_result(encoder, out);
    else
        *out++ = ',';
    for (; axis < encoder->rank; axis++)
        *out++ = '[';
    return out;
}

/* Ends the row and all lists that end with it, and moves to the next row. */
static char *close_row(struct native_encoder *encoder, char *out) {
    size_t axis = encoder->rank - 1;

    encoder->index[axis] = 0;
    *out++ = ']';
    while (axis-- > 0) {
        if (++encoder->index[axis] < encoder->shape[axis])
            return out;
        encoder->index[axis] = 0;
        *out++ = ']';
    }
    if (encoder->sequence + 1 < encoder->reply.batch.num_sequences) {
        move_to(encoder, encoder->id, encoder->sequence + 1);
        return out;
    }

    encoder->next = 0;
    move_to(encoder, encoder->id + 1, 0);
    if (encoder->reply.batched)
        *out++ = ']';
    if (encoder->id == NUM_RESULTS)
        *out++ = '}';
    return out;
}

/* Prints an index of 0..INT32_MAX; null when it is negative. */
static char *put_index(char *out, int64_t index) {
    return index >= 0 ? out + sprintf(out, "%" PRId64, index) : stpcpy(out, "null");
}

/* Prints numbers of a result with a comma after each. */
static char *put_numbers(const struct native_encoder *encoder, size_t count, char *out) {
    const struct result *row = &result_table[encoder->id];
    const void *all = result_numbers(&encoder->reply.result, encoder->id);

    if (!row->nullable)
        return wire_floats_print((const float *)all + encoder->next, count, out);
    for (size_t i = encoder->next; i < encoder->next + count; i++) {
        out = row->integers ? put_index(out, ((const int64_t *)all)[i])
                            : wire_json_put_number(out, ((const float *)all)[i]);
        *out++ = ',';
    }
    return out;
}

static size_t native_reply_fill(void *context, char *piece, size_t size) {
    struct native_encoder *encoder = context;
    char *out = piece, *end = piece + size;
    while (encoder->id < NUM_RESULTS && end - out >= WIRE_PIECE_MIN) {
        size_t *column = &encoder->index[encoder->rank - 1];
        size_t width = encoder->shape[encoder->rank - 1];
        if (*column == 0)
            out = open_row(encoder, out);

        size_t count = (size_t)(end - out - ROW_END_BYTES) / WIRE_NUMBER_BYTES;
        if (count > width - *column)
            count = width - *column;
        out = put_numbers(encoder, count, out);
        encoder->next += count;
        *column += count;
        if (*column == width)
            out = close_row(encoder, out - 1); /* replaces the last comma */
    }
    return (size_t)(out - piece);
}

/* --- sizes --- */

/* Returns how many lists a result has. Those of a matrix count as in a plane. */
static size_t count_lists(const struct wire_reply *reply, enum result_id id) {
    size_t lists = reply->batch.num_sequences + 1;

    for (size_t b = 0; b < reply->batch.num_sequences; b++) {
        size_t shape[RESULT_AXES_MAX], count = 1;
        size_t rank = results_shape(&reply->wanted, id, b, shape);
        pace_add(4);
        size_add_saturating(&lists, rank == 2);
        for (size_t axis = 0; axis + 1 < rank; axis++) {
            count *= shape[axis]; /* fits, as attn_plan() has found */
            size_add_saturating(&lists, count);
        }
    }
    return lists;
}

static size_t native_reply_bound(const struct wire_request *request) {
    size_t bound = KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX;
    struct wire_reply reply;

    bound += request->note != NULL ? WIRE_NOTE_BYTES : 0;
    wire_reply_init(&reply, request, &(attn_result){0});
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        if (!reply.wanted.has[id])
            continue;
        size_add_mul_saturating(&bound, wire_reply_count(&reply, id), WIRE_NUMBER_BYTES);
        size_add_mul_saturating(&bound, count_lists(&reply, id), LIST_BYTES);
    }
    return bound;
}

/* --- struct wire_writer --- */

static void *native_reply_begin(struct arena *arena, const struct wire_request *request,
                                const attn_result *result,
                                struct wire_reply_head *ret_head,
                                struct wire_problem *ret_problem) {
    struct native_encoder *encoder =
        wire_reply_begin(arena, sizeof *encoder, request, result, ret_problem);
    if (encoder == NULL)
        return NULL;

    move_to(encoder, 0, 0);
    encoder->first = encoder->id;
    *ret_head =
        (struct wire_reply_head){WIRE_MEDIA_TYPE_JSON, WIRE_NO_SIZE, WIRE_NO_SIZE};
    return encoder;
}

const struct wire_writer wire_native_writer = {
    .bound = native_reply_bound,
    .memory = wire_reply_copies_bytes,
    .begin = native_reply_begin,
    .fill = native_reply_fill,
    .smaller =
        "leave weights or heads out of need, "
        "ask for \"need_weights\": \"mean\", " WIRE_SELECT_FEWER ", send fewer sequences",
};
