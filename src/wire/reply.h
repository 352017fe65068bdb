/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h: the tensors of a reply, whatever they are written as. */
#ifndef ATTND_WIRE_REPLY_H
#define ATTND_WIRE_REPLY_H

#include "wire/problem.h"
#include "wire/request.h"

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

/* Describes the attention weights, [heads, Tq, Tk] or the mean [Tq, Tk] of each sequence,
 * of a request that needs them. result->weights are the selected ones
 * (wire_selection_copy()). */
struct wire_reply_tensor wire_reply_weights(const struct wire_request *request,
                                            const attn_result *result);

/* Returns how many rows each plane of the sequence has, and how many numbers each row. */
size_t wire_reply_rows(const struct wire_reply_tensor *tensor, size_t sequence);
size_t wire_reply_width(const struct wire_reply_tensor *tensor, size_t sequence);

/* Checks that all numbers are finite, since JSON has no others. Returns false with
 * *ret_problem set (422), which names the first one that is not. */
bool wire_reply_tensor_check(const struct wire_reply_tensor *tensor,
                             struct wire_problem *ret_problem);

/* Likewise, for the outputs and, when they are needed, the weights. */
bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_problem *ret_problem);

#endif
