/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.h: which tokens the rows of a sequence are, and what a row leaves for keys that
 * are not marked. Marked are the first key and separators: many heads rest most of their
 * weight there, whatever else they do. */
#pragma once

#include "math/mask.h"
#include "math/run/run.h"

#include <attnd/heads.h>

/* Whether a row of queries is the same token as the key of its number: keys are queries,
 * or both have ids. */
static inline bool tokens_are_shared(const attn_request *request,
                                     const struct sequence_position *at) {
    bool same = request->keys == request->queries && at->first_key == at->first_query;
    return (request->keys_are_queries || same || request->reduce.token_ids != NULL) &&
           request->key_lens[at->sequence] == request->query_lens[at->sequence];
}

/* Adds the weights of row `row` of [keys] on offsets, times f, and again those on marked
 * keys; to_mark is as in struct run, [keys]. */
static inline void tokens_add_offsets(const float *weights, double f, size_t row,
                                      size_t keys, const int32_t *to_mark,
                                      attn_head_sums *sums) {
    size_t k = row > ATTN_HEAD_REACH ? row - ATTN_HEAD_REACH : 0;
    size_t end = row + ATTN_HEAD_REACH + 1 < keys ? row + ATTN_HEAD_REACH + 1 : keys;

    for (size_t o = 0; o < ATTN_PLACE_OFFSETS; o++)
        sums->at[o] += f * (double)weights[o];
    for (k += (size_t)to_mark[k]; k < end; k++, k += k < end ? (size_t)to_mark[k] : 0)
        sums->marked_at[k + ATTN_HEAD_REACH - row] +=
            f * (double)weights[k + ATTN_HEAD_REACH - row];
}

/* Adds 1, or what row `row` of [keys] leaves for keys that are not marked, to each place
 * of `sums` that the row has: offsets, and those of ids by their bits. */
static inline void tokens_add(size_t row, size_t keys, unsigned id_places, double one,
                              double *sums) {
    size_t low = row < ATTN_HEAD_REACH ? ATTN_HEAD_REACH - row : 0;
    size_t high = keys + ATTN_HEAD_REACH - row;

    high = high < ATTN_PLACE_OFFSETS ? high : ATTN_PLACE_OFFSETS;
    for (size_t o = low; o < high; o++)
        sums[o] += one;
    for (size_t i = 0; i < ATTN_HEAD_PLACES - ATTN_PLACE_SAME; i++)
        sums[ATTN_PLACE_SAME + i] += (id_places >> i & 1) != 0 ? one : 0;
}
