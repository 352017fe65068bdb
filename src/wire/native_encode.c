/* SPDX-License-Identifier: Apache-2.0 */
/* native_encode.c: results, straight into the reply's text, piece by piece.
 *
 * A piece may end after any number. The brackets around a row are written with it, so the
 * position of the next number is all that has to be remembered. */
#include "base/size.h"
#include "wire/float_text.h"
#include "wire/json_text.h"
#include "wire/native.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_BYTES (WIRE_FLOAT_TEXT_MAX + 1) /* with its comma */
#define LIST_BYTES   3                         /* [ ] and a comma */
#define KEYS_BYTES   64 /* {"model":"","outputs":,"attention_weights":} and its lists' */
/* Kept free behind the numbers of a row: for the end of all lists, and for what the
 * printer of numbers may touch. */
#define ROW_END_BYTES (16 + WIRE_FLOAT_TEXT_ROOM)

_Static_assert(KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX + NUMBER_BYTES +
                       ROW_END_BYTES <=
                   WIRE_PIECE_LEAST,
               "the least piece takes all in front of a number, and the number");

/* --- where in the reply --- */

static size_t num_rows(const struct wire_native_lists *lists, size_t sequence) {
    return lists->rows != NULL ? lists->rows[sequence] : lists->num_rows;
}

static size_t row_width(const struct wire_native_lists *lists, size_t sequence) {
    return lists->widths != NULL ? lists->widths[sequence] : lists->width;
}

void wire_native_encoder_init(struct wire_native_encoder *encoder,
                              const struct wire_call *call, const attn_result *result) {
    const attn_model_info *info = attn_model_get_info(call->model);
    const attn_request *request = &call->request;
    const struct wire_selection *selection = &call->selection;
    *encoder = (struct wire_native_encoder){
        .model = info->name,
        .num_sequences = request->num_sequences,
        .batched = call->batched,
        .num_lists = 1,
        .lists = {{.name = "outputs",
                   .numbers = result->outputs,
                   .planes = 1,
                   .rows = request->query_lens,
                   .width = info->out_size}},
        .next = result->outputs,
    };
    if (request->need_weights == ATTN_WEIGHTS_NONE)
        return;
    bool all = request->need_weights == ATTN_WEIGHTS_ALL;
    size_t heads = selection->heads != NULL ? selection->num_heads : info->num_heads;
    encoder->lists[encoder->num_lists++] = (struct wire_native_lists){
        .name = "attention_weights",
        .numbers = result->weights,
        .planes = all ? heads : 1,
        .plane_axis = all,
        .rows = selection->queries != NULL ? NULL : request->query_lens,
        .num_rows = selection->num_queries,
        .widths = request->key_lens,
    };
}

static void refuse_number(const struct wire_native_encoder *encoder,
                          const struct wire_native_lists *lists, const size_t index[4],
                          struct wire_problem *ret_problem) {
    char where[128];
    int used = snprintf(where, sizeof where, "%s", lists->name);
    const bool shown[] = {encoder->batched, lists->plane_axis, true, true};
    for (size_t i = 0; i < 4; i++) {
        if (shown[i])
            used +=
                snprintf(where + used, sizeof where - (size_t)used, "[%zu]", index[i]);
    }
    wire_problem_set(
        ret_problem, 422, "Result not finite", NULL,
        "%s is not finite: float32 overflowed on the way; send smaller numbers", where);
}

static bool check_lists(const struct wire_native_encoder *encoder,
                        const struct wire_native_lists *lists,
                        struct wire_problem *ret_problem) {
    const float *numbers = lists->numbers;
    for (size_t b = 0; b < encoder->num_sequences; b++) {
        size_t rows = num_rows(lists, b), width = row_width(lists, b);
        for (size_t i = 0; i < lists->planes * rows; i++, numbers += width) {
            if (wire_all_finite(numbers, width))
                continue;
            size_t column = 0;
            while (isfinite(numbers[column]))
                column++;
            refuse_number(encoder, lists, (size_t[]){b, i / rows, i % rows, column},
                          ret_problem);
            return false;
        }
    }
    return true;
}

bool wire_native_encoder_check(const struct wire_native_encoder *encoder,
                               struct wire_problem *ret_problem) {
    for (size_t i = 0; i < encoder->num_lists; i++) {
        if (!check_lists(encoder, &encoder->lists[i], ret_problem))
            return false;
    }
    return true;
}

/* --- text --- */

/* What stands between the number before and the row that begins here, with its bracket.
 */
static char *open_row(const struct wire_native_encoder *encoder, char *out) {
    const struct wire_native_lists *lists = &encoder->lists[encoder->list];
    if (encoder->row > 0)
        return stpcpy(out, ",[");
    if (encoder->plane > 0)
        return stpcpy(out, ",[[");
    if (encoder->sequence > 0) {
        *out++ = ',';
    } else {
        if (encoder->list == 0) {
            out = stpcpy(out, "{\"model\":");
            out = wire_json_put_string(out, encoder->model);
        }
        out = stpcpy(out, ",\"");
        out = stpcpy(out, lists->name);
        out = stpcpy(out, encoder->batched ? "\":[" : "\":");
    }
    return stpcpy(out, lists->plane_axis ? "[[[" : "[[");
}

/* Ends the row, and all lists that end with it; moves on to the next row. */
static char *close_row(struct wire_native_encoder *encoder, char *out) {
    const struct wire_native_lists *lists = &encoder->lists[encoder->list];
    encoder->column = 0;
    *out++ = ']';
    if (++encoder->row < num_rows(lists, encoder->sequence))
        return out;
    encoder->row = 0;
    *out++ = ']';
    if (++encoder->plane < lists->planes)
        return out;
    encoder->plane = 0;
    if (lists->plane_axis)
        *out++ = ']';
    if (++encoder->sequence < encoder->num_sequences)
        return out;
    encoder->sequence = 0;
    if (encoder->batched)
        *out++ = ']';
    if (++encoder->list == encoder->num_lists)
        *out++ = '}';
    else
        encoder->next = encoder->lists[encoder->list].numbers;
    return out;
}

size_t wire_native_encoder_fill(struct wire_native_encoder *encoder, char *piece,
                                size_t size) {
    char *out = piece, *end = piece + size;
    while (encoder->list < encoder->num_lists && end - out >= WIRE_PIECE_LEAST) {
        size_t width = row_width(&encoder->lists[encoder->list], encoder->sequence);
        if (encoder->column == 0)
            out = open_row(encoder, out);
        size_t count = (size_t)(end - out - ROW_END_BYTES) / NUMBER_BYTES;
        if (count > width - encoder->column)
            count = width - encoder->column;
        out = wire_floats_text(encoder->next, count, out);
        encoder->next += count;
        encoder->column += count;
        if (encoder->column == width)
            out = close_row(encoder, out - 1); /* in place of the last comma */
    }
    return (size_t)(out - piece);
}

/* --- sizes --- */

size_t wire_native_reply_bound(const struct wire_call *call, const attn_sizes *sizes) {
    const attn_model_info *info = attn_model_get_info(call->model);
    const attn_request *request = &call->request;
    const struct wire_selection *selection = &call->selection;
    size_t planes = request->need_weights != ATTN_WEIGHTS_ALL ? 1
                    : selection->heads != NULL                ? selection->num_heads
                                                              : info->num_heads;
    size_t queries = selection->queries != NULL
                         ? request->num_sequences * selection->num_queries
                         : sizes->num_queries; /* at most those */
    size_t weights = wire_call_num_weights(call, sizes);
    size_t bound = KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX;
    size_t rows, lists; /* lists of planes, sequences included */
    if (!size_mul(queries, planes, &rows) ||
        !size_mul(request->num_sequences, planes, &lists) ||
        !size_add_mul(&lists, request->num_sequences, 3) ||
        !size_add(rows, sizes->num_queries, &rows) ||
        !size_add_mul(&bound, sizes->outputs, NUMBER_BYTES) ||
        !size_add_mul(&bound, weights, NUMBER_BYTES) ||
        !size_add_mul(&bound, rows, LIST_BYTES) ||
        !size_add_mul(&bound, lists, LIST_BYTES))
        return SIZE_MAX;
    return bound;
}
