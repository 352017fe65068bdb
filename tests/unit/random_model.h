/* SPDX-License-Identifier: Apache-2.0 */
/* random_model.h: reproducible numbers, models and requests for tests of the layer. */
#ifndef ATTND_TESTS_RANDOM_MODEL_H
#define ATTND_TESTS_RANDOM_MODEL_H

#include "seed.h"

#include <attnd/attention.h>
#include <stdint.h>

/* Returns the next number of a small generator (Marsaglia's xorshift64), so that a seed
 * makes the same case on any machine. The state must not be 0. */
uint64_t random_next(uint64_t *state);

/* Returns an integer from `low` to `high`, both included. */
size_t random_between(uint64_t *state, size_t low, size_t high);

/* Fills `count` floats with numbers from -1 to 1; does nothing when `numbers` is NULL. */
void random_fill(uint64_t *state, float *numbers, size_t count);

/* Creates a model of the sizes in `info` with random weights and the default engine; the
 * caller destroys it. */
attn_model *random_model(uint64_t *state, const attn_model_info *info);

/* Returns a random description: sizes up to 40, any scoring, with and without biases. */
attn_model_info random_model_info(uint64_t *state);

/* What layers of checkpoints have, and requests to them. */
enum random_feature {
    RANDOM_KV_HEADS = 1 << 0, /* several query heads share a key head */
    RANDOM_ROTATION = 1 << 1, /* of fixed frequencies, or by length; with sections */
    RANDOM_HEAD_NORM = 1 << 2,
    RANDOM_CLIP = 1 << 3,
    RANDOM_SCALE = 1 << 4,
    RANDOM_SOFTCAP = 1 << 5,
    RANDOM_SINKS = 1 << 6,
    RANDOM_BIAS = 1 << 7, /* ALiBi, buckets, or terms of content */
    RANDOM_PRE_NORM = 1 << 8,
    RANDOM_POSITIONS = 1 << 9,     /* of requests; ascending ones, or any; of axes */
    RANDOM_WINDOW = 1 << 10,       /* likewise */
    RANDOM_NEED = 1 << 11,         /* likewise: heads, log-sum-exps, outputs or none */
    RANDOM_VALUE_ROWS = 1 << 12,   /* norms and rotations of values */
    RANDOM_QUERY_FACTOR = 1 << 13, /* of the position */
    RANDOM_SIZES = 1 << 14,        /* queries and keys differ from values in size */
    RANDOM_LATENTS = 1 << 15,
    RANDOM_GATE = 1 << 16,     /* of the heads' outputs */
    RANDOM_OUT_NORM = 1 << 17, /* likewise */
    RANDOM_EVERYTHING = (1 << 18) - 1,
    RANDOM_GIVEN_BIAS = 1 << 18 /* of requests, which may mask; not to describe heads */
};

/* Adds each of the set of features to a model with dot products, or does not: half of the
 * time. random_model() fills in their numbers. */
void random_add_features(uint64_t *state, unsigned features, attn_model_info *info);

/* A request and everything that it points to. */
struct random_request {
    attn_request request;
    attn_sizes sizes;
    size_t *query_lens, *key_lens, *valid_lens, *prefix_lens, *weights_heads;
    ptrdiff_t *weights_queries;
    size_t *positions, *key_positions, *axis_positions, *axis_key_positions;
    float *queries, *keys, *values, *head_mask, *bias;
};

/* Makes a request of up to 4 sequences of at most so many queries and keys, with every
 * kind of mask, and all or some of the weights. The caller releases it by
 * random_request_deinit(). */
void random_request_init(uint64_t *state, const attn_model *model, size_t max_queries,
                         size_t max_keys, struct random_request *ret_request);

/* Adds to a request what of the set of features it may have; plans it again. */
void random_request_add(uint64_t *state, unsigned features, const attn_model *model,
                        struct random_request *request);
void random_request_deinit(struct random_request *request);

#endif
