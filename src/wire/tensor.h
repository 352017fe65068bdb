/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h: one tensor of a request, in one form for every format of request body. */
#pragma once

#include "base/pace.h"

#include <stdbool.h>
#include <stddef.h>

#define WIRE_LEVELS_UNBATCHED 2 /* nested lists, or the rank: [T][width] */
#define WIRE_LEVELS_BATCHED   3 /* [B][T][width] */

/* Returns the length that all of `count` sequences have, at least 1; SIZE_MAX when they
 * differ. */
static inline size_t wire_common_len(const size_t *lens, size_t count) {
    for (size_t b = 1; b < count; b++) {
        pace_add(1);
        if (lens[b] != lens[0])
            return SIZE_MAX;
    }
    return lens[0];
}

/* The rows of all sequences follow each other without padding. Every count, length and
 * width is at least 1. `lens` is in an arena; `rows` may be in the body instead. */
struct wire_tensor {
    bool batched;         /* it has a batch axis */
    bool unpadded;        /* sent as [num_rows, width]; errors use that row index */
    size_t num_sequences; /* B; 1 when not batched */
    size_t *lens;         /* [B], rows of each sequence */
    size_t num_rows;      /* sum of lens */
    size_t width;
    size_t heads;      /* an axis of a row, [heads, width / heads]; 0: it has none */
    const float *rows; /* [num_rows, width]; NULL where they are encoded */
    /* Or elements of that type in the body, see attn_request; else NULL. */
    const void *encoded;
    const char *type;
    bool stored; /* in a capture, where all numbers are finite: it has neither */
};

/* Returns the length that all sequences of a tensor have, or SIZE_MAX. */
static inline size_t wire_tensor_len(const struct wire_tensor *tensor) {
    return wire_common_len(tensor->lens, tensor->num_sequences);
}
