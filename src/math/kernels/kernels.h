/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h: the inner loops of the layer, one set of them for each instruction set.
 *
 * All sets are made from body.inc. Its one family of register tiles multiplies rows of a
 * matrix, as they are stored, by a panel: columns that are packed together, a few vectors
 * wide. The columns of a panel are output features in a projection, and queries in the
 * attention. Each number of a product is summed along the depth in order, whatever tile
 * it falls into, so its bits do not depend on its neighbours.
 *
 * Products read their factors in words of 32 bits. A word is one float32 or, in a set for
 * bfloat16, a pair of bfloat16 that are neighbours along the depth, the first of them in
 * the lower half (the VNNI layout). Words are stored in arrays of float. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KERNEL_COLUMNS_MAX 32 /* of any set */
#define KEY_BLOCK          96 /* keys whose scores are computed before they are used */
#define KERNEL_FEW_MAX     32 /* queries that attend_few() takes */
#define KERNEL_REACH       16 /* offsets of keys that are summed, each way */
#define KERNEL_ID_PLACES   3  /* same token, duplicate, induction */
#define KERNEL_CHUNK_KEYS  ((size_t)24 * KEY_BLOCK) /* longer sequences: in chunks */
#define KERNEL_FAR_SCORE   (-3.3e38F)
#define KERNEL_PEAK_WORDS  8192 /* of multiply_add_loaded(): they fit every cache */

/* Weights [out, in], packed in panels of words by kernels->pack():
 * [ceil(out / columns)][steps][step_words][columns]. The last panel is padded with 0, as
 * is the depth, to whole steps of the kernels. */
struct panels {
    const float *data; /* aligned to 64 bytes */
    const float *bias; /* [ceil(out / columns) * columns] float32; zeros without bias */
    size_t out;
    size_t steps; /* in a row of `in` numbers: in / kernels->step_numbers, rounded up */
};

/* The least and the largest magnitude of some numbers other than 0; infinite and 0 when
 * there are none. When some are NaN, the largest is. */
struct magnitudes {
    float least, largest;
};

/* A half-open range. */
struct range {
    size_t first, end;
};

/* Sums over some keys, for each query of a panel, whose own position is i. They are
 * float32 within a block only. */
struct key_sums {
    double entropy[KERNEL_COLUMNS_MAX];  /* -w[k] ln w[k] */
    double total[KERNEL_COLUMNS_MAX];    /* w[k] */
    double distance[KERNEL_COLUMNS_MAX]; /* |i - k| w[k] */
    double prefix[KERNEL_COLUMNS_MAX];   /* w[0] .. w[i] */
    /* With ids, as ATTN_PLACE_SAME and those behind it. */
    double ids[KERNEL_ID_PLACES][KERNEL_COLUMNS_MAX];
};

/* Sums over the weights of each query of a panel. */
struct panel_sums {
    struct key_sums rest, marked;    /* of keys that are not marked, and that are */
    float first[KERNEL_COLUMNS_MAX]; /* w[0] */
    float at[KERNEL_COLUMNS_MAX][2 * KERNEL_REACH + 1]; /* w[i - 16] .. w[i + 16] */
};

/* Some queries of one head of one sequence: at most `columns` of them. Rows of queries,
 * keys, values and outputs are `..._ld` floats apart.
 *
 * When `max` is set, the keys are a chunk of the sequence, of at most KERNEL_CHUNK_KEYS.
 * Weights, their sums and outputs are then relative to the largest score of the chunk, or
 * to one that is at most 8 less: they are neither divided by `sum` nor multiplied by
 * `factor`. merge.h has the rest. */
struct query_panel {
    const float *queries; /* [num_queries, score_size] float32 */
    size_t queries_ld;
    size_t num_queries;
    const float *keys; /* [key_len, score_size] in words, but float32 when additive */
    size_t keys_ld;
    /* Or they are transposed in panels of KEY_BLOCK keys, of which the last one has those
     * that are left: word d of key i of a panel of n keys is at d * n + i. The panel of
     * key k begins at k * keys_ld. Never with additive scores. The KEY_BLOCK words behind
     * the last panel may be read too. */
    bool keys_in_panels;
    /* Such panels have bfloat16, two in a word of `keys`, where all else counts numbers.
     * Only for attend_few() and score(), in sets for float32. */
    bool keys_in_bf16;
    const float *values; /* [key_len, head_size] float32, or pairs of neighbours in a
                            column, [ceil(key_len / 2), head_size] */
    size_t values_ld;
    size_t key_len;
    /* [num_queries] keys that each attends to: 1..key_len, or of a chunk also none */
    const size_t *end_keys;
    /* [num_queries] the first of them: below end_keys, or of a chunk also equal to it;
     * NULL: 0. Blocks of keys before all of these cost nothing. */
    const size_t *first_keys;
    const bool *uniform;         /* [num_queries] attends to all its keys alike */
    const float *additive_score; /* [score_size]; NULL for scaled dot product */
    size_t score_size;           /* columns that a score is made from */
    size_t head_size;
    float scale;   /* on scaled dot products */
    float softcap; /* c: a scaled score s becomes c tanh(s / c); 0: it does not */
    /* Added to the scores then; -INFINITY where a query does not attend to a key after
     * all. Scores of a uniform query stay 0. NULL adds nothing. A query whose pairs are
     * all masked gets NaN, or of a chunk 0. attend() reads [key_len,
     * columns] with bias_ld equal to columns, attend_few() [num_queries, key_len]. Rows
     * are bias_ld floats apart, which is a whole number of vectors. Only what is between
     * first_keys and end_keys is used. */
    const float *bias;
    size_t bias_ld;
    /* It may be any float32. Sums below KERNEL_FAR_SCORE, as exponents of 2, are then
     * drawn together, so that none passes the range. */
    bool far_bias;
    float factor;   /* on the outputs; not 0 */
    float *outputs; /* [num_queries, head_size]; may be `queries` itself */
    size_t outputs_ld;
    /* [num_queries] rows [key_len] to be written, of which some may be NULL; or NULL when
     * none is wanted. */
    float *const *weights;
    /* [num_queries] of a chunk, to be written; or both NULL. The largest score is an
     * exponent of 2, and -INFINITY where a query attends to no key, or all of its scores
     * are below the range of float32. */
    float *max, *sum;
    ptrdiff_t position;      /* of the first query, counted from the first key */
    struct panel_sums *sums; /* to be written; NULL: not wanted */
    /* With sums, of all keys of the sequence, where the panel's begin at first_key: how
     * far the next marked one is; and ids, or NULL, which queries have by position. */
    const int32_t *to_mark, *ids;
    size_t first_key;
    void *scratch; /* kernel_scratch_bytes() */
};

/* Returns where the panel that begins at a key is, or its row. */
static inline const float *query_panel_keys(const struct query_panel *panel, size_t key) {
    size_t first = key * panel->keys_ld;
    return panel->keys + (panel->keys_in_bf16 ? first / 2 : first);
}

/* One set. Its functions are thread-safe for distinct results and scratch. */
struct kernels {
    const char *name;
    bool by_model;  /* of its instructions in C, in a build for tests */
    size_t columns; /* of a panel */
    size_t k_step;  /* factors in a word: 1 float32, or 2 bfloat16 */
    /* The depth of a panel is padded to a multiple of so many numbers, and they take so
     * many words of each column. */
    size_t step_numbers, step_words;
    /* Rows of x, and panels of weights, that a projection is best given at a time. */
    size_t strip_rows, strip_panels;
    /* The set for float32 of the same instructions, with panels of as many columns; or
     * the set itself. */
    const struct kernels *in_float32;

    /* Packs one panel of weights [rows, in], at most `columns` rows. `scratch` [in,
     * columns] is used by sets whose words are not float32. */
    void (*pack)(const float *weights, size_t in, size_t rows, float *scratch,
                 float *panel);

    /* y [rows, columns of panels first..end] = x [rows, depth] W^T + b, with x in words,
     * sums and y in float32. Sums only the words of `depth` [num_depths], which are in
     * order; the other words of x are not read. */
    void (*project)(const struct panels *panels, size_t first, size_t end,
                    const struct range *depth, size_t num_depths, const float *x,
                    size_t x_ld, size_t rows, float *y, size_t y_ld);

    /* y [rows, in] = x [rows, columns] W, with the rows of W that are `columns` of the
     * outputs of project(), and without a bias. Both x and y are float32. Each number is
     * summed in the order of the columns. Rows of y have room for `in` numbers, rounded
     * up to a multiple of KERNEL_COLUMNS_MAX. */
    void (*project_back)(const struct panels *panels, struct range columns,
                         const float *x, size_t x_ld, size_t rows, float *y, size_t y_ld);

    /* The fused attention: scores, softmax and weighted sum of values, one block of keys
     * after the other, normalised once at the end (Milakov and Gimelshein 2018; Dao et
     * al. 2022). */
    void (*attend)(const struct query_panel *panel);

    /* Does the same, with the same bits, for at most KERNEL_FEW_MAX queries and without
     * panel->sums. For up to `few` queries it is the faster of the two. In a set where
     * `few` is SIZE_MAX both are one, which takes sums, and biases as attend_few(). */
    void (*attend_few)(const struct query_panel *panel);
    size_t few;

    /* Writes the scores that softmax gets, natural ones, to the rows panel->weights, at
     * the keys that each query attends to; uniform queries have theirs too. -INFINITY
     * where the bias masks, NaN where a score is out of range. At most KERNEL_FEW_MAX
     * queries, with biases as for attend_few(). Reads no values. */
    void (*score)(const struct query_panel *panel);

    /* Transposes words: to[i * to_ld + r] = from[r * from_ld + i], for r < rows and
     * i < width. */
    void (*transpose)(const float *from, size_t from_ld, size_t rows, size_t width,
                      float *to, size_t to_ld);

    /* Adds to sums[i * count + j], for j <= i, the product of rows i and j of `rows`
     * [count, width]. The width is a multiple of `columns`. */
    void (*add_products)(const float *rows, size_t count, size_t width, double *sums);

    /* values[i] = 2^values[i] for values <= 128, off by at most 2 units in the last
     * place. A result below 2^-126 may be 0 instead. */
    void (*exp2)(float *values, size_t count);

    /* Runs `count` rounds of multiply-adds that wait for nothing but each other; returns
     * the floating-point operations of one round. What this reaches is the limit of the
     * CPU. Reads values[0..2] and writes values[2], so that no round can be left out. */
    size_t (*multiply_add)(size_t count, float *values);

    /* Runs such rounds with factors that are loaded from `words` [KERNEL_PEAK_WORDS], in
     * the first-level cache: products of this set reach no more. It may run a few more
     * rounds, to the end of a product. */
    size_t (*multiply_add_loaded)(size_t count, const float *words);

    /* These three reduce weights. The first adds numbers[i] * factor, which is exact, to
     * sums[i]. The second returns the sum of some numbers, in an order that is the same
     * in all sets. The third returns the index of the first that is larger than `least`
     * or NaN, or `count`. */
    void (*add_floats)(const float *numbers, size_t count, float factor, double *sums);
    double (*sum_floats)(const float *numbers, size_t count);
    size_t (*find_larger)(const float *numbers, size_t count, float least);

    /* Returns the sum of `count` words, as integers modulo 2^32. Only reading takes time,
     * so what this reaches is the limit of the memory. */
    uint32_t (*sum_words)(const float *words, size_t count);

    /* In sets for bfloat16, else NULL: convert [rows, width] floats, rounded to the
     * nearest bfloat16. Both may write where they read. convert_bf16(): pairs of
     * neighbours in a row; `to` is [rows, ceil(width / 2)]. pack_pairs_bf16(): pairs of
     * neighbours in a column; `to` is [ceil(rows / 2), width]. An odd last one is paired
     * with 0. */
    void (*convert_bf16)(const float *from, size_t from_ld, size_t rows, size_t width,
                         float *to, size_t to_ld);
    void (*pack_pairs_bf16)(const float *from, size_t from_ld, size_t rows, size_t width,
                            float *to, size_t to_ld);

    /* In sets that multiply float32 by pieces of bfloat16, else NULL: see pieces.inc.
     *
     * measure() widens *range by the magnitudes of some numbers. split() makes what
     * project_split() reads instead of words: [rows, width] become rows of whole steps,
     * and 16 floats more. Numbers outside `depth` count as 0. Rows of
     * other magnitudes than `range` has stay as they are, and project_split() does with
     * them what project() does. */
    void (*measure)(const float *numbers, size_t count, struct magnitudes *range);
    void (*split)(const float *from, size_t from_ld, size_t rows, size_t width,
                  const struct range *depth, size_t num_depths,
                  const struct magnitudes *range, float *to, size_t to_ld);
    void (*project_split)(const struct panels *panels, size_t first, size_t end,
                          const struct range *depth, size_t num_depths, const float *x,
                          size_t x_ld, size_t rows, float *y, size_t y_ld);
};

/* Returns the set called `name` ("amx", "avx512", "avx2", "neon", "portable"), or the
 * fastest of this CPU for "auto", in bfloat16 or in float32. NULL when this build or CPU
 * has none.
 * Thread-safe. */
const struct kernels *kernels_get(const char *name, bool bf16);

/* Returns whether the CPU has matrix tiles, and this process may use them: it asks the
 * operating system, which grants it for all threads. *ret_refused says why not when only
 * that is refused; else it is NULL. Thread-safe. */
bool kernels_have_matrix(const char **ret_refused);

/* Returns set number `index` of those that this build and CPU have: the fastest first,
 * those for bfloat16 last, then NULL. Thread-safe. */
const struct kernels *kernels_available(size_t index);

/* Returns set number `index` of all that this build and CPU can run, also of those that
 * are never chosen since they are slower than float32; then NULL. Thread-safe. */
const struct kernels *kernels_runnable(size_t index);

/* Returns the bytes of scratch that attend() and attend_few() need for sequences of
 * `key_len` keys; `weights` says whether they write weights, or sums of them. SIZE_MAX
 * when the bytes cannot be counted. */
size_t kernel_scratch_bytes(size_t score_size, size_t head_size, size_t key_len,
                            bool weights);
