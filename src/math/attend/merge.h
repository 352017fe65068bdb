/* SPDX-License-Identifier: Apache-2.0 */
/* merge.h: merges what queries attend to in chunks of their keys.
 *
 * The softmax over all keys follows from those over the chunks: each chunk has a largest
 * score and, relative to it, the sum of the weights 2^(score - max) and the sum of the
 * values times these weights. Two such results make one of all their keys (Milakov and
 * Gimelshein 2018, section 3.1). Results depend on the order in which chunks are merged,
 * in the last bits, so they are always merged in the order of the keys. */
#pragma once

#include "math/kernels/kernels.h"

/* The outputs of some queries in one head, with the maximum and sum of their softmax. All
 * memory is the caller's. */
struct partial {
    float
        *max; /* [count] what sums are relative to, an exponent of 2; -INFINITY: no key */
    float *sum;     /* [count] of the weights, 0 without a key */
    float *outputs; /* [count, size] weighted sums of values, 0 without a key */
};

/* Sets the results of `count` queries to what no key at all gives. */
void partial_clear(const struct partial *partial, size_t count, size_t size);

/* Merges the results of a chunk into `total`, which has those of the keys before it. A
 * query that has no key in one of them keeps the bits of the other. Count is at most
 * KERNEL_COLUMNS_MAX. Uses kernels->exp2(). Thread-safe for distinct memory. */
void partial_merge(const struct kernels *kernels, size_t count, size_t size,
                   const struct partial *chunk, const struct partial *total);

/* Computes what the weights of a chunk, relative to chunk_max [count], are to be
 * multiplied by: 2^(chunk_max - max) / sum of the total; 0 for a query without a key in
 * the chunk, but NaN where the total has a sum of 0. Count is at most
 * KERNEL_COLUMNS_MAX. */
void partial_factors(const struct kernels *kernels, size_t count, const float *chunk_max,
                     const struct partial *total, float *ret_factors);
