/* SPDX-License-Identifier: Apache-2.0 */
/* integers.h: the integers of a binary tensor, which are lengths or indices. Many tools
 * only have floats, so these are taken as well where they are whole. */
#pragma once

#include "base/dtype.h"
#include "wire/problem.h"

/* A tensor in a body. Everything is borrowed. */
struct wire_integers {
    const char *field;
    const struct dtype *dtype;  /* one for which wire_integers_allow() */
    const unsigned char *bytes; /* at any alignment */
    size_t rank;
    const size_t *shape; /* [rank] */
};

/* Returns whether integers may be stored as that type: I64, I32, F64 or F32. */
bool wire_integers_allow(const char *dtype);

/* Reads number `i`. *ret_number is SIZE_MAX when it is larger, or negative. Returns false
 * with *ret_problem set when it is not whole (Wrong type). */
bool wire_integers_read(const struct wire_integers *tensor, size_t i, size_t *ret_number,
                        struct wire_problem *ret_problem);

/* Reads an index that may count from the end: a negative one is that modulo 2^64.
 * *ret_index is that of PTRDIFF_MIN, which no list has, when it is too large or small. */
bool wire_integers_read_index(const struct wire_integers *tensor, size_t i,
                              size_t *ret_index, struct wire_problem *ret_problem);

/* Sets *ret_problem and returns false: number `i` is not within `min`..`max`. `limit` is
 * the reason for the range ("its sequence has 6 keys"). */
bool wire_integers_refuse(const struct wire_integers *tensor, size_t i, const char *limit,
                          int64_t min, size_t max, struct wire_problem *ret_problem);
