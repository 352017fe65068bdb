/* SPDX-License-Identifier: Apache-2.0 */
/* math/model.h: the weights of one layer as the kernels read them. The weights room fills
 * them once; nothing writes to them afterwards. */
#ifndef ATTND_MATH_MODEL_H
#define ATTND_MATH_MODEL_H

#include "math/engine.h"

#include <attnd/model.h>

/* Linear weights are [out, in], row-major, y = x W^T + b. H heads of size D; head h owns
 * rows h*D .. h*D+D-1 of the query, key and value weights. A missing bias is NULL. */
struct attn_model {
    attn_model_info info;
    float *query_weight;  /* [H*D, query_size] */
    float *query_bias;    /* [H*D] */
    float *key_weight;    /* [H*D, key_size] */
    float *key_bias;      /* [H*D] */
    float *value_weight;  /* [H*D, value_size] */
    float *value_bias;    /* [H*D] */
    float *output_weight; /* [out_size, H*D]; NULL without output projection */
    float *output_bias;   /* [out_size] */
    /* Additive scoring inside each head, the same for all heads; else NULL. */
    float *additive_query; /* [additive_size, D] */
    float *additive_key;   /* [additive_size, D] */
    float *additive_score; /* [additive_size] */
    float *memory; /* the one block that all of the above point into; NULL once trimmed,
                      and then none of them may be read */
    struct engine engine; /* made by attn_model_set_engine() once the weights are there */
};

/* Allocates a model of the sizes in `info`, weights zeroed; fills in parameters and
 * bytes. The caller owns *ret_model and writes the weights before any other thread sees
 * it.
 *
 * Errors: ATTN_E_OVERFLOW when a size cannot be computed or exceeds what BLAS addresses,
 * ATTN_E_NOMEM. Sizes of 0 are the caller's to refuse. */
attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model);

/* Makes an engine from the model's weights, which it may borrow; the model itself does
 * not change. The caller owns *ret_engine. Errors: as attn_model_set_engine(). */
attn_status model_make_engine(const attn_model *model, const attn_engine_options *options,
                              struct engine *ret_engine, attn_error *ret_error);

/* Releases the model's engine and hands it this one; updates what the info says of it. */
void model_use_engine(attn_model *model, const struct engine *engine);

#endif
