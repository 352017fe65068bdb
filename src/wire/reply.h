/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h: the tensors of a reply, described in the same way for all protocols. */
#pragma once

#include "base/arena.h"
#include "wire/problem.h"
#include "wire/request.h"

#define WIRE_REPLY_RANK_MAX 5 /* sequence, plane, row, part, number */

/* One tensor of a reply: sequences of planes of rows, contiguous. Borrows its numbers and
 * the lengths of the request. */
struct wire_reply_tensor {
    const char *name;
    bool integers; /* the numbers are int64_t, else float */
    const void *numbers;
    size_t num_sequences; /* B */
    bool batched;         /* false: one sequence, without the batch axis */
    const size_t *planes; /* [B], e.g. one per head; NULL: `num_planes` in each */
    size_t num_planes;
    bool plane_axis;    /* false: one plane, without its axis */
    const size_t *rows; /* [B], rows of each plane; NULL: `num_rows` in all of them */
    size_t num_rows;
    size_t num_parts; /* of a row, e.g. one per range of keys; 0: one, without its axis */
    const size_t *widths; /* [B], numbers in each part; NULL: `width` in all of them */
    size_t width;
    size_t block;  /* rows and widths are divided by it, rounded up */
    bool nullable; /* -INFINITY, and the integer -1, are results, and null in JSON */
    bool flat;     /* where binary replies are not padded, a list of numbers */
};

/* Returns the name of a tensor in replies, such as "attention_weights"; constant. */
const char *wire_result_name(enum wire_result which);

/* Describes a tensor that the reply has. Of each sequence, outputs are [Tq, out_size],
 * attention weights [heads, Tq, Tk] or the mean [Tq, Tk], heads [Tq, H, D], and lse
 * [Tq, H]. attn_result has the shapes of reductions. */
struct wire_reply_tensor wire_reply_get(const struct wire_request *request,
                                        const attn_result *result,
                                        enum wire_result which);

/* Describes all tensors that the reply has, and returns how many there are. */
size_t wire_reply_list(const struct wire_request *request, const attn_result *result,
                       struct wire_reply_tensor ret_tensors[WIRE_NUM_RESULTS]);

/* Return how many planes the sequence has, how many rows each plane, how many parts each
 * row, and how many numbers each part. */
size_t wire_reply_planes(const struct wire_reply_tensor *tensor, size_t sequence);
size_t wire_reply_rows(const struct wire_reply_tensor *tensor, size_t sequence);
size_t wire_reply_parts(const struct wire_reply_tensor *tensor);
size_t wire_reply_width(const struct wire_reply_tensor *tensor, size_t sequence);

/* Returns the bytes of a number, and number `i` of the tensor. */
size_t wire_reply_number_bytes(const struct wire_reply_tensor *tensor);
const void *wire_reply_number(const struct wire_reply_tensor *tensor, size_t i);

/* Returns how many numbers the tensor has, which attn_plan() has found to fit. */
size_t wire_reply_count(const struct wire_reply_tensor *tensor);

/* Writes the shape of a tensor whose sequences are equally long, and returns its rank. */
size_t wire_reply_shape(const struct wire_reply_tensor *tensor,
                        size_t ret_shape[WIRE_REPLY_RANK_MAX]);

/* The beginning of a reply: checks the result,
 * and allocates an encoder of `size` bytes and copies of the lengths, since an encoder
 * outlives its request. *ret_kept is the request with these lengths. Returns the encoder,
 * uninitialised, or NULL with *ret_problem set: Result not finite, Out of memory. */
void *wire_reply_begin(struct arena *arena, size_t size,
                       const struct wire_request *request, const attn_result *result,
                       struct wire_request *ret_kept, struct wire_problem *ret_problem);

/* Returns the bytes of the arena that wire_reply_begin() needs for the lengths; SIZE_MAX
 * when that is too large to be computed. */
size_t wire_reply_lens_bytes(const struct wire_request *request);

/* Checks that all numbers of the tensors that the reply has are finite, since JSON has no
 * others. Returns false with *ret_problem set (Result not finite), which names the first
 * one that is not. */
bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_problem *ret_problem);
