/* SPDX-License-Identifier: Apache-2.0 */
/* mask.h: decides which keys a query attends to, and what becomes of a head's outputs.
 * Nothing else decides it. */
#ifndef ATTND_MATH_MASK_H
#define ATTND_MATH_MASK_H

#include <attnd/attention.h>

/* Returns how many keys of its sequence, from the first on, a query attends to: 1..Tk, or
 * 0 when none is valid. The query then attends to all Tk alike. `row` is the query's row
 * within `sequence`, counted from 0; `first_row` is the sequence's first row in the
 * batch. */
static inline size_t mask_num_keys(const attn_request *request, size_t sequence,
                                   size_t first_row, size_t row) {
    size_t count = request->key_lens[sequence];

    if (request->valid_lens != NULL) {
        size_t at = request->valid_lens_per_query ? first_row + row : sequence;
        count = request->valid_lens[at];
    }
    if (request->causal && row + 1 < count)
        count = row + 1;
    return count;
}

/* Whether the keys of a sequence are its queries, so that positions in both mean the
 * same. `first_query` and `first_key` are its first rows in the batch. */
static inline bool mask_keys_are_queries(const attn_request *request, size_t sequence,
                                         size_t first_query, size_t first_key) {
    return request->keys == request->queries && first_key == first_query &&
           request->key_lens[sequence] == request->query_lens[sequence];
}

/* Returns what the outputs of a head are multiplied by; 0 leaves the head out. */
static inline float mask_head_factor(const attn_request *request, size_t head) {
    return request->head_mask != NULL ? request->head_mask[head] : 1.0F;
}

#endif
