/* SPDX-License-Identifier: Apache-2.0 */
/* norm.h: norms of rows, and of parts of a row that lie in several places.
 *
 * Bits depend on the numbers of the row alone. The functions are thread-safe for distinct
 * results. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A norm of rows of `size` numbers. */
struct norm {
    bool centred; /* the mean is taken from the numbers first (layer norm); else RMS */
    double eps;
    const float *weight; /* [size]; NULL: none, and no bias either */
    const float *bias;   /* [size]; NULL: none */
    size_t size;
};

/* The numbers of a row lose `mean`, and are then multiplied by `scale`. */
struct norm_scale {
    float mean, scale;
};

/* Finds them for a row in `parts` parts, each of norm->size / parts numbers and `ld`
 * floats after the one before. */
struct norm_scale norm_find(const struct norm *norm, const float *row, size_t parts,
                            size_t ld);

/* Norms `count` numbers of a row, from number `first` on: from x to y, which may be x. */
void norm_apply(const struct norm *norm, struct norm_scale by, size_t first, size_t count,
                const float *x, float *y);

/* Norms a whole row. */
void norm_row(const struct norm *norm, const float *x, float *y);

/* Clamps numbers to -clip..clip. A NaN stays one, and an infinity becomes one: it may
 * come of a sum that overflowed in passing. */
void norm_clip(float clip, size_t count, float *x);
