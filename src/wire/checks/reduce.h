/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: what all formats check of the options that say what attention weights are
 * reduced to: spans, top_k, top_in, targets and block. */
#ifndef ATTND_WIRE_REDUCE_H
#define ATTND_WIRE_REDUCE_H

#include "base/arena.h"
#include "wire/options.h"
#include "wire/refuse.h"

/* Which of the options a request has. */
struct wire_reduce_options {
    bool spans, top_k, top_in, targets, block;
};

/* Checks that each option comes with its word of need, and each word with its options:
 * Missing key, Outputs disagree. */
bool wire_reduce_check_need(const struct wire_need *need,
                            const struct wire_reduce_options *options,
                            struct wire_problem *ret_problem);

/* Checks the range first..end of a sequence of `keys` keys; `of` says which sequence it
 * is: "its sequence". Out of range. */
bool wire_reduce_check_range(const struct wire_place *place, size_t first, size_t end,
                             size_t keys, const char *of,
                             struct wire_problem *ret_problem);

/* Checks top_k, once all that it is compared with is set: Out of range. */
bool wire_reduce_check_top(const attn_request *batch, struct wire_problem *ret_problem);

/* Returns the keys of the shortest sequence. */
size_t wire_reduce_shortest(const attn_request *batch);

/* Returns whether all sequences have as many queries. */
bool wire_reduce_even_queries(const attn_request *batch);

/* Repeats *targets [Tq, 2], of one sequence, for all sequences, which are equally long.
 * Allocates two numbers for each query, unless there is only one sequence. Returns false
 * with *ret_problem set when memory is short. */
bool wire_reduce_repeat(const attn_request *batch, struct arena *arena,
                        const size_t **targets, struct wire_problem *ret_problem);

#endif
