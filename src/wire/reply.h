/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h: the tensors of a reply, described in the same way for all protocols. */
#ifndef ATTND_WIRE_REPLY_H
#define ATTND_WIRE_REPLY_H

#include "base/arena.h"
#include "wire/pace.h"
#include "wire/problem.h"
#include "wire/request.h"

#define WIRE_REPLY_RANK_MAX 4 /* sequence, plane, row, number */

/* One tensor of a reply: sequences of planes of rows, contiguous. Borrows its numbers and
 * the lengths of the request. */
struct wire_reply_tensor {
    const char *name;
    const float *numbers;
    size_t num_sequences; /* B */
    bool batched;         /* false: one sequence, without the batch axis */
    size_t num_planes;    /* in each sequence, e.g. one per head */
    bool plane_axis;      /* false: one plane, without its axis */
    const size_t *rows;   /* [B], rows of each plane; NULL: `num_rows` in all of them */
    size_t num_rows;
    const size_t *widths; /* [B], numbers in each row; NULL: `width` in all of them */
    size_t width;
};

/* Describes the outputs [Tq, out_size] of each sequence. */
struct wire_reply_tensor wire_reply_outputs(const struct wire_request *request,
                                            const attn_result *result);

/* Describes the attention weights of each sequence, [heads, Tq, Tk] or the mean [Tq, Tk].
 * If the request does not need weights, only num_planes has a meaning: it is 1. */
struct wire_reply_tensor wire_reply_weights(const struct wire_request *request,
                                            const attn_result *result);

/* Return how many rows each plane of the sequence has, and how many numbers each row. */
size_t wire_reply_rows(const struct wire_reply_tensor *tensor, size_t sequence);
size_t wire_reply_width(const struct wire_reply_tensor *tensor, size_t sequence);

/* Returns how many numbers the tensor has, which attn_plan() has found to fit. */
size_t wire_reply_count(const struct wire_reply_tensor *tensor);

/* Writes the shape of a tensor whose sequences are equally long, and returns its rank. */
size_t wire_reply_shape(const struct wire_reply_tensor *tensor,
                        size_t ret_shape[WIRE_REPLY_RANK_MAX]);

/* The beginning of a reply that has outputs and, when needed, weights: checks the result,
 * and allocates an encoder of `size` bytes and copies of the lengths, since an encoder
 * outlives its request. *ret_kept is the request with these lengths. Returns the encoder,
 * uninitialised, or NULL with *ret_problem set: Result not finite, Out of memory. */
void *wire_reply_begin(struct arena *arena, size_t size,
                       const struct wire_request *request, const attn_result *result,
                       struct wire_pace *pace, struct wire_request *ret_kept,
                       struct wire_problem *ret_problem);

/* Returns the bytes of the arena that wire_reply_begin() needs for the lengths; SIZE_MAX
 * when that is too large to be computed. */
size_t wire_reply_lens_bytes(const struct wire_request *request);

/* Checks that all numbers are finite, since JSON has no others. Returns false with
 * *ret_problem set (Result not finite), which names the first one that is not. `pace`
 * counts the numbers, and may be NULL. */
bool wire_reply_tensor_check(const struct wire_reply_tensor *tensor,
                             struct wire_pace *pace, struct wire_problem *ret_problem);

/* Likewise, for the outputs and, when they are needed, the weights. */
bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_pace *pace, struct wire_problem *ret_problem);

#endif
