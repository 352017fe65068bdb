/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h: the inner loops of the layer, one set per instruction set.
 *
 * All sets are made from body.inc, which has the one family of register tiles:
 * rows of a matrix as they are times a "panel" of `columns` columns, a few vectors wide.
 * The columns of a panel are output features in a projection, and queries in the
 * attention. Each element is summed along the depth in order, whatever tile it falls
 * into, so its bits do not depend on its neighbours. */
#ifndef ATTND_MATH_KERNELS_KERNELS_H
#define ATTND_MATH_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#define KERNEL_COLUMNS_MAX 32 /* of any set */
#define KEY_BLOCK          96 /* keys whose scores are computed before they are used */

/* An element of a product is what 32 bits hold: one float32, or in a set for bfloat16 two
 * of those, the first in the lower half. Elements are kept where floats are. */

/* Weights [out, in] in panels of elements: [ceil(out / columns)][depth][columns], the
 * last one padded with 0; the numbers of an element are neighbours in a row of the
 * weights. */
struct panels {
    const float *data; /* aligned to 64 bytes */
    const float *bias; /* [ceil(out / columns) * columns] float32; zeros without bias */
    size_t out;
    size_t depth; /* elements in a row of `in` numbers */
};

/* Some queries of one head of one sequence: at most `columns` of them. Rows of queries,
 * keys, values and outputs lie `..._ld` floats apart. */
struct panel_of_queries {
    const float *queries; /* [num_queries, score_size] */
    size_t queries_ld;
    size_t num_queries;
    const float *keys; /* [key_len, score_size]; elements, but float32 when additive */
    size_t keys_ld;
    const float *values; /* [key_len, head_size]; with two numbers to an element those
                            of two rows are in one, [ceil(key_len / 2), head_size] */
    size_t values_ld;
    size_t key_len;
    const size_t *num_keys;      /* [num_queries] keys that each attends to, 1..key_len */
    const bool *uniform;         /* [num_queries] attends to all its num_keys alike */
    const float *additive_score; /* [score_size]; NULL for scaled dot product */
    size_t score_size;           /* columns that a score is made from */
    size_t head_size;
    float factor;   /* on the outputs; not 0 */
    float *outputs; /* [num_queries, head_size]; may be `queries` itself */
    size_t outputs_ld;
    float *weights; /* [num_queries, key_len] to be written; NULL: not wanted */
    void *scratch;  /* kernel_scratch_bytes() */
};

struct kernels {
    const char *name;
    size_t columns; /* of a panel */
    size_t numbers; /* in an element: 1, or 2 in a set for bfloat16 */
    /* y [rows, columns of panels first..end] = x [rows, depth] W^T + b, x in elements,
     * sums and y in float32 */
    void (*project)(const struct panels *panels, size_t first, size_t end, const float *x,
                    size_t x_ld, size_t rows, float *y, size_t y_ld);
    /* The fused attention: scores, softmax and weighted sum of values, block of keys by
     * block, normalised once at the end (Milakov and Gimelshein 2018; Dao et al. 2022).
     */
    void (*attend)(const struct panel_of_queries *panel);
    /* values[i] = 2^values[i] for values <= 128; at most 2 units in the last place off,
     * and where the result would be less than 2^-126, it or 0. */
    void (*exp2)(float *values, size_t count);
    /* Does `count` rounds of multiply-adds that wait for nothing but each other; returns
     * how many floating-point operations one round is. What this reaches is the limit of
     * the CPU. */
    size_t (*multiply_add)(size_t count, float *numbers);
    /* Of sets for bfloat16, else NULL: make elements, rounded to the nearest bfloat16, of
     * [rows, width] floats; either may write where it reads.
     * narrow(): of neighbours in a row; `to` is [rows, ceil(width / 2)].
     * narrow_pairs(): of neighbours in a column; `to` is [ceil(rows / 2), width]. */
    void (*narrow)(const float *from, size_t from_ld, size_t rows, size_t width,
                   float *to, size_t to_ld);
    void (*narrow_pairs)(const float *from, size_t from_ld, size_t rows, size_t width,
                         float *to, size_t to_ld);
};

/* Returns the set called `name` ("avx512", "avx2", "neon", "portable"), or the fastest
 * that this CPU has for "auto", with `numbers` to an element; NULL when this build or CPU
 * has no such. Thread-safe. */
const struct kernels *kernels_get(const char *name, size_t numbers);

/* Lists the sets that this build and CPU have, fastest first, those for bfloat16 last;
 * NULL after the last. */
const struct kernels *kernels_available(size_t index);

/* Returns the bytes of scratch that attend() needs for sequences of `key_len` keys;
 * SIZE_MAX when that cannot be counted. */
size_t kernel_scratch_bytes(size_t score_size, size_t head_size, size_t key_len,
                            bool weights);

#endif
