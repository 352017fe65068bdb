/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h: FNV-1a (Fowler, Noll and Vo 1991), for tables in memory. Not for secrets. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HASH_START 14695981039346656037U /* the hash of no bytes */

/* Returns the hash of what `hash` is of, followed by these bytes. */
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 1099511628211U;
    return hash;
}
