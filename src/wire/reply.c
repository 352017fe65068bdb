/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: measures the results of a reply, and finds numbers that are not finite. */
#include "wire/reply.h"

#include "base/pace.h"
#include "base/size.h"
#include "wire/json/write.h"
#include "wire/protocol.h"
#include "wire/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SEQUENCE_STEPS 8 /* of measuring a result of one sequence */

void wire_reply_init(struct wire_reply *reply, const struct wire_request *request,
                     const attn_result *result) {
    reply->batch = request->batch;
    reply->result = *result;
    reply->batched = request->batched;
    reply->note = request->note;
    results_find(attn_model_get_info(request->model), &reply->batch, &reply->wanted);
}

char *wire_reply_put_note(const char *note, char *out) {
    *out = '\0';
    return note != NULL ? out + sprintf(out, ",\"notes\":[\"%s\"]", note) : out;
}

/* Returns how many numbers a result has of one sequence. */
static size_t count_numbers(const struct wire_reply *reply, enum result_id id,
                            size_t sequence) {
    size_t shape[RESULT_AXES_MAX], count = 1;
    size_t rank = results_shape(&reply->wanted, id, sequence, shape);

    pace_add(SEQUENCE_STEPS);
    for (size_t axis = 0; axis < rank; axis++)
        count *= shape[axis];
    return count;
}

size_t wire_reply_count(const struct wire_reply *reply, enum result_id id) {
    size_t count = 0;
    for (size_t b = 0; b < reply->batch.num_sequences; b++)
        count += count_numbers(reply, id, b);
    return count;
}

size_t wire_reply_shape(const struct wire_reply *reply, enum result_id id,
                        size_t ret_shape[WIRE_REPLY_RANK_MAX]) {
    size_t batched = reply->batched;
    ret_shape[0] = reply->batch.num_sequences;
    return batched + results_shape(&reply->wanted, id, 0, ret_shape + batched);
}

static const size_t *copy_lens(struct arena *arena, const size_t *lens, size_t count) {
    size_t *copy = arena_alloc(arena, count, sizeof *copy);
    if (copy != NULL)
        pace_copy(copy, lens, count * sizeof *copy);
    return copy;
}

size_t wire_reply_copies_bytes(const struct wire_request *request) {
    size_t bytes;
    bool fits = size_mul(request->batch.num_sequences, 2 * sizeof(size_t), &bytes) &&
                size_add(bytes, sizeof(attn_model_info) + ARENA_ALIGNMENT, &bytes);
    return fits ? bytes : SIZE_MAX;
}

/* Refuses number `i` of a result of one sequence, of those axes that the client sees. */
static bool refuse_result(const struct wire_reply *reply, enum result_id id,
                          size_t sequence, size_t i, struct wire_problem *ret_problem) {
    size_t shape[RESULT_AXES_MAX], step = 1;
    size_t rank = results_shape(&reply->wanted, id, sequence, shape);
    char where[128];
    size_t used = (size_t)snprintf(where, sizeof where, "%s", result_table[id].name);

    if (reply->batched)
        used += (size_t)snprintf(where + used, sizeof where - used, "[%zu]", sequence);
    for (size_t axis = 1; axis < rank; axis++)
        step *= shape[axis];
    for (size_t axis = 0; axis < rank; axis++) {
        used += (size_t)snprintf(where + used, sizeof where - used, "[%zu]", i / step);
        i %= step;
        step /= axis + 1 < rank ? shape[axis + 1] : 1;
    }
    return wire_problem_set(
        ret_problem, WIRE_E_RESULT_NOT_FINITE, NULL,
        "%s is not finite: float32 overflowed; send smaller numbers"
        "%s",
        where, reply->batch.bias != NULL ? ", and null in bias where it masks" : "");
}

/* Returns the index of the first number that is not a result, or `count`. */
static size_t find_bad_number(const struct result *row, const float *numbers,
                              size_t count) {
    size_t i = pace_finite_end(numbers, count);
    while (i < count && row->nullable && numbers[i] == -INFINITY)
        i += 1 + pace_finite_end(numbers + i + 1, count - i - 1);
    return i;
}

static bool check_result(const struct wire_reply *reply, enum result_id id,
                         struct wire_problem *ret_problem) {
    const float *numbers = result_numbers(&reply->result, id);

    for (size_t b = 0; b < reply->batch.num_sequences; b++) {
        size_t count = count_numbers(reply, id, b);
        size_t i = find_bad_number(&result_table[id], numbers, count);
        if (i < count)
            return refuse_result(reply, id, b, i, ret_problem);
        numbers += count;
    }
    return true;
}

bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_problem *ret_problem) {
    struct wire_reply reply;

    wire_reply_init(&reply, request, result);
    for (enum result_id i = 0; i < NUM_RESULTS; i++) {
        if (reply.wanted.has[i] && !result_table[i].integers &&
            !check_result(&reply, i, ret_problem))
            return false;
    }
    return true;
}

void *wire_reply_begin(struct arena *arena, size_t size,
                       const struct wire_request *request, const attn_result *result,
                       struct wire_problem *ret_problem) {
    const attn_request *batch = &request->batch;
    struct wire_reply *reply = arena_alloc(arena, 1, size);
    const size_t *query_lens = copy_lens(arena, batch->query_lens, batch->num_sequences);
    const size_t *key_lens = copy_lens(arena, batch->key_lens, batch->num_sequences);
    attn_model_info *info = arena_alloc(arena, 1, sizeof *info);

    if (reply == NULL || query_lens == NULL || key_lens == NULL || info == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    if (!wire_reply_check(request, result, ret_problem))
        return NULL;

    memset(reply, 0, size);
    wire_reply_init(reply, request, result);
    reply->batch.query_lens = query_lens;
    reply->batch.key_lens = key_lens;
    *info = *reply->wanted.info;
    reply->wanted.info = info;
    return reply;
}

/* --- arrays --- */

_Static_assert(sizeof(size_t) == sizeof(int64_t), "lengths are sent as I64");

static struct wire_reply_array list_lens(const char *name, const size_t *lens,
                                         size_t count) {
    return (struct wire_reply_array){.name = name,
                                     .dtype = "I64",
                                     .rank = 1,
                                     .shape = {count},
                                     .bytes = count * sizeof *lens,
                                     .data = lens};
}

static struct wire_reply_array list_result(const struct wire_reply *reply,
                                           enum result_id id, bool packed) {
    const struct result *row = &result_table[id];
    size_t count = wire_reply_count(reply, id);
    struct wire_reply_array array = {.name = row->name,
                                     .dtype = row->integers ? "I64" : "F32",
                                     .bytes = count * result_number_bytes(id),
                                     .data = result_numbers(&reply->result, id)};

    if (!packed) {
        array.rank = wire_reply_shape(reply, id, array.shape);
        return array;
    }
    array.rank = (row->kinds & RESULT_BY_ROW) != 0
                     ? 1
                     : results_shape(&reply->wanted, id, 0, array.shape);
    array.shape[0] = count;
    for (size_t axis = 1; axis < array.rank; axis++)
        array.shape[0] /= array.shape[axis];
    return array;
}

size_t wire_reply_list(const struct wire_reply *reply, bool lens_sent,
                       struct wire_reply_array ret_arrays[WIRE_REPLY_ARRAYS_MAX]) {
    const attn_request *batch = &reply->batch;
    bool packed = lens_sent ||
                  wire_common_len(batch->query_lens, batch->num_sequences) == SIZE_MAX ||
                  wire_common_len(batch->key_lens, batch->num_sequences) == SIZE_MAX;
    size_t count = 0;

    if (packed)
        ret_arrays[count++] =
            list_lens("query_lens", batch->query_lens, batch->num_sequences);
    if (packed && ((reply->wanted.kinds & RESULT_BY_ROW) != 0 ||
                   reply->wanted.has[RESULT_PROJECTED_KEYS]))
        ret_arrays[count++] =
            list_lens("key_lens", batch->key_lens, batch->num_sequences);

    /* Integers come before floats, so that all are aligned. */
    for (int i = 0; i < 2 * NUM_RESULTS; i++) {
        enum result_id id = i % NUM_RESULTS;
        if (reply->wanted.has[id] && result_table[id].integers == (i < NUM_RESULTS))
            ret_arrays[count++] = list_result(reply, id, packed);
    }
    return count;
}

/* --- segments --- */

_Static_assert(WIRE_NUMBER_ROOM <= WIRE_PIECE_MIN,
               "the smallest piece has room for a number");

void wire_segments_add(struct wire_segments *segments, bool numbers, const void *data,
                       size_t count) {
    segments->items[segments->count++] = (struct wire_segment){numbers, data, count};
}

static char *put_segment_numbers(struct wire_segments *segments, const float *numbers,
                                 size_t count, char *out, const char *end) {
    while (segments->done < count && end - out >= WIRE_NUMBER_ROOM) {
        out = wire_json_put_number(out, numbers[segments->done++]);
        if (segments->done < count)
            *out++ = ',';
    }
    return out;
}

size_t wire_segments_fill(void *context, char *piece, size_t size) {
    struct wire_segments *segments = context;
    char *out = piece, *end = piece + size;

    for (; segments->segment < segments->count; segments->segment++) {
        const struct wire_segment *segment = &segments->items[segments->segment];
        if (segment->numbers) {
            out = put_segment_numbers(segments, segment->data, segment->count, out, end);
        } else {
            size_t count = size_min(segment->count - segments->done, (size_t)(end - out));
            memcpy(out, (const char *)segment->data + segments->done, count);
            segments->done += count;
            out += count;
        }
        if (segments->done < segment->count)
            break; /* no room for more */
        segments->done = 0;
    }
    return (size_t)(out - piece);
}
