/* SPDX-License-Identifier: Apache-2.0 */
/* selection.h: what all protocols check of weights_heads and weights_queries, which
 * select the attention weights of a reply. */
#pragma once

#include "base/arena.h"
#include "wire/problem.h"
#include "wire/request.h"

enum wire_selected { WIRE_SELECTED_HEADS, WIRE_SELECTED_QUERIES, WIRE_NUM_SELECTED };

/* Bytes of wire_indices_limit(), with the terminator. */
#define WIRE_INDICES_LIMIT_MAX 80

/* The indices of one list, which are checked one by one. */
struct wire_indices {
    const char *field; /* "weights_heads", "weights_queries"; constant */
    const char *thing; /* what it selects, in the singular: "head" */
    const char *where; /* " of queries in the shortest sequence", or "" */
    size_t limit;      /* every index is less than this */
    bool from_end;     /* -1..-limit count from the end, and are these modulo 2^64 */
    bool *seen;        /* [limit], and [limit] from the end, in the arena */
};

/* Returns whether an index is allowed. */
static inline bool wire_indices_allow(const struct wire_indices *indices, size_t index) {
    return index < indices->limit || (indices->from_end && 0 - index <= indices->limit);
}

/* Returns the least index that is allowed. */
static inline int64_t wire_indices_least(const struct wire_indices *indices) {
    return indices->from_end ? -(int64_t)indices->limit : 0;
}

/* Prepares to check a list of a request whose model and lengths are set. Allocates
 * `limit` bytes of the arena, twice as many with from_end. Returns false with
 * *ret_problem set when memory is short. */
bool wire_indices_init(struct wire_indices *indices, const struct wire_request *request,
                       enum wire_selected which, struct arena *arena,
                       struct wire_problem *ret_problem);

/* Adds element `i` of the list, an index that is allowed. Returns false with
 * *ret_problem set when an earlier element is the same. */
bool wire_indices_add(struct wire_indices *indices, size_t i, size_t index,
                      struct wire_problem *ret_problem);

/* Checks that no sequence has a row that is selected from both its ends. Returns false
 * with *ret_problem set. */
bool wire_indices_check_ends(const struct wire_indices *indices, const size_t *list,
                             size_t count, const attn_request *batch,
                             struct wire_problem *ret_problem);

/* Writes why an index must be less than the limit: "there are 12 heads". */
void wire_indices_limit(const struct wire_indices *indices,
                        char ret_text[WIRE_INDICES_LIMIT_MAX]);

/* Sets one of the two lists of the request; borrows `list`, which was checked. */
void wire_selection_set(struct wire_request *request, enum wire_selected which,
                        const size_t *list, size_t count);

/* Checks that the weights to select from are requested. Returns false with *ret_problem
 * set. */
bool wire_selection_check(const struct wire_request *request,
                          struct wire_problem *ret_problem);
