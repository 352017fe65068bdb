/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h: what all protocols do with the results that a reply has. */
#pragma once

#include "base/arena.h"
#include "math/model.h"
#include "math/plan/results.h"
#include "wire/decimal/print.h"
#include "wire/problem.h"
#include "wire/request.h"

/* A part of wire_writer.smaller. */
#define WIRE_SELECT_FEWER "select by weights_heads and weights_queries"

#define WIRE_REPLY_RANK_MAX (1 + RESULT_AXES_MAX) /* sequences, and axes of one */

/* Of a number in JSON: with its comma; and with bytes that its printer may touch. */
#define WIRE_NUMBER_BYTES (WIRE_FLOAT_PRINT_MAX + 1)
#define WIRE_NUMBER_ROOM  (WIRE_NUMBER_BYTES + WIRE_FLOAT_PRINT_ROOM)

/* The results of a request, of which it wants some. Borrows the model, the numbers, and
 * the lengths of the request. Not to be moved. */
struct wire_reply {
    attn_request batch;
    struct wanted_results wanted; /* of `batch` */
    attn_result result;           /* NULL in it: not computed yet */
    bool batched;                 /* false: one sequence, without the batch axis */
    const char *note;             /* a constant, or NULL */
};

/* Adds `,"notes":["..."]` to an object of JSON, where there is a note, which needs no
 * escapes. Writes a NUL, and returns where it is. */
char *wire_reply_put_note(const char *note, char *out);

#define WIRE_NOTE_BYTES ((int)sizeof ",\"notes\":[\"\"]" + MODEL_NOTE_MAX)

/* query_lens, key_lens, and results */
#define WIRE_REPLY_ARRAYS_MAX (2 + NUM_RESULTS)

/* An array of a reply in binary, and its numbers; the names are constants. */
struct wire_reply_array {
    const char *name, *dtype;
    size_t rank, shape[WIRE_REPLY_RANK_MAX];
    size_t bytes;
    const void *data;
};

/* A part of a reply that is ready: bytes, or float32 to be printed as JSON, with commas
 * between them. */
struct wire_segment {
    bool numbers;
    const void *data;
    size_t count; /* of bytes or numbers */
};

#define WIRE_SEGMENTS_MAX (2 * NUM_RESULTS + 3)

/* The parts of a reply, in their order. Begins as zero. */
struct wire_segments {
    struct wire_segment items[WIRE_SEGMENTS_MAX];
    size_t count;
    size_t segment, done; /* which is written next, and how much of it was */
};

void wire_segments_add(struct wire_segments *segments, bool numbers, const void *data,
                       size_t count);

/* wire_writer.fill() of a struct wire_segments. */
size_t wire_segments_fill(void *context, char *piece, size_t size);

void wire_reply_init(struct wire_reply *reply, const struct wire_request *request,
                     const attn_result *result);

/* Returns how many numbers a result has, which attn_plan() has found to fit. */
size_t wire_reply_count(const struct wire_reply *reply, enum result_id id);

/* Writes the shape of a result whose sequences are equally long, and returns its rank. */
size_t wire_reply_shape(const struct wire_reply *reply, enum result_id id,
                        size_t ret_shape[WIRE_REPLY_RANK_MAX]);

/* Lists the arrays of a reply in binary, integers first, and returns how many there are.
 * Where sequences differ in length, or `lens_sent`, the rows of all sequences follow each
 * other as in [sum of query_lens, width], and lengths come with them. What is made of
 * rows of weights, which differ in width, is [count] then. */
size_t wire_reply_list(const struct wire_reply *reply, bool lens_sent,
                       struct wire_reply_array ret_arrays[WIRE_REPLY_ARRAYS_MAX]);

/* The beginning of a reply: checks the result, and allocates an encoder of `size` bytes,
 * whose first member is a struct wire_reply, and copies of the lengths and of what the
 * model is: an encoder outlives its request, and with it a model that the request made.
 * Returns the encoder, otherwise zero, or NULL with *ret_problem set: Result not finite,
 * Out of memory. */
void *wire_reply_begin(struct arena *arena, size_t size,
                       const struct wire_request *request, const attn_result *result,
                       struct wire_problem *ret_problem);

/* Returns the bytes of the arena that wire_reply_begin() needs for the copies; SIZE_MAX
 * when that is too large to be computed. */
size_t wire_reply_copies_bytes(const struct wire_request *request);

/* Checks that all numbers that the reply has are finite, since JSON has no others.
 * Returns false with *ret_problem set (Result not finite), which names the first one that
 * is not. */
bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_problem *ret_problem);
