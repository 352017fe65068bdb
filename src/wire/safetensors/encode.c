/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: replies in safetensors: a header, the lengths of sequences where a
 * batch has no padding, outputs, attention weights. Lengths come first, so that each
 * tensor stands at a multiple of its elements' size. */
#include "base/size.h"
#include "wire/json/write.h"
#include "wire/reply.h"
#include "wire/safetensors/safetensors.h"
#include "wire/selection.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#define SMALLER                                                                          \
    "set need_weights to mean or false, select by weights_heads and weights_queries, "   \
    "or send fewer sequences"
#define PARTS_MAX   4 /* query_lens, key_lens, outputs, attention_weights */
#define RANK_MAX    4
#define LENGTH      8   /* bytes in front of the JSON */
#define ENTRY_BYTES 256 /* most of a tensor's entry: its name and 6 numbers */
#define HEADER_MAX                                                                       \
    (LENGTH + 64 + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX + PARTS_MAX * ENTRY_BYTES)

/* One tensor of a reply. */
struct part {
    const char *name, *dtype;
    size_t rank, shape[RANK_MAX];
    size_t bytes;
    const void *data; /* little-endian already */
};

/* A reply that is being written, and how far it is. */
struct encoder {
    char header[HEADER_MAX];
    size_t header_size;
    struct part parts[PARTS_MAX];
    size_t num_parts;
    size_t part, sent; /* bytes sent of the header, then of each part */
    bool header_sent;
};

static bool all_equal(const size_t *lens, size_t count) {
    for (size_t b = 1; b < count; b++) {
        if (lens[b] != lens[0])
            return false;
    }
    return true;
}

/* Whether the sequences follow each other with lengths beside them. */
static bool is_packed(const struct wire_request *request) {
    const attn_request *batch = &request->batch;
    return request->packed || !all_equal(batch->query_lens, batch->num_sequences) ||
           !all_equal(batch->key_lens, batch->num_sequences);
}

static struct part *add_part(struct encoder *encoder, const char *name, const char *dtype,
                             const void *data) {
    struct part *part = &encoder->parts[encoder->num_parts++];
    *part = (struct part){.name = name, .dtype = dtype, .data = data};
    return part;
}

static void add_axis(struct part *part, size_t size) {
    part->shape[part->rank++] = size;
}

/* Lists the tensors; those without data are only measured. Sizes that attn_plan() has
 * passed: nothing can overflow. */
static void list_parts(struct encoder *encoder, const struct wire_request *request,
                       size_t num_queries, size_t num_weights,
                       const attn_result *result) {
    const attn_request *batch = &request->batch;
    const struct wire_selection *selection = &request->selection;
    const attn_model_info *info = attn_model_get_info(request->model);
    bool packed = is_packed(request);
    bool weights = batch->need_weights != ATTN_WEIGHTS_NONE;
    if (packed)
        add_axis(add_part(encoder, "query_lens", "I64", batch->query_lens),
                 batch->num_sequences);
    if (packed && weights)
        add_axis(add_part(encoder, "key_lens", "I64", batch->key_lens),
                 batch->num_sequences);
    struct part *part = add_part(encoder, "outputs", "F32", result->outputs);
    if (!packed && request->batched)
        add_axis(part, batch->num_sequences);
    add_axis(part, packed ? num_queries : batch->query_lens[0]);
    add_axis(part, info->out_size);
    if (weights) {
        part = add_part(encoder, "attention_weights", "F32", result->weights);
        if (packed) {
            add_axis(part, num_weights);
        } else {
            if (request->batched)
                add_axis(part, batch->num_sequences);
            if (batch->need_weights == ATTN_WEIGHTS_ALL)
                add_axis(part, selection->heads != NULL ? selection->num_heads
                                                        : info->num_heads);
            add_axis(part, selection->queries != NULL ? selection->num_queries
                                                      : batch->query_lens[0]);
            add_axis(part, batch->key_lens[0]);
        }
    }
    for (size_t i = 0; i < encoder->num_parts; i++) {
        part = &encoder->parts[i];
        part->bytes = part->dtype[0] == 'I' ? sizeof(int64_t) : sizeof(float);
        for (size_t axis = 0; axis < part->rank; axis++)
            part->bytes *= part->shape[axis];
    }
}

/* Prints the header; its JSON is filled up with spaces to a multiple of 8 bytes, as the
 * reference writer does. */
static void print_header(struct encoder *encoder, const char *model) {
    char *json = encoder->header + LENGTH, *out = json;
    size_t begin = 0;
    out = stpcpy(out, "{\"__metadata__\":{\"model\":");
    out = stpcpy(wire_json_put_string(out, model), "}");
    for (size_t i = 0; i < encoder->num_parts; i++) {
        const struct part *part = &encoder->parts[i];
        out +=
            sprintf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":", part->name, part->dtype);
        for (size_t axis = 0; axis < part->rank; axis++)
            out += sprintf(out, "%c%zu", axis == 0 ? '[' : ',', part->shape[axis]);
        out += sprintf(out, "],\"data_offsets\":[%zu,%zu]}", begin, begin + part->bytes);
        begin += part->bytes;
    }
    *out++ = '}';
    while ((out - json) % 8 != 0)
        *out++ = ' ';
    uint64_t size = htole64((uint64_t)(out - json));
    memcpy(encoder->header, &size, sizeof size);
    encoder->header_size = (size_t)(out - encoder->header);
}

static size_t count_reply(const struct encoder *encoder) {
    size_t bytes = encoder->header_size;
    for (size_t i = 0; i < encoder->num_parts; i++)
        bytes += encoder->parts[i].bytes;
    return bytes;
}

/* --- wire_writer --- */

static size_t bound(const struct wire_request *request, const attn_sizes *sizes) {
    struct encoder encoder = {0};
    size_t weights = wire_selection_num_weights(request, sizes), bytes = 0;
    if (!size_add_mul(&bytes, sizes->outputs, sizeof(float)) ||
        !size_add_mul(&bytes, weights, sizeof(float)) ||
        !size_add_mul(&bytes, request->batch.num_sequences, 2 * sizeof(int64_t)) ||
        !size_add(bytes, HEADER_MAX, &bytes))
        return SIZE_MAX;
    list_parts(&encoder, request, sizes->num_queries, weights, &(attn_result){0});
    print_header(&encoder, attn_model_get_info(request->model)->name);
    return count_reply(&encoder);
}

/* The lengths of sequences, twice. */
static size_t memory(const struct wire_request *request) {
    size_t bytes = 0;
    bool fits = size_add_mul(&bytes, request->batch.num_sequences, 2 * sizeof(int64_t));
    return fits ? bytes : SIZE_MAX;
}

/* Returns a copy of lengths, which the call then needs no longer. */
static uint64_t *keep_lengths(struct arena *arena, const size_t *lengths, size_t count) {
    uint64_t *kept = arena_alloc(arena, count, sizeof *kept);
    for (size_t b = 0; kept != NULL && b < count; b++)
        kept[b] = htole64(lengths[b]);
    return kept;
}

static void *begin_as(const char *content_type, struct arena *arena,
                      const struct wire_request *request, const attn_result *result,
                      struct wire_reply_head *ret_head,
                      struct wire_problem *ret_problem) {
    const attn_request *batch = &request->batch;
    size_t count = batch->num_sequences;
    struct encoder *encoder = arena_alloc(arena, 1, sizeof *encoder);
    const void *lens[] = {keep_lengths(arena, batch->query_lens, count),
                          keep_lengths(arena, batch->key_lens, count)};
    if (encoder == NULL || lens[0] == NULL || lens[1] == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    *encoder = (struct encoder){0};
    if (!wire_reply_check(request, result, ret_problem))
        return NULL;
    attn_sizes sizes = {0};
    attn_need_weights need = batch->need_weights;
    size_t planes = need == ATTN_WEIGHTS_ALL
                        ? attn_model_get_info(request->model)->num_heads
                    : need == ATTN_WEIGHTS_MEAN ? 1
                                                : 0;
    for (size_t b = 0; b < count; b++) {
        sizes.num_queries += batch->query_lens[b];
        sizes.weights += planes * batch->query_lens[b] * batch->key_lens[b];
    }
    list_parts(encoder, request, sizes.num_queries,
               wire_selection_num_weights(request, &sizes), result);
    for (size_t i = 0; i < encoder->num_parts; i++) {
        if (encoder->parts[i].data == batch->query_lens)
            encoder->parts[i].data = lens[0];
        else if (encoder->parts[i].data == batch->key_lens)
            encoder->parts[i].data = lens[1];
    }
    if (encoder->num_parts > 1 && encoder->parts[1].name[0] == 'k')
        encoder->parts[1].data = lens[1]; /* the two may be one list */
    print_header(encoder, attn_model_get_info(request->model)->name);
    *ret_head =
        (struct wire_reply_head){content_type, count_reply(encoder), WIRE_NO_SIZE};
    return encoder;
}

static void *begin(struct arena *arena, const struct wire_request *request,
                   const attn_result *result, struct wire_reply_head *ret_head,
                   struct wire_problem *ret_problem) {
    return begin_as("application/vnd.safetensors", arena, request, result, ret_head,
                    ret_problem);
}

static void *begin_octets(struct arena *arena, const struct wire_request *request,
                          const attn_result *result, struct wire_reply_head *ret_head,
                          struct wire_problem *ret_problem) {
    return begin_as("application/octet-stream", arena, request, result, ret_head,
                    ret_problem);
}

/* Copies what is left of `bytes` as far as there is room; true at their end. */
static bool copy_rest(struct encoder *encoder, const char *data, size_t bytes, char **out,
                      const char *end) {
    size_t count = bytes - encoder->sent;
    if (count > (size_t)(end - *out))
        count = (size_t)(end - *out);
    memcpy(*out, data + encoder->sent, count);
    *out += count;
    encoder->sent += count;
    if (encoder->sent < bytes)
        return false;
    encoder->sent = 0;
    return true;
}

static size_t fill(void *context, char *piece, size_t size) {
    struct encoder *encoder = context;
    char *out = piece, *end = piece + size;
    if (!encoder->header_sent)
        encoder->header_sent =
            copy_rest(encoder, encoder->header, encoder->header_size, &out, end);
    while (encoder->header_sent && encoder->part < encoder->num_parts && out < end) {
        const struct part *part = &encoder->parts[encoder->part];
        encoder->part += copy_rest(encoder, part->data, part->bytes, &out, end);
    }
    return (size_t)(out - piece);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "floats are sent as they lie in memory");

const struct wire_writer wire_safetensors_writer = {bound, memory, begin, fill, SMALLER};
const struct wire_writer wire_octets_writer = {bound, memory, begin_octets, fill,
                                               SMALLER};
