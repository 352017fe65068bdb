/* SPDX-License-Identifier: Apache-2.0 */
/* even.c: sums over ranges of keys in closed form; only keys without an order are looked
 * at one by one. */
#include "math/heads/parts.h"

#include "math/first_key.h"
#include "math/mask.h"
#include "math/run/run.h"

#include <math.h>

/* Adds what even weights of `share` on n keys leave for the first key and the rest. */
static void add_even_first(size_t row, bool attends, double n, double share, bool itself,
                           attn_head_sums *even) {
    double first = attends ? share : 0;

    even->total += n * share;
    even->first += first;
    even->rest_entropy += n * first_key_entropy(share) - first_key_entropy(first);
    first_key_add(first, row, itself, even);
    first_key_add_rest(n * share - first, itself, even);
}

/* Adds what even weights of `share` on some keys amount to, in row `row`. `itself` says
 * that the keys are the queries. */
static void add_even_keys(size_t row, struct mask_keys keys, double share, bool itself,
                          attn_head_sums *even) {
    double n = (double)(keys.end - keys.first), i = (double)row;
    struct mask_keys near = {row > 2 ? row - 2 : 0, row + 3};
    /* Of the keys below the row's own, and up to it. */
    size_t below = row < keys.end ? row : keys.end;
    size_t prefix = row < keys.end ? row + 1 : keys.end;

    even->entropy -= n * share * log(share);
    add_even_first(row, keys.first == 0, n, share, itself, even);
    if (!itself)
        return;
    even->self += keys.first <= row && row < keys.end ? share : 0;
    even->previous += keys.first < row && row <= keys.end ? share : 0;
    even->next += keys.first <= row + 1 && row + 1 < keys.end ? share : 0;
    near.first = near.first > keys.first ? near.first : keys.first;
    near.end = near.end < keys.end ? near.end : keys.end;
    even->near += near.first < near.end ? (double)(near.end - near.first) * share : 0;
    even->prefix += prefix > keys.first ? (double)(prefix - keys.first) * share : 0;

    /* The sums of i - k for k below i, and of k - i for k from i on: both are a number of
     * keys times the mean of the first and the last. */
    below = below > keys.first ? below : keys.first;
    even->distance += (double)(below - keys.first) * share *
                      (2 * i - (double)keys.first - (double)below + 1) / 2;
    even->distance += (double)(keys.end - below) * share *
                      ((double)below + (double)keys.end - 1 - 2 * i) / 2;
}

/* Whether a query attends to a key of a range; `key` may be past any. */
static bool attends_in(const struct mask *mask, size_t row, struct mask_keys keys,
                       size_t key) {
    return keys.first <= key && key < keys.end && mask_attends(mask, row, key);
}

/* Adds even weights over keys in no order: those of a range that the row attends to. */
static void add_even_pairs(const struct mask *mask, size_t row, struct mask_keys keys,
                           bool itself, attn_head_sums *even) {
    size_t middle = row < keys.end ? row + 1 : keys.end;
    middle = middle > keys.first ? middle : keys.first;
    const struct mask_sum below = mask_sum_keys(mask, row,
                                                (struct mask_keys){keys.first, middle}),
                          above = mask_sum_keys(mask, row,
                                                (struct mask_keys){middle, keys.end});
    double share = 1 / (double)(below.count + above.count), i = (double)row;

    even->entropy -= log(share);
    add_even_first(row, attends_in(mask, row, keys, 0), 1 / share, share, itself, even);
    if (!itself)
        return;
    even->self += attends_in(mask, row, keys, row) ? share : 0;
    even->previous += row > 0 && attends_in(mask, row, keys, row - 1) ? share : 0;
    even->next += attends_in(mask, row, keys, row + 1) ? share : 0;
    for (size_t k = row > 2 ? row - 2 : 0; k < row + 3; k++)
        even->near += attends_in(mask, row, keys, k) ? share : 0;
    even->prefix += (double)below.count * share;
    even->distance += share * (i * (double)below.count - (double)below.rows +
                               (double)above.rows - i * (double)above.count);
}

/* Adds what even weights would amount to in a row of queries. A row without a valid key
 * has no weights at all in a model with sinks. */
static void add_even_row(const struct mask *mask, size_t row, bool itself, bool sinks,
                         attn_head_sums *even) {
    struct mask_keys keys = mask_find_keys(mask, 0, row);
    size_t count = keys.end - keys.first;

    if (count == 0 && sinks)
        return;
    if (count > 0 && mask->by_pair) {
        add_even_pairs(mask, row, keys, itself, even);
        return;
    }
    if (count == 0)
        keys = (struct mask_keys){0, mask->key_len};
    add_even_keys(row, keys, 1 / (double)(keys.end - keys.first), itself, even);
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
    bool itself =
        mask_keys_are_queries(request, at->sequence, at->first_query, at->first_key);
    struct mask mask;

    (void)thread;
    mask_init(&mask, request, at->sequence, at->first_query, at->first_key);
    for (size_t item = items.first; item < items.end; item++) {
        size_t row = item * columns, end = row + columns;
        attn_head_sums even = {0};

        for (; row < end && row < query_len; row++)
            add_even_row(&mask, row, itself, run->model->info.score.sinks, &even);
        run->even_sums[run->first_items[at->sequence] + item] = even;
    }
}

void heads_even(const struct run *run) {
    run_items(run, run->plan->flops.even, count_panels, even_items);
}
