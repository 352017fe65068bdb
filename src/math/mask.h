/* SPDX-License-Identifier: Apache-2.0 */
/* mask.h: which keys a query attends to. No other place knows. */
#ifndef ATTND_MATH_MASK_H
#define ATTND_MATH_MASK_H

#include <attnd/attention.h>

/* Returns how many keys of its sequence, from the first on, a query attends to: 1..Tk, or
 * 0 when none is valid, which means uniformly to all Tk. `row` is the query's, from 0 in
 * sequence `sequence`; `first_row` is the sequence's first row in the batch. */
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

#endif
