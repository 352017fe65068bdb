/* SPDX-License-Identifier: Apache-2.0 */
/* size.h: size arithmetic that cannot wrap around.
 *
 * Sizes from outside are added and multiplied only by these functions. Those that return
 * bool return false, and write nothing, when the result does not fit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool size_mul(size_t a, size_t b, size_t *ret_product) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret_product = product;
    return true;
}

static inline bool size_add(size_t a, size_t b, size_t *ret_sum) {
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *ret_sum = sum;
    return true;
}

/* Adds a * b to *sum. */
static inline bool size_add_mul(size_t *sum, size_t a, size_t b) {
    size_t product;
    return size_mul(a, b, &product) && size_add(*sum, product, sum);
}

/* Adds `a` to *sum, which becomes and stays SIZE_MAX when the result does not fit. */
static inline void size_add_saturating(size_t *sum, size_t a) {
    if (!size_add(*sum, a, sum))
        *sum = SIZE_MAX;
}

/* Adds a * b to *sum, which becomes and stays SIZE_MAX when the result does not fit. */
static inline void size_add_mul_saturating(size_t *sum, size_t a, size_t b) {
    if (!size_add_mul(sum, a, b))
        *sum = SIZE_MAX;
}

/* Returns a * b, or SIZE_MAX. */
static inline size_t size_product(size_t a, size_t b) {
    size_t product = SIZE_MAX;
    size_mul(a, b, &product);
    return product;
}

static inline size_t size_min(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t size_max(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Rounds up to a multiple of `unit`, a power of two. */
static inline bool size_round_up(size_t a, size_t unit, size_t *ret_rounded) {
    size_t sum;
    if (!size_add(a, unit - 1, &sum))
        return false;
    *ret_rounded = sum & ~(unit - 1);
    return true;
}
