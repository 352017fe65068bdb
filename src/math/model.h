/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: one layer: its weights as they were loaded, and the engine made from them. The
 * room src/weights writes the weights once; nothing writes to them afterwards. */
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
    float *output_weight; /* [out_size, H*D]; NULL without an output projection */
    float *output_bias;   /* [out_size] */
    /* Additive scoring inside each head, the same for all heads; else NULL. */
    float *additive_query; /* [additive_size, D] */
    float *additive_key;   /* [additive_size, D] */
    float *additive_score; /* [additive_size] */
    /* The one block that all of the above point into. NULL once trimmed; then none of
     * them may be read. */
    float *memory;
    struct engine engine; /* made once the weights are written */
};

/* Allocates a model of the sizes in `info`, with weights of 0, and sets its parameters,
 * bytes and memory. The caller owns *ret_model. It writes the weights and then calls
 * attn_model_set_engine(), before another thread uses the model.
 *
 * Errors: ATTN_E_OVERFLOW when a size cannot be computed or exceeds what BLAS addresses,
 * ATTN_E_NOMEM. The caller refuses sizes of 0. */
attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model);

/* Makes an engine from the model's weights, which it may borrow; the model itself does
 * not change. The caller owns *ret_engine. Errors: as attn_model_set_engine(). */
attn_status model_make_engine(const attn_model *model, const attn_engine_options *options,
                              struct engine *ret_engine, attn_error *ret_error);

/* Replaces the model's engine by *engine, which the model then owns, and updates its
 * info. No other thread may use the model. */
void model_use_engine(attn_model *model, const struct engine *engine);

#endif
