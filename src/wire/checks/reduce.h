/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: what all formats check of the options that say what attention weights are
 * reduced to: spans, top_k, top_in, targets and block. */
#pragma once

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

/* A list of ranges [count][2], each a first key and an end: of each sequence, or of all.
 * A number is SIZE_MAX when it is negative or larger. */
struct wire_ranges {
    const char *field;
    const size_t *list; /* borrowed until the reply is written */
    size_t count;       /* of each sequence; of targets, as many as queries */
    size_t levels;      /* that a range is inside of, in the request: 0, 1 or 2 */
    bool per_sequence;
};

/* Set what is read from ranges, once the lengths of the sequences are set, and check the
 * ranges: Out of range. A target of 0, 0 is none. Targets of one sequence are repeated
 * for all, which are equally long; that allocates two numbers for each query: Out of
 * memory. */
bool wire_reduce_set_spans(const struct wire_ranges *spans, attn_request *batch,
                           struct wire_problem *ret_problem);
bool wire_reduce_set_top_in(const struct wire_ranges *ranges, attn_request *batch,
                            struct wire_problem *ret_problem);
bool wire_reduce_set_targets(const struct wire_ranges *targets, struct arena *arena,
                             attn_request *batch, struct wire_problem *ret_problem);

/* Checks top_k, once all that it is compared with is set: Out of range. */
bool wire_reduce_check_top(const attn_request *batch, struct wire_problem *ret_problem);

/* Returns whether all sequences have as many queries. */
bool wire_reduce_even_queries(const attn_request *batch);
