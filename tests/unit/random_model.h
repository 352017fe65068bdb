/* SPDX-License-Identifier: Apache-2.0 */
/* random_model.h: reproducible numbers, models and requests for the tests of the layer.
 */
#ifndef ATTND_TESTS_RANDOM_MODEL_H
#define ATTND_TESTS_RANDOM_MODEL_H

#include <attnd/attention.h>
#include <stdint.h>

/* A small generator of our own (Marsaglia's xorshift64), so that a seed gives the same
 * case everywhere. The state must not be 0. */
uint64_t random_next(uint64_t *state);

/* Returns a whole number from `low` to `high`, both included. */
size_t random_between(uint64_t *state, size_t low, size_t high);

/* Fills with numbers from -1 to 1. */
void random_fill(uint64_t *state, float *numbers, size_t count);

/* Creates a model of the sizes in `info` with random weights; the caller destroys it. */
attn_model *random_model(uint64_t *state, const attn_model_info *info);

/* Creates a random description: sizes up to 40, any scoring, with and without biases. */
attn_model_info random_model_info(uint64_t *state);

/* A request and everything that it points to. */
struct random_request {
    attn_request request;
    attn_sizes sizes;
    size_t *query_lens, *key_lens, *valid_lens;
    float *queries, *keys, *values, *head_mask;
};

/* Makes a request of up to 4 sequences of up to `longest` queries and keys, with every
 * kind of mask. */
void random_request_init(uint64_t *state, const attn_model *model, size_t longest,
                         struct random_request *ret_request);
void random_request_deinit(struct random_request *request);

#endif
