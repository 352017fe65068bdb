/* SPDX-License-Identifier: Apache-2.0 */
/* mask.c: turns lengths, the causal mask, windows and chunks into ranges of keys. */
#include "math/mask.h"

#include "base/pace.h"

#include <math.h>
#include <stdint.h>

/* Whether positions are compared at all. */
static bool compares_positions(const struct mask *mask) {
    return mask->causal || mask->window > 0 || mask->chunk > 0;
}

static bool is_ascending(const size_t *positions, size_t count) {
    for (size_t i = 1, start = 1; i < count; start = i) {
        size_t end = count - i < PACE_PIECE ? count : i + PACE_PIECE;
        while (i < end && positions[i] >= positions[i - 1])
            i++;
        pace_add(i - start);
        if (i < end)
            return false;
    }
    return true;
}

void mask_init(struct mask *mask, const attn_request *request, size_t sequence,
               size_t first_query, size_t first_key) {
    const size_t *lens = request->valid_lens;
    bool per_query = lens != NULL && request->valid_lens_per_query;
    size_t key_len = request->key_lens[sequence];

    *mask = (struct mask){
        .key_len = key_len,
        .valid_len = lens != NULL && !per_query ? lens[sequence] : key_len,
        .valid_lens = per_query ? lens + first_query : NULL,
        .causal = request->causal,
        .window = request->window,
        .chunk = request->chunk,
        .prefix_len = request->causal && request->prefix_lens != NULL
                          ? request->prefix_lens[sequence]
                          : 0,
        .bias_head_ld = request->bias_head_ld,
        .bias_row_ld = request->bias_row_ld,
    };
    if (request->bias != NULL)
        mask->bias = request->bias + sequence * request->bias_sequence_ld;
    if (request->positions != NULL)
        mask->positions = request->positions + first_query;
    if (request->key_positions != NULL)
        mask->key_positions = request->key_positions + first_key;
    mask->by_pair = mask->key_positions != NULL && compares_positions(mask) &&
                    !is_ascending(mask->key_positions, key_len);
}

struct mask_allowed mask_find_allowed(const struct mask *mask, size_t query) {
    size_t position = mask_position(mask, query), window = mask->window;
    struct mask_allowed allowed = {0, SIZE_MAX - 1, SIZE_MAX - 1};

    if (window > 0 && mask->causal)
        allowed.low = position >= window ? position - window + 1 : 0;
    else if (window > 0)
        allowed.low = position > window ? position - window : 0;
    if (mask->causal)
        allowed.high = position;
    else if (window > 0 && window < SIZE_MAX - 1 - position)
        allowed.high = position + window;
    if (mask->chunk > 0) {
        size_t begin = position - position % mask->chunk;
        allowed.low = begin > allowed.low ? begin : allowed.low;
        allowed.prefix_high = begin + mask->chunk - 1;
        if (allowed.high > allowed.prefix_high)
            allowed.high = allowed.prefix_high;
    }
    return allowed;
}

/* Returns how many of the first `count` keys, whose positions ascend, are before
 * `position`. */
static size_t count_keys_before(const struct mask *mask, size_t count, size_t position) {
    size_t first = 0;

    if (mask->key_positions == NULL)
        return size_min(position, count);
    while (first < count) {
        size_t middle = first + (count - first) / 2;
        if (mask->key_positions[middle] < position)
            first = middle + 1;
        else
            count = middle;
    }
    return first;
}

/* Whether the positions allow a key. */
static bool is_allowed(const struct mask *mask, struct mask_allowed allowed, size_t key) {
    size_t high = key < mask->prefix_len ? allowed.prefix_high : allowed.high;
    return mask_key_position(mask, key) - allowed.low <= high - allowed.low;
}

bool mask_attends(const struct mask *mask, size_t query, size_t key) {
    return is_allowed(mask, mask_find_allowed(mask, query), key);
}

struct range mask_bound_keys(const struct mask *mask, size_t query) {
    size_t valid = mask->valid_lens != NULL ? mask->valid_lens[query] : mask->valid_len;
    const struct mask_allowed allowed = mask_find_allowed(mask, query);
    struct range keys = {0, valid};

    if (!mask->by_pair && compares_positions(mask)) {
        size_t prefix = count_keys_before(mask, size_min(mask->prefix_len, valid),
                                          allowed.prefix_high + 1);
        keys.end = size_max(count_keys_before(mask, valid, allowed.high + 1), prefix);
        keys.first = count_keys_before(mask, keys.end, allowed.low);
    }
    return keys;
}

/* The keys of one query are compared with these, one by one. */
struct comparison {
    const struct mask *mask;
    struct mask_allowed allowed; /* where mask->by_pair is set */
    const float *bias;           /* [Tk]; NULL: none */
};

static bool is_hidden(const struct comparison *c, size_t key) {
    return (c->mask->by_pair && !is_allowed(c->mask, c->allowed, key)) ||
           (c->bias != NULL && c->bias[key] == -INFINITY);
}

/* Returns the first key of a range that is not hidden, or its end. */
static size_t find_first(const struct comparison *c, struct range keys) {
    for (size_t start = keys.first; start < keys.end; start = keys.first) {
        size_t end = keys.end - start < PACE_PIECE ? keys.end : start + PACE_PIECE;
        while (keys.first < end && is_hidden(c, keys.first))
            keys.first++;
        pace_add(keys.first - start);
        if (keys.first < end)
            break;
    }
    return keys.first;
}

/* Returns where the last key that is not hidden ends, or where the range begins. */
static size_t find_end(const struct comparison *c, struct range keys) {
    for (size_t start = keys.end; start > keys.first; start = keys.end) {
        size_t end = start - keys.first < PACE_PIECE ? keys.first : start - PACE_PIECE;
        while (keys.end > end && is_hidden(c, keys.end - 1))
            keys.end--;
        pace_add(start - keys.end);
        if (keys.end > end)
            break;
    }
    return keys.end;
}

struct range mask_find_keys(const struct mask *mask, size_t head, size_t query) {
    const struct comparison c = {mask, mask_find_allowed(mask, query),
                                 mask_bias(mask, head, query)};
    struct range keys = mask_bound_keys(mask, query);

    if (!mask->by_pair && c.bias == NULL)
        return keys;
    keys.end = find_end(&c, keys);
    keys.first = find_first(&c, keys);
    return keys;
}

struct mask_sum mask_sum_keys(const struct mask *mask, size_t query, struct range keys) {
    const struct mask_allowed allowed = mask_find_allowed(mask, query);
    struct mask_sum sum = {0, 0};

    for (size_t k = keys.first, end; k < keys.end;) {
        end = keys.end - k < PACE_PIECE ? keys.end : k + PACE_PIECE;
        pace_add(end - k);
        for (; k < end; k++) {
            bool attends = is_allowed(mask, allowed, k);
            sum.count += attends;
            sum.rows += attends ? k : 0;
        }
    }
    return sum;
}

bool mask_is_even(const size_t *positions, size_t count) {
    for (size_t i = 1; positions != NULL && i < count; i++) {
        pace_add(1);
        if (positions[i] != positions[i - 1] + 1)
            return false;
    }
    return true;
}
