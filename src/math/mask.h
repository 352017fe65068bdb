/* SPDX-License-Identifier: Apache-2.0 */
/* mask.h: decides which keys a query attends to, and what becomes of a head's outputs.
 * Nothing else decides it, but for the reference.
 *
 * A query attends to a key when valid_lens, the causal mask, the window, the chunk and
 * the bias all allow it. valid_lens count rows of keys; the next three compare positions.
 * The causal mask hides none of the first prefix_len rows.
 * Where key positions ascend, as they nearly always do, and no bias is -INFINITY, the
 * keys of a query are one range of rows. */
#pragma once

#include "base/size.h"
#include "math/kernels/kernels.h"

#include <attnd/attention.h>

/* The masks of one sequence. Its arrays belong to the request. */
struct mask {
    size_t key_len;
    size_t valid_len;            /* of all queries */
    const size_t *valid_lens;    /* [Tq], of each query, or NULL */
    const size_t *positions;     /* [Tq]; NULL: 0, 1, 2, ... */
    const size_t *key_positions; /* [Tk]; NULL: 0, 1, 2, ... */
    bool causal;
    size_t window, chunk; /* 0: none */
    size_t prefix_len;    /* keys that `causal` does not hide; 0 without it */
    /* Keys have no order that the causal mask, the window or a chunk could use: of a
     * range of keys, a query attends to those that mask_attends() allows. */
    bool by_pair;
    const float *bias; /* of the sequence, see attn_request; NULL: none */
    size_t bias_head_ld, bias_row_ld;
};

/* Returns the part of a range that is in first..end; perhaps an empty one. */
static inline struct range range_clip(struct range range, size_t first, size_t end) {
    struct range part = {size_max(first, range.first), size_min(end, range.end)};

    part.end = size_max(part.first, part.end);
    return part;
}

/* Sets up the masks of a sequence; `first_query` and `first_key` are its first rows in
 * the batch. Reads key_positions once when the masks depend on them. */
void mask_init(struct mask *mask, const attn_request *request, size_t sequence,
               size_t first_query, size_t first_key);

/* Returns the smallest range with all keys that a query attends to in a head. When there
 * are none, the query attends to all Tk keys alike or, where the model has sinks, to
 * nothing. `query` is its row in the sequence. Takes time in proportion to the range when
 * mask->by_pair is set, and to what a bias masks at its ends. */
struct range mask_find_keys(const struct mask *mask, size_t head, size_t query);

/* Returns a range with all keys that a query attends to, at once or by bisection: where
 * mask->by_pair is set, all that valid_lens allow; and whatever the bias is. */
struct range mask_bound_keys(const struct mask *mask, size_t query);

/* Positions that a query attends to, both included. */
struct mask_allowed {
    size_t low, high;
    size_t prefix_high; /* instead of `high`, of the first mask->prefix_len keys */
};

struct mask_allowed mask_find_allowed(const struct mask *mask, size_t query);

/* Returns whether the positions of a query and a key allow that it attends to this. */
bool mask_attends(const struct mask *mask, size_t query, size_t key);

/* How many keys of a range a query attends to, and the sum of their rows. */
struct mask_sum {
    size_t count, rows;
};

/* Adds up what a query attends to of a range of keys, which valid_lens allow. */
struct mask_sum mask_sum_keys(const struct mask *mask, size_t query, struct range keys);

/* Returns whether positions are one apart, as they are when they are NULL. */
bool mask_is_even(const size_t *positions, size_t count);

/* Returns the position of a query, by its row in the sequence. */
static inline size_t mask_position(const struct mask *mask, size_t query) {
    return mask->positions != NULL ? mask->positions[query] : query;
}

/* Returns the position of a key, by its row in the sequence. */
static inline size_t mask_key_position(const struct mask *mask, size_t key) {
    return mask->key_positions != NULL ? mask->key_positions[key] : key;
}

/* Returns the bias [Tk] of a head and a query, by its row in the sequence, or NULL. */
static inline const float *mask_bias(const struct mask *mask, size_t head, size_t query) {
    return mask->bias != NULL
               ? mask->bias + head * mask->bias_head_ld + query * mask->bias_row_ld
               : NULL;
}

/* Returns what the outputs of a head are multiplied by; 0 leaves the head out. */
static inline float mask_head_factor(const attn_request *request, size_t head) {
    return request->head_mask != NULL ? request->head_mask[head] : 1.0F;
}
