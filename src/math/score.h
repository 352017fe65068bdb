/* SPDX-License-Identifier: Apache-2.0 */
/* score.h: from the queries and keys of one head to attention weights. */
#ifndef ATTND_MATH_SCORE_H
#define ATTND_MATH_SCORE_H

#include "math/blas.h"
#include "math/model.h"

/* A block of queries of one head and the keys that they may attend to. */
struct score_block {
    const attn_model *model;
    struct blas_matrix queries; /* [num_queries, D] */
    struct blas_matrix keys;    /* [Tk, D] */
    size_t num_queries;         /* at most QUERY_BLOCK */
    const size_t *num_keys;     /* [num_queries]: keys that each attends to, 1..Tk */
    size_t common;              /* the least of num_keys */
    float *additive_queries;    /* [num_queries, additive_size] scratch */
    const float *additive_keys; /* [Tk, additive_size], by score_additive_keys() */
};

/* Writes the scores of each query and the first num_keys keys to `scores`, whose rows are
 * `ld` floats apart; what is past num_keys is left as it is. */
void score_compute(const struct score_block *block, float *scores, size_t ld);

/* Projects the keys of one head for additive scoring: ret_keys [num_keys, additive_size].
 */
void score_additive_keys(const attn_model *model, struct blas_matrix keys,
                         size_t num_keys, float *ret_keys);

/* Turns `count` >= 1 scores into weights that sum to 1. */
void score_softmax(float *scores, size_t count);

#endif
