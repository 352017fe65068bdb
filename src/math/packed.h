/* SPDX-License-Identifier: Apache-2.0 */
/* packed.h: keys and values of one sequence that are kept as the kernels read them, for
 * any number of requests without a model. */
#pragma once

#include "math/kernels/kernels.h"

#include <attnd/attention.h>

/* Heads begin at multiples of so many numbers, behind which there may be anything. */
#define PACKED_HEAD_STEP 32

/* Numbers of `..._type`, "F32" or "BF16", aligned to 4 bytes. Immutable while a request
 * uses them. */
struct attn_packed {
    size_t num_kv_heads, num_keys; /* KV, Tk */
    size_t head_size, value_size;  /* D, Dv */
    /* [KV] heads in panels of keys, see packed_find_key(). Behind the last head there are
     * KEY_BLOCK float32 that may be read. */
    const void *keys;
    const void *values; /* [KV] heads of [Tk, Dv]; NULL: there are none */
    const char *keys_type, *values_type;
};

/* Returns how many numbers a head of keys, or of values, is from the next one; `size` is
 * D or Dv. */
static inline size_t packed_head_ld(const struct attn_packed *packed, size_t size) {
    size_t numbers = packed->num_keys * size + PACKED_HEAD_STEP - 1;
    return numbers - numbers % PACKED_HEAD_STEP;
}

/* Returns where the first number of a key is in its head. *ret_step is from one of its
 * numbers to the next: panels are those of struct query_panel. */
static inline size_t packed_find_key(const struct attn_packed *packed, size_t key,
                                     size_t *ret_step) {
    size_t first = key - key % KEY_BLOCK, left = packed->num_keys - first;
    *ret_step = left < KEY_BLOCK ? left : KEY_BLOCK;
    return first * packed->head_size + key - first;
}
