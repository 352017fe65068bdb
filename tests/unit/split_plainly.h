/* SPDX-License-Identifier: Apache-2.0 */
/* split_plainly.h: what a row attends to, by the definitions of include/attnd/heads.h. */
#ifndef ATTND_TESTS_SPLIT_PLAINLY_H
#define ATTND_TESTS_SPLIT_PLAINLY_H

#include <attnd/heads.h>
#include <math.h>

/* The keys of a sequence. */
struct plain_keys {
    size_t count, last; /* last: the one that is valid */
    const size_t *ids;  /* [count], or NULL */
    bool itself;        /* they are the queries */
    /* [count] of the row, above 0 on what it attends to; NULL where its weights are. */
    const double *even;
};

static bool plain_is_marked(const struct plain_keys *keys, size_t k) {
    return k == 0 || k == keys->last ||
           (keys->ids != NULL && keys->ids[k] == keys->ids[keys->last]);
}

/* Whether key `k` is at a place of row `i`. */
static bool plain_is_at(const struct plain_keys *keys, size_t i, size_t k, size_t place) {
    const size_t *ids = keys->ids;

    if (place == ATTN_PLACE_FIRST)
        return k == 0;
    if (place == ATTN_PLACE_SEPARATOR)
        return k > 0 && plain_is_marked(keys, k);
    if (!keys->itself)
        return false;
    if (place < ATTN_PLACE_OFFSETS)
        return k + ATTN_PLACE_SELF == i + place;
    if (ids == NULL)
        return false;
    if (place == ATTN_PLACE_INDUCTION)
        return k > 0 && k <= i && ids[k - 1] == ids[i];
    return ids[k] == ids[i] && (place == ATTN_PLACE_SAME || k < i);
}

/* Whether the row has a place: an offset of the sequence, or a key of some weight. */
static bool plain_has(const struct plain_keys *keys, const double *row, size_t i,
                      size_t place) {
    bool found = false;

    if (place == ATTN_PLACE_FIRST || place == ATTN_PLACE_SEPARATOR)
        return false;
    for (size_t k = 0; k < keys->count && !found; k++)
        found = plain_is_at(keys, i, k, place) &&
                (place < ATTN_PLACE_OFFSETS ||
                 (row[k] > 0 && !(place == ATTN_PLACE_SAME && k == i)));
    return found;
}

/* Adds row `i` of weights [keys->count]. */
static void split_plainly(const double *row, const struct plain_keys *keys, size_t i,
                          attn_head_sums *sums) {
    const double *even = keys->even != NULL ? keys->even : row;
    double rest = 0, unmarked = 0; /* their weights, and how many may have one */

    for (size_t k = 0; k < keys->count; k++) {
        rest += plain_is_marked(keys, k) ? 0 : row[k];
        unmarked += !plain_is_marked(keys, k) && even[k] > 0;
    }
    sums->rest_even += rest > 0 ? rest * log(unmarked) : 0;
    sums->rest += rest;
    sums->rest_itself += keys->itself ? rest : 0;
    for (size_t p = 0; p < ATTN_HEAD_PLACES; p++)
        sums->rest_rows[p] += plain_has(keys, row, i, p) ? rest : 0;
    for (size_t k = 0; k < keys->count; k++) {
        bool marked = plain_is_marked(keys, k);
        double w = row[k], away = keys->itself ? fabs((double)i - (double)k) * w : 0;
        double prefix = keys->itself && k <= i ? w : 0;
        sums->entropy -= w > 0 ? w * log(w) : 0;
        sums->rest_entropy -= w > 0 && !marked ? w * log(w / rest) : 0;
        sums->total += w;
        sums->prefix += prefix;
        sums->distance += away;
        sums->marked_prefix += marked ? prefix : 0;
        sums->marked_distance += marked ? away : 0;
        for (size_t p = 0; p < ATTN_HEAD_PLACES; p++) {
            bool at = plain_is_at(keys, i, k, p) &&
                      (p != ATTN_PLACE_SAME || plain_has(keys, row, i, p));
            sums->at[p] += at ? w : 0;
            if (p != ATTN_PLACE_FIRST && p != ATTN_PLACE_SEPARATOR)
                sums->marked_at[p] += at && marked ? w : 0;
        }
    }
}

#endif
