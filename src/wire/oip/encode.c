/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: replies of the Open Inference Protocol. A reply is a few parts after each
 * other, each of them text that is ready, numbers that become text, or bytes. */
#include "base/endian.h"
#include "base/size.h"
#include "wire/decimal/print.h"
#include "wire/json/write.h"
#include "wire/oip/oip.h"
#include "wire/reply.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_BYTES (WIRE_FLOAT_PRINT_MAX + 1) /* with its comma */
#define NUMBER_ROOM                                                                      \
    (NUMBER_BYTES +                                                                      \
     WIRE_FLOAT_PRINT_ROOM) /* that the printer may touch                  \
                                           */
/* All text but numbers, id and the model's name. */
#define TEXT_BYTES ((size_t)1024)
#define NAME_BYTES ((size_t)ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX + 3)
/* For each output: text, JSON numbers or bytes; and the end of all. */
#define PARTS_MAX 5

_Static_assert(NUMBER_ROOM <= WIRE_PIECE_MIN, "the least piece takes a number");

struct part {
    enum { PART_BYTES, PART_NUMBERS } kind;
    const void *data; /* bytes, or floats */
    size_t count;     /* of them */
};

struct encoder {
    struct part parts[PARTS_MAX];
    size_t num_parts;
    size_t part, done; /* where it is: a part, and how much of it was written */
};

/* One tensor of a reply. */
struct tensor {
    const char *name;
    const float *numbers;
    size_t rank, shape[4], count;
    bool binary;
};

/* Says what the output `i` of the reply is; `result` may be NULL. */
static struct tensor get_tensor(const struct wire_request *request,
                                const attn_result *result, size_t i) {
    const attn_model_info *info = attn_model_get_info(request->model);
    const attn_request *batch = &request->batch;
    bool weights = request->oip->outputs[i].weights;
    struct tensor tensor = {.name = weights ? "attention_weights" : "outputs",
                            .binary = request->oip->outputs[i].binary,
                            .count = 1};
    if (result != NULL)
        tensor.numbers = weights ? result->weights : result->outputs;
    if (request->batched)
        tensor.shape[tensor.rank++] = batch->num_sequences;
    if (weights && batch->need_weights == ATTN_WEIGHTS_ALL)
        tensor.shape[tensor.rank++] = info->num_heads;
    tensor.shape[tensor.rank++] = batch->query_lens[0]; /* all alike */
    tensor.shape[tensor.rank++] = weights ? batch->key_lens[0] : info->out_size;
    for (size_t axis = 0; axis < tensor.rank; axis++)
        tensor.count *= tensor.shape[axis]; /* attn_plan() has passed it */
    return tensor;
}

/* --- sizes --- */

static size_t text_bytes(const struct wire_request *request) {
    return TEXT_BYTES + NAME_BYTES + request->oip->id_size; /* the body's: cannot wrap */
}

static size_t bound(const struct wire_request *request, const attn_sizes *sizes) {
    size_t bytes = text_bytes(request);
    for (size_t i = 0; i < request->oip->num_outputs; i++) {
        size_t count = request->oip->outputs[i].weights ? sizes->weights : sizes->outputs;
        if (!size_add_mul(&bytes, count,
                          request->oip->outputs[i].binary ? sizeof(float) : NUMBER_BYTES))
            return SIZE_MAX;
    }
    return bytes;
}

/* The text, which is ready from the beginning. */
static size_t memory(const struct wire_request *request) {
    return text_bytes(request);
}

/* --- the beginning --- */

/* Checks the outputs that the reply names, and no others. */
static bool check_result(const struct wire_request *request, const attn_result *result,
                         struct wire_problem *problem) {
    for (size_t i = 0; i < request->oip->num_outputs; i++) {
        const struct wire_reply_tensor tensor = request->oip->outputs[i].weights
                                                    ? wire_reply_weights(request, result)
                                                    : wire_reply_outputs(request, result);
        assert(tensor.numbers != NULL); /* named outputs are computed */
        if (!wire_reply_tensor_check(&tensor, problem))
            return false;
    }
    return true;
}

static void add_part(struct encoder *encoder, int kind, const void *data, size_t count) {
    encoder->parts[encoder->num_parts++] = (struct part){kind, data, count};
}

static char *put_tensor(char *out, const struct tensor *tensor) {
    out +=
        sprintf(out, "{\"name\":\"%s\",\"datatype\":\"FP32\",\"shape\":", tensor->name);
    for (size_t i = 0; i < tensor->rank; i++)
        out += sprintf(out, "%c%zu", i == 0 ? '[' : ',', tensor->shape[i]);
    if (tensor->binary)
        return out + sprintf(out, "],\"parameters\":{\"binary_data_size\":%zu}}",
                             tensor->count * sizeof(float));
    return stpcpy(out, "],\"data\":[");
}

/* Cuts the reply into parts; `out` has room for text_bytes(). */
static void lay_out(const struct wire_request *request, const attn_result *result,
                    struct encoder *encoder, char *out) {
    const struct wire_oip_reply *reply = request->oip;
    const char *start = out;
    out = stpcpy(out, "{\"model_name\":");
    out = wire_json_put_string(out, attn_model_get_info(request->model)->name);
    out = stpcpy(out, ",\"model_version\":\"" WIRE_OIP_VERSION "\"");
    if (reply->id != NULL) {
        out = stpcpy(out, ",\"id\":");
        memcpy(out, reply->id, reply->id_size);
        out += reply->id_size;
    }
    out = stpcpy(out, ",\"outputs\":[");
    for (size_t i = 0; i < reply->num_outputs; i++) {
        struct tensor tensor = get_tensor(request, result, i);
        if (i > 0)
            *out++ = ',';
        out = put_tensor(out, &tensor);
        if (tensor.binary)
            continue;
        add_part(encoder, PART_BYTES, start, (size_t)(out - start));
        add_part(encoder, PART_NUMBERS, tensor.numbers, tensor.count);
        start = out;
        out = stpcpy(out, "]}");
    }
    out = stpcpy(out, "]}");
    add_part(encoder, PART_BYTES, start, (size_t)(out - start));
}

/* Returns the bytes of `count` numbers with a comma between two. */
static size_t measure(const float *numbers, size_t count) {
    char text[NUMBER_ROOM];
    assert(numbers != NULL);
    size_t bytes = count - 1;
    for (size_t i = 0; i < count; i++)
        bytes += wire_float_print(numbers[i], text);
    return bytes;
}

/* Adds the binary data, and says how long all is. Where there is JSON before it that has
 * numbers, they are printed once more to know their size. */
static void add_binary(const struct wire_request *request, const attn_result *result,
                       struct encoder *encoder, struct wire_reply_head *head) {
    size_t json_parts = encoder->num_parts;
    *head = (struct wire_reply_head){"application/json", WIRE_NO_SIZE, WIRE_NO_SIZE};
    for (size_t i = 0; i < request->oip->num_outputs; i++) {
        struct tensor tensor = get_tensor(request, result, i);
        if (tensor.binary)
            add_part(encoder, PART_BYTES, tensor.numbers, tensor.count * sizeof(float));
    }
    if (encoder->num_parts == json_parts)
        return;
    head->content_type = "application/octet-stream";
    head->json_size = 0;
    for (size_t i = 0; i < json_parts; i++) {
        const struct part *part = &encoder->parts[i];
        head->json_size +=
            part->kind == PART_NUMBERS ? measure(part->data, part->count) : part->count;
    }
    head->size = head->json_size;
    for (size_t i = json_parts; i < encoder->num_parts; i++)
        head->size += encoder->parts[i].count;
}

static void *begin(struct arena *arena, const struct wire_request *request,
                   const attn_result *result, struct wire_reply_head *ret_head,
                   struct wire_problem *ret_problem) {
    struct encoder *encoder = arena_alloc(arena, 1, sizeof *encoder);
    char *text = arena_alloc(arena, text_bytes(request), 1);
    if (encoder == NULL || text == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    if (!check_result(request, result, ret_problem))
        return NULL;
    *encoder = (struct encoder){0};
    lay_out(request, result, encoder, text);
    add_binary(request, result, encoder, ret_head);
    return encoder;
}

/* --- piece by piece --- */

static char *put_bytes(struct encoder *encoder, const struct part *part, char *out,
                       const char *end) {
    size_t count = part->count - encoder->done, room = (size_t)(end - out);
    if (count > room)
        count = room;
    memcpy(out, (const char *)part->data + encoder->done, count);
    encoder->done += count;
    return out + count;
}

static char *put_numbers(struct encoder *encoder, const struct part *part, char *out,
                         const char *end) {
    const float *numbers = part->data;
    while (encoder->done < part->count && end - out >= NUMBER_ROOM) {
        out += wire_float_print(numbers[encoder->done++], out);
        if (encoder->done < part->count)
            *out++ = ',';
    }
    return out;
}

static size_t fill(void *context, char *piece, size_t size) {
    struct encoder *encoder = context;
    char *out = piece;
    while (encoder->part < encoder->num_parts) {
        const struct part *part = &encoder->parts[encoder->part];
        out = (part->kind == PART_NUMBERS ? put_numbers : put_bytes)(encoder, part, out,
                                                                     piece + size);
        if (encoder->done < part->count)
            break; /* no room for more */
        encoder->part++;
        encoder->done = 0;
    }
    return (size_t)(out - piece);
}

const struct wire_writer wire_oip_writer = {
    bound, memory, begin, fill,
    "leave attention_weights out of outputs or ask for \"need_weights\": \"mean\", take "
    "them as binary data, or send fewer sequences"};

/* --- errors --- */

static attn_status print_error(const struct wire_problem *problem, struct buf *body) {
    char text[sizeof problem->detail + 64];
    snprintf(text, sizeof text, "%.60s: %s", problem->title, problem->detail);
    attn_status status = buf_append_text(body, "{\"error\":");
    if (status == ATTN_OK)
        status = wire_json_add_string(body, text);
    return status == ATTN_OK ? buf_append_text(body, "}") : status;
}

static char no_memory[] = "{\"error\":\"Out of memory: retry later\"}";

const struct wire_error_format wire_oip_error_format = {"application/json", print_error,
                                                        no_memory};
