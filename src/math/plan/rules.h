/* SPDX-License-Identifier: Apache-2.0 */
/* rules.h: which way a sequence is computed, and what of it is wanted. */
#pragma once

#include "math/model.h"
#include "math/plan/plan.h"

/* Returns how a sequence attends. Reads plan->layer.takes_direct and takes_groups.
 *
 * SEQUENCE_DIRECT: few queries over many keys, whose keys and values are never projected.
 * The score q (W x + b) is (W^T q) x, plus a number that is the same for all keys of a
 * query, so that softmax does not see it. The weights sum to 1, so the weighted sum of
 * W x + b is W times that of x, plus b. For each number of a key or value that takes H*Tq
 * multiply-adds, where its projection takes H*D. A direct sequence has other bits than
 * the same one projected. So the rule depends on nothing but the model and the lengths of
 * the sequence: the engine is native, the layer plain, scoring is scaled dot product, Tk
 * is at least 1,024, and 4 Tq is at most D.
 *
 * SEQUENCE_GROUPED: the queries of one head leave lanes of a panel idle, so those of all
 * heads that share a key head are its rows. So keys are read once for all. */
enum sequence_kind plan_find_kind(const struct plan *plan, size_t sequence);

/* How the attention of one sequence is divided into items, which are ordered by the heads
 * that attend together, panel and chunk. When the mean of the weights is wanted, an item
 * does all heads; and all panels, where several heads have rows in one. */
struct plan_items {
    enum sequence_kind kind;
    size_t shared; /* heads that attend together: 1, those of a key head, or all */
    size_t rows;   /* of these that are scored, at most; but one head's at least */
    size_t heads, panels, chunks;
};

struct plan_items plan_items(const struct plan *plan, size_t sequence);

/* What is computed of a head, as bits. */
enum head_uses {
    HEAD_SCORED = 1, /* its scores are: for its outputs, or for its weights */
    HEAD_SUMMED = 2  /* its outputs are */
};

/* Returns the bits of enum head_uses of a head; 0: it is left out. */
unsigned plan_find_uses(const struct plan *plan, size_t head);

/* Returns whether spans are so many that sums up to each key are made first. */
static inline bool plan_sums_prefixes(const attn_request *request) {
    return request->reduce.spans != NULL && request->reduce.num_spans > REDUCE_SPANS_FEW;
}
