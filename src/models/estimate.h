/* SPDX-License-Identifier: Apache-2.0 */
/* estimate.h: how long requests will take, from what those before them took.
 *
 * Times are nanoseconds of one worker. Before a request is decoded, only the size of its
 * body is known, and often its model: requests of one model, form and size (in powers of
 * two) share a moving average. Once it is decoded, the operations of the layer and the
 * bytes of the reply are known.
 *
 * Workers and HTTP threads use one estimate at the same time, without a lock: each number
 * is an atomic of its own, and an update that is lost does no harm. */
#pragma once

#include <attnd/model.h>
#include <stdbool.h>
#include <stdint.h>

struct estimate;

/* Makes an estimate for models, which it borrows. It takes over what `earlier`, which may
 * be NULL, has learned about those that it has too, and times a small run of the others.
 * The caller owns *ret_estimate. Returns ATTN_E_NOMEM when memory is short. */
attn_status estimate_create(const attn_model *const *models, size_t num_models,
                            const struct estimate *earlier,
                            struct estimate **ret_estimate);
void estimate_destroy(struct estimate *estimate);

/* A body that was not read yet. */
struct estimate_body {
    const attn_model *const *models; /* those that it may name */
    size_t num_models;
    size_t size; /* bytes */
    bool text;   /* its numbers are text */
};

/* Estimates the time to decode a body, and the time for all that follows. */
void estimate_body(struct estimate *estimate, const struct estimate_body *body,
                   int64_t *ret_decode, int64_t *ret_later);

/* Estimates the time of the layer, when its operations are known. */
int64_t estimate_compute(const struct estimate *estimate, const attn_model *model,
                         double flops);

/* Estimates the time to write so many bytes of a reply. `text` is as in estimate_body:
 * the form of the reply is usually that of the body. */
int64_t estimate_reply(const struct estimate *estimate, bool text, size_t bytes);

/* Times of a request that has ended. */
struct estimate_measured {
    const attn_model *model;
    double flops; /* 0: computed together with others */
    size_t reply; /* bytes that were written, as estimated */
    int64_t decode, compute, encode;
    int64_t write; /* of `encode`: the bytes alone, without the check of the results */
};

void estimate_learn(struct estimate *estimate, const struct estimate_body *body,
                    const struct estimate_measured *measured);
