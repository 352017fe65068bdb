/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mask.h: where the rows of a sequence are, which keys a query attends to, and what
 * is added to their scores, as they are defined. */
#ifndef ATTND_TESTS_REF_MASK_H
#define ATTND_TESTS_REF_MASK_H

#include "math/model.h"

#include <attnd/attention.h>

/* A sequence, and where it begins in the batch. */
struct ref_position {
    size_t sequence, first_query, first_key;
    double *weights, *scores;      /* its part of the results, or NULL */
    bool direct;                   /* its keys and values are not projected */
    struct ref_rounding *rounding; /* of its queries and keys */
};

/* Returns the position of row `i` of a sequence that begins at row `first`. */
size_t ref_position(const size_t *positions, size_t first, size_t i);

/* Returns whether query q attends to key k, by their rows in the sequence. */
bool ref_attends(const attn_request *request, const struct ref_position *at, size_t q,
                 size_t k);

/* Finds the position of row `i` of a sequence of `count` rows on each axis. */
void ref_find_axes(const attn_model_info *info, const size_t *positions,
                   const size_t *axes, size_t first, size_t count, size_t i,
                   size_t ret_axes[ATTN_AXES]);

/* Returns the length of a sequence: its largest position plus 1. */
size_t ref_length(const attn_request *request, const struct ref_position *at);

/* Returns the request's bias of query q and key k in head h. */
double ref_given_bias(const attn_request *request, const struct ref_position *at,
                      size_t h, size_t q, size_t k);

/* Returns what is added to the score of query q and key k in head h by their distance,
 * given what the score is made from, both [width.score]. */
double ref_distance_bias(const attn_model *model, const attn_request *request,
                         const struct ref_position *at, size_t h, size_t q, size_t k,
                         const double *query, const double *key);

#endif
