/* SPDX-License-Identifier: Apache-2.0 */
/* native_encode.c: results, straight into the reply's text. */
#include "base/size.h"
#include "wire/float_text.h"
#include "wire/json_text.h"
#include "wire/native.h"

#include <math.h>
#include <stdio.h>

#define NUMBER_BYTES (WIRE_FLOAT_TEXT_MAX + 1) /* with its comma */
#define LIST_BYTES   3                         /* [ ] and a comma */
#define KEYS_BYTES   64 /* {"model":"","outputs":,"attention_weights":} and its lists' */

/* What is being written. `body` may grow; `problem` says why writing failed. */
struct writer {
    struct buf *body;
    struct wire_problem *problem;
};

/* One tensor of the reply: sequences of planes of rows. */
struct lists {
    const char *name;
    const float *numbers; /* the next row */
    size_t planes;        /* lists of rows in each sequence, e.g. one per head */
    bool plane_axis;      /* false: one plane, written without its list */
    bool batched;
};

static bool check_memory(struct writer *writer, attnd_status status) {
    if (status == ATTND_OK)
        return true;
    wire_problem_set_no_memory(writer->problem);
    return false;
}

static bool put(struct writer *writer, const char *text) {
    return check_memory(writer, buf_append_text(writer->body, text));
}

static bool refuse_number(struct writer *writer, const struct lists *lists,
                          size_t sequence, size_t plane, size_t row, size_t column) {
    char where[128];
    int used = snprintf(where, sizeof where, "%s", lists->name);
    const size_t index[] = {sequence, plane, row, column};
    const bool shown[] = {lists->batched, lists->plane_axis, true, true};
    for (size_t i = 0; i < 4; i++) {
        if (shown[i])
            used +=
                snprintf(where + used, sizeof where - (size_t)used, "[%zu]", index[i]);
    }
    wire_problem_set(
        writer->problem, 422, "Result not finite", NULL,
        "%s is not finite: float32 overflowed on the way; send smaller numbers", where);
    return false;
}

/* Writes `width` numbers as a list; returns how many, less than `width` at one that is
 * not finite. There is room. */
static size_t put_numbers(struct buf *body, const float *numbers, size_t width) {
    char *out = body->data + body->size;
    size_t i = 0;
    *out++ = '[';
    for (; i < width && isfinite(numbers[i]); i++) {
        if (i > 0)
            *out++ = ',';
        out += wire_float_text(numbers[i], out);
    }
    *out++ = ']';
    body->size = (size_t)(out - body->data);
    return i;
}

static bool put_rows(struct writer *writer, struct lists *lists, size_t sequence,
                     size_t plane, size_t rows, size_t width) {
    for (size_t row = 0; row < rows; row++, lists->numbers += width) {
        size_t bytes = LIST_BYTES;
        attnd_status status = ATTND_E_NOMEM;
        if (size_add_mul(&bytes, width, NUMBER_BYTES) &&
            size_add(bytes, WIRE_FLOAT_TEXT_ROOM, &bytes))
            status = buf_reserve(writer->body, bytes);
        if (!check_memory(writer, status) || (row > 0 && !put(writer, ",")))
            return false;
        size_t written = put_numbers(writer->body, lists->numbers, width);
        if (written < width)
            return refuse_number(writer, lists, sequence, plane, row, written);
    }
    return true;
}

static bool put_sequence(struct writer *writer, struct lists *lists, size_t sequence,
                         size_t rows, size_t width) {
    if (lists->plane_axis && !put(writer, "["))
        return false;
    for (size_t plane = 0; plane < lists->planes; plane++) {
        if (!put(writer, plane > 0 ? ",[" : "[") ||
            !put_rows(writer, lists, sequence, plane, rows, width) || !put(writer, "]"))
            return false;
    }
    return !lists->plane_axis || put(writer, "]");
}

/* `widths` are those of each sequence's rows; NULL when all are `width`. */
static bool put_lists(struct writer *writer, const attn_request *request,
                      struct lists *lists, const size_t *widths, size_t width) {
    if (!put(writer, ",\"") || !put(writer, lists->name) || !put(writer, "\":") ||
        (lists->batched && !put(writer, "[")))
        return false;
    for (size_t b = 0; b < request->num_sequences; b++) {
        if ((b > 0 && !put(writer, ",")) ||
            !put_sequence(writer, lists, b, request->query_lens[b],
                          widths != NULL ? widths[b] : width))
            return false;
    }
    return !lists->batched || put(writer, "]");
}

bool wire_native_encode(const struct wire_call *call, const attn_result *result,
                        struct buf *body, struct wire_problem *ret_problem) {
    const attn_model_info *info = attn_model_get_info(call->model);
    const attn_request *request = &call->request;
    struct writer writer = {body, ret_problem};
    struct lists outputs = {"outputs", result->outputs, 1, false, call->batched};
    if (!put(&writer, "{\"model\":") ||
        !check_memory(&writer, wire_json_string(body, info->name)) ||
        !put_lists(&writer, request, &outputs, NULL, info->out_size))
        return false;
    if (request->need_weights != ATTN_WEIGHTS_NONE) {
        bool all = request->need_weights == ATTN_WEIGHTS_ALL;
        struct lists weights = {"attention_weights", result->weights,
                                all ? info->num_heads : 1, all, call->batched};
        if (!put_lists(&writer, request, &weights, request->key_lens, 0))
            return false;
    }
    return put(&writer, "}");
}

size_t wire_native_reply_bound(const struct wire_call *call, const attn_sizes *sizes) {
    const attn_model_info *info = attn_model_get_info(call->model);
    attn_need_weights need = call->request.need_weights;
    size_t planes = need == ATTN_WEIGHTS_ALL ? info->num_heads : 1;
    size_t weights = need == ATTN_WEIGHTS_NONE ? 0 : sizes->weights;
    size_t bound = KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX;
    size_t rows, lists; /* lists of planes, sequences included */
    if (!size_mul(sizes->num_queries, planes, &rows) ||
        !size_mul(call->request.num_sequences, planes, &lists) ||
        !size_add_mul(&lists, call->request.num_sequences, 3) ||
        !size_add(rows, sizes->num_queries, &rows) ||
        !size_add_mul(&bound, sizes->outputs, NUMBER_BYTES) ||
        !size_add_mul(&bound, weights, NUMBER_BYTES) ||
        !size_add_mul(&bound, rows, LIST_BYTES) ||
        !size_add_mul(&bound, lists, LIST_BYTES))
        return SIZE_MAX;
    return bound;
}
