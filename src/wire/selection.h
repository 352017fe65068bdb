/* SPDX-License-Identifier: Apache-2.0 */
/* selection.h: weights_heads and weights_queries, which of the attention weights a reply
 * has. All weights are computed, since the outputs need them; those that are not selected
 * never reach the reply. */
#ifndef ATTND_WIRE_SELECTION_H
#define ATTND_WIRE_SELECTION_H

#include "base/arena.h"
#include "wire/problem.h"
#include "wire/request.h"

enum wire_selected { WIRE_SELECTED_HEADS, WIRE_SELECTED_QUERIES };

#define WIRE_INDICES_LIMIT_MAX                                                           \
    64 /* bytes of wire_indices_limit(), terminator included                             \
        */

/* The indices of one list, which are checked one by one. */
struct wire_indices {
    const char *field;  /* "weights_heads", "weights_queries"; constant */
    const char *things; /* what it selects among, for a person */
    size_t limit;       /* every index is below it */
    bool *seen;         /* [limit], of the arena */
};

/* Prepares to check a list of a call that has its model and lengths. Allocates `limit`
 * bytes of the arena. Returns false with *ret_problem set when there are none. */
bool wire_indices_init(struct wire_indices *indices, const struct wire_request *request,
                       enum wire_selected which, struct arena *arena,
                       struct wire_problem *ret_problem);

/* Notes element `i` of the list, which is below the limit. Returns false with
 * *ret_problem set when an earlier element is the same. */
bool wire_indices_add(struct wire_indices *indices, size_t i, size_t index,
                      struct wire_problem *ret_problem);

/* Writes why an index must be below the limit: "there are 12 heads". */
void wire_indices_limit(const struct wire_indices *indices,
                        char ret_text[WIRE_INDICES_LIMIT_MAX]);

/* Makes `list`, which was checked, one of the call's two lists; borrows it. */
void wire_selection_set(struct wire_request *request, enum wire_selected which,
                        const size_t *list, size_t count);

/* Checks that weights are asked for before some of them are selected. Returns false with
 * *ret_problem set. */
bool wire_selection_check(const struct wire_request *request,
                          struct wire_problem *ret_problem);

/* Whether the reply has only some of the weights, or has them in another order. */
bool wire_selection_is_partial(const struct wire_request *request);

/* Returns how many weights the reply has: sizes->weights, or fewer by the selection. */
size_t wire_selection_num_weights(const struct wire_request *request,
                                  const attn_sizes *sizes);

/* Copies the selected ones of all `weights`, as attn_run() writes them, to
 * `ret_selected`, wire_selection_num_weights() floats. Thread-safe. */
void wire_selection_copy(const struct wire_request *request, const float *weights,
                         float *ret_selected);

#endif
