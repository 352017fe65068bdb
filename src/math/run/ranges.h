/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.h: selections of heads, or of the words of a row, as ranges. */
#ifndef ATTND_MATH_RUN_RANGES_H
#define ATTND_MATH_RUN_RANGES_H

#include "math/kernels/kernels.h"

/* Ranges in order, none next to another. */
struct ranges {
    const struct range *items; /* [count] */
    size_t count;
};

/* Returns how many items all ranges have together. */
static inline size_t ranges_total(struct ranges ranges) {
    size_t total = 0;
    for (size_t i = 0; i < ranges.count; i++)
        total += ranges.items[i].end - ranges.items[i].first;
    return total;
}

/* Returns item number `index` of all ranges together. */
static inline size_t ranges_item(struct ranges ranges, size_t index) {
    const struct range *range = ranges.items;
    for (; index >= range->end - range->first; range++)
        index -= range->end - range->first;
    return range->first + index;
}

/* Returns which of the items of all ranges `item` is, or SIZE_MAX. */
static inline size_t ranges_find(struct ranges ranges, size_t item) {
    size_t before = 0;
    for (size_t i = 0; i < ranges.count && ranges.items[i].first <= item; i++) {
        if (item < ranges.items[i].end)
            return before + item - ranges.items[i].first;
        before += ranges.items[i].end - ranges.items[i].first;
    }
    return SIZE_MAX;
}

/* Returns how many items below `item` are in the ranges. */
static inline size_t ranges_below(struct ranges ranges, size_t item) {
    size_t count = 0;
    for (size_t i = 0; i < ranges.count && ranges.items[i].first < item; i++) {
        size_t end = ranges.items[i].end < item ? ranges.items[i].end : item;
        count += end - ranges.items[i].first;
    }
    return count;
}

#endif
