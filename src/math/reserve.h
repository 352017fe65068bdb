/* SPDX-License-Identifier: Apache-2.0 */
/* reserve.h: lays out several arrays in one block of memory, before it is allocated. */
#pragma once

#include "base/size.h"

#include <attnd/attention.h>

/* Reserves [rows, columns] floats at the end of a block of *floats, rounded up so that
 * the next array begins at ATTN_ALIGNMENT too. *ret_offset is where the array begins, in
 * floats. Returns false when the sizes overflow; *floats and *ret_offset are then
 * unspecified. */
static inline bool reserve_floats(size_t *floats, size_t rows, size_t columns,
                                  size_t *ret_offset) {
    size_t size;
    *ret_offset = *floats;
    return size_mul(rows, columns, &size) &&
           size_round_up(size, ATTN_ALIGNMENT / sizeof(float), &size) &&
           size_add(*floats, size, floats);
}

/* A block of memory that arrays are taken of, one after the other. Without memory they
 * are only measured. */
struct reserve {
    float *memory;
    size_t floats; /* that are taken; SIZE_MAX: more than fit */
};

/* Takes [rows, width] floats as reserve_floats() does, and returns them; NULL without
 * memory. */
static inline void *reserve_take(struct reserve *block, size_t rows, size_t width) {
    size_t first;
    if (!reserve_floats(&block->floats, rows, width, &first))
        block->floats = SIZE_MAX;
    return block->memory != NULL ? block->memory + first : NULL;
}
