/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: moves projected keys and values to where the attention reads them, in words
 * and in the layouts of struct query_panel. */
#pragma once

#include "math/plan/plan.h"

/* Rows of keys or values: those of one sequence after another. None is direct. */
struct store_rows {
    const struct kernels *kernels;
    const struct sequence_position *sequences; /* [num_sequences] */
    const size_t *key_lens;                    /* [num_sequences] */
    size_t num_sequences;
};

/* Where projected rows go. */
struct store_place {
    float *y;         /* the first row of the first sequence */
    size_t unit;      /* columns of a head, or 1 */
    size_t head_rows; /* y is in [H][head_rows, unit]; or 0: in [rows, ld] */
    size_t ld;        /* floats from one row to the next */
};

/* Converts rows of keys, and transposes them into the panels of their sequences. `tile`
 * [rows, kernels->columns] has them, a panel of weights that begins at column
 * `first_column`; it is overwritten. Thread-safe for distinct rows or columns. */
void store_key_panels(const struct store_rows *all, const struct store_place *place,
                      size_t first_column, struct range rows, float *tile);

/* Converts rows of values to the pairs of their sequences; see first_value. `tile`
 * [rows, kernels->columns] has `columns`, which are at most a panel of weights.
 * Thread-safe for distinct rows or columns. */
void store_value_pairs(const struct store_rows *all, const struct store_place *place,
                       struct range columns, struct range rows, const float *tile);
