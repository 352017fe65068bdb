/* SPDX-License-Identifier: Apache-2.0 */
/* even.c: sums over ranges of keys in closed form; only keys without an order are looked
 * at one by one. */
#include "math/heads/parts.h"

#include "base/pace.h"
#include "math/attend/tokens.h"
#include "math/mask.h"
#include "math/run/run.h"

#include <math.h>

#define IDS_PER_STEP 8 /* that are compared */

/* A row of queries, whose weights are `share` on `count` keys of a range. */
struct even_row {
    const struct mask *mask;
    size_t row;
    struct range keys;
    bool by_pair; /* of the range, only keys that the mask allows */
    double count, share;
    const int32_t *to_mark, *ids; /* [Tk] of the sequence; see struct run */
    bool itself;
};

/* Whether a row attends to a key; `key` may be past any. */
static bool attends(const struct even_row *r, size_t key) {
    return r->keys.first <= key && key < r->keys.end &&
           (!r->by_pair || mask_attends(r->mask, r->row, key));
}

/* Adds the distances and the prefix of a range of keys. The sums of i - k for k below i,
 * and of k - i for k from i on, are a number of keys times the mean of the first and the
 * last. */
static void add_range(const struct even_row *r, attn_head_sums *even) {
    struct range keys = r->keys, prefix = range_clip(keys, 0, r->row + 1);
    size_t below = range_clip(keys, 0, r->row).end;
    double i = (double)r->row;

    even->prefix += (double)(prefix.end - prefix.first) * r->share;
    even->distance += (double)(below - keys.first) * r->share *
                      (2 * i - (double)keys.first - (double)below + 1) / 2;
    even->distance += (double)(keys.end - below) * r->share *
                      ((double)below + (double)keys.end - 1 - 2 * i) / 2;
}

/* Returns how many keys of a range that is looked at pair by pair a row attends to; adds
 * as add_range() where `even` is set. */
static size_t add_pairs(const struct even_row *r, attn_head_sums *even) {
    struct range keys = r->keys;
    size_t middle = range_clip(keys, 0, r->row + 1).end;
    double i = (double)r->row;
    const struct mask_sum below = mask_sum_keys(r->mask, r->row,
                                                (struct range){keys.first, middle}),
                          above = mask_sum_keys(r->mask, r->row,
                                                (struct range){middle, keys.end});
    if (even != NULL) {
        even->prefix += (double)below.count * r->share;
        even->distance += r->share * (i * (double)below.count - (double)below.rows +
                                      (double)above.rows - i * (double)above.count);
    }
    return below.count + above.count;
}

/* Adds what marked keys have of this. Returns how many there are. */
static size_t add_marked(const struct even_row *r, attn_head_sums *even) {
    size_t count = 0;

    for (size_t k = 0; k < r->keys.end; k++) {
        k += (size_t)r->to_mark[k];
        double distance = fabs((double)r->row - (double)k);
        size_t offset = k + ATTN_HEAD_REACH - r->row; /* perhaps out of range */
        pace_add(1);
        if (!attends(r, k))
            continue;
        count++;
        even->at[k == 0 ? ATTN_PLACE_FIRST : ATTN_PLACE_SEPARATOR] += r->share;
        if (!r->itself)
            continue;
        even->marked_prefix += k <= r->row ? r->share : 0;
        even->marked_distance += distance * r->share;
        if (k + ATTN_HEAD_REACH >= r->row && offset < ATTN_PLACE_OFFSETS)
            even->marked_at[offset] += r->share;
    }
    return count;
}

/* Adds the shares of keys first..end of a row that have its id, or with `back` 1 follow
 * one that has, to a place of ids. Returns how many there are. */
static size_t add_id_place(const struct even_row *r, size_t first, size_t end,
                           size_t back, size_t place, attn_head_sums *even) {
    const struct range part = range_clip(r->keys, first, end);
    int32_t own = r->ids[r->row], count = 0, marked = 0;

    for (size_t k = part.first; !r->by_pair && k < part.end; k++) {
        int32_t alike = r->ids[k - back] == own;
        count += alike;
        marked += alike & (r->to_mark[k] == 0);
    }
    for (size_t k = part.first; r->by_pair && k < part.end; k++) {
        int32_t alike = r->ids[k - back] == own && attends(r, k);
        count += alike;
        marked += alike & (r->to_mark[k] == 0);
    }
    pace_add((part.end - part.first) / IDS_PER_STEP);
    even->at[place] += r->share * count;
    even->marked_at[place] += r->share * marked;
    return (size_t)count;
}

/* Adds the places of ids. Returns the bits of those that the row has: not of `same`, when
 * it is the only key. */
static unsigned add_ids(const struct even_row *r, attn_head_sums *even) {
    size_t row = r->row, own = attends(r, row), end = r->keys.end;
    size_t before = add_id_place(r, 0, row, 0, ATTN_PLACE_DUPLICATE, even);
    size_t behind = add_id_place(r, 1, row + 1, 1, ATTN_PLACE_INDUCTION, even);
    attn_head_sums same = {0};
    bool others = add_id_place(r, 0, end, 0, ATTN_PLACE_SAME, &same) > own;

    even->at[ATTN_PLACE_SAME] += others ? same.at[ATTN_PLACE_SAME] : 0;
    even->marked_at[ATTN_PLACE_SAME] += others ? same.marked_at[ATTN_PLACE_SAME] : 0;
    return (others ? 1U : 0) | (before > 0 ? 2U : 0) | (behind > 0 ? 4U : 0);
}

/* Adds what even weights would amount to in a row of queries. A row without a valid key
 * has no weights at all in a model with sinks. Returns the bits of add_ids(); and, of how
 * many keys without a mark it attends to, the logarithm, or 0 for none. */
static unsigned add_even_row(struct even_row r, bool sinks, attn_head_sums *even,
                             float *ret_rest_log) {
    unsigned places = 0;

    *ret_rest_log = 0;
    r.keys = mask_find_keys(r.mask, 0, r.row);
    if (r.keys.first == r.keys.end && sinks)
        return 0;
    r.by_pair = r.mask->by_pair && r.keys.first < r.keys.end;
    if (r.keys.first == r.keys.end)
        r.keys = (struct range){0, r.mask->key_len};
    r.count = (double)(r.by_pair ? add_pairs(&r, NULL) : r.keys.end - r.keys.first);
    r.share = 1 / r.count;

    double unmarked = r.count - (double)add_marked(&r, even), rest = unmarked * r.share;
    even->entropy -= log(r.share);
    even->total += 1;
    if (r.itself) {
        r.by_pair ? (void)add_pairs(&r, even) : add_range(&r, even);
        for (size_t o = 0; o < ATTN_PLACE_OFFSETS; o++)
            even->at[o] +=
                r.row + o >= ATTN_HEAD_REACH && attends(&r, r.row + o - ATTN_HEAD_REACH)
                    ? r.share
                    : 0;
        places = r.ids != NULL ? add_ids(&r, even) : 0;
    }
    if (rest <= 0)
        return places;
    double rest_log = log(unmarked);
    *ret_rest_log = (float)rest_log;
    even->rest += rest;
    even->rest_entropy += rest * rest_log;
    even->rest_even += rest * rest_log;
    even->rest_itself += r.itself ? rest : 0;
    if (r.itself)
        tokens_add(r.row, r.mask->key_len, places, rest, even->rest_rows);
    return places;
}

/* Items are panels of queries. */
static size_t count_panels(const struct run *run, size_t sequence) {
    return (run->request->query_lens[sequence] - 1) /
               run->model->engine.kernels->columns +
           1;
}

static void even_items(const struct run *run, const struct sequence_position *at,
                       struct range items, size_t thread) {
    const attn_request *request = run->request;
    size_t columns = run->model->engine.kernels->columns;
    size_t query_len = request->query_lens[at->sequence];
    bool itself = tokens_are_shared(request, at);
    struct mask mask;
    struct even_row r = {.mask = &mask,
                         .to_mark = run->to_mark + at->first_key,
                         .ids =
                             run->ids != NULL && itself ? run->ids + at->first_key : NULL,
                         .itself = itself};

    (void)thread;
    mask_init(&mask, request, at->sequence, at->first_query, at->first_key);
    for (size_t item = items.first; item < items.end; item++) {
        size_t row = item * columns, end = row + columns;
        attn_head_sums even = {0};

        for (; row < end && row < query_len; row++) {
            size_t query = at->first_query + row;
            r.row = row;
            run->id_places[query] = (uint8_t)add_even_row(r, run->model->info.score.sinks,
                                                          &even, &run->rest_logs[query]);
        }
        run->even_sums[run->first_items[at->sequence] + item] = even;
    }
}

void heads_even(const struct run *run) {
    run_items(run, run->plan->flops.even, count_panels, even_items);
}
