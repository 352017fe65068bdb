/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h: how the projections of a layer are computed.
 *
 * The native engine multiplies by weights that were packed once. The openblas
 * engine calls cblas on the weights as they are. The attention between the projections is
 * the same for both. */
#pragma once

#include "math/kernels/kernels.h"

#include <attnd/model.h>

/* One projection, y = x W^T + b. */
struct linear {
    const float *weight; /* [out, in], borrowed from the model or from `folded` */
    const float *bias;   /* [out]; NULL without a bias */
    size_t out, in;
    struct panels panels; /* with the native engine, instead of weight and bias */
};

/* The projections of an engine, in this order: of queries, keys, values and outputs, the
 * gate's, and those that make latent rows of queries, and of keys and values. */
#define ENGINE_LINEARS 7

/* What an engine is made from: the weights of a layer. They are borrowed; but a weight
 * that `owned` points to is owned by that pointer, and released once the engine has a
 * copy of its own. */
struct layer_weights {
    const float *weights[ENGINE_LINEARS]; /* NULL: there is no such projection */
    const float *biases[ENGINE_LINEARS];  /* NULL: none */
    float **owned[ENGINE_LINEARS];        /* the same weights; NULL: borrowed */
    const float *additive_query; /* [additive_size, width.score]; NULL: nothing to fold */
    const float *additive_key;   /* [additive_size, width.score] */
    const float *additive_score; /* [additive_size] */
};

/* What a model computes with; immutable once made. Additive scoring is folded in:
 * to_query and to_key then compute W_q q and W_k k, [H, additive_size], at once. */
struct engine {
    const struct kernels *kernels;
    bool native;
    const char *fallback; /* why the kernels are not those asked for; NULL: they are */
    struct magnitudes split_range; /* of rows that kernels->split() splits */
    size_t score_size; /* columns of one head in queries and keys: width.score, or
                          additive_size */
    struct linear to_query, to_key, to_value;
    /* Of latent rows, which to_query, and to_key and to_value, read; `out` is 0 where
     * there are none. */
    struct linear to_latent_query, to_latent_key;
    struct linear to_output; /* not used without an output projection */
    struct linear to_gate;   /* [H*D, query_size]; of no outputs without a gate */
    float *additive_score;   /* owned: [additive_size]; NULL: not additive */
    float *folded[2];        /* owned, of openblas: query and key with additive scoring */
    float *packed;           /* owned, of native: all panels */
    size_t bytes;            /* of what is owned */
};

/* Chooses the kernels of an engine for a layer of the sizes in `info`, and computes its
 * sizes, `bytes` among them. It owns nothing yet and cannot compute. Errors, with one
 * line in ret_error: as attn_model_set_engine(), except ATTN_E_NOMEM. */
attn_status engine_plan(const attn_model_info *info, const attn_engine_options *options,
                        struct engine *ret_engine, attn_error *ret_error);

/* Makes an engine for a layer of the sizes in `info`. The caller releases it by
 * engine_deinit(). The openblas engine copies no weights, except for additive scoring,
 * which it folds; the others must stay until then.
 *
 * The native engine has a copy of its own. Weights that are owned are released panel by
 * panel while they are packed. So both together never need much more than the larger;
 * with additive scoring, what is folded comes on top. After a failure some of them may
 * be released: those whose pointer is NULL, and an end of one other.
 *
 * Errors, with one line in ret_error that names the model: as attn_model_set_engine(). */
attn_status engine_make(const attn_model_info *info, const struct layer_weights *weights,
                        const attn_engine_options *options, struct engine *ret_engine,
                        attn_error *ret_error);

/* Releases the memory; accepts a zeroed struct. */
void engine_deinit(struct engine *engine);

/* Compares both forms of the attention with plain loops in float64, for a panel of noise
 * of the engine's sizes. *ret_difference is the largest difference of an output, where
 * outputs are at most 1. Thread-safe; allocates. Returns ATTN_OK or ATTN_E_NOMEM. */
attn_status engine_check_attention(const struct engine *engine, size_t head_size,
                                   double *ret_difference);

/* Returns whether rows are converted before they are projected: by convert_bf16(), or by
 * split(), which engine_project_split() reads. */
static inline bool engine_converts(const struct engine *engine) {
    return engine->native &&
           (engine->kernels->convert_bf16 != NULL || engine->kernels->split != NULL);
}

/* Returns how many columns of y engine_project() computes together. */
size_t engine_step(const struct engine *engine, const struct linear *linear);

/* Computes `columns` of y [rows, out] = x [rows, in] W^T + b. With the native engine they
 * begin and end at multiples of engine_step(), or end at `out`.
 *
 * Only the words of x in `depth` [num_depths] are summed; the ranges are in order, and
 * none is empty unless it is alone. Rows of x are x_ld floats apart, rows of y are y_ld.
 * x is float32, or what kernels->convert_bf16() made of it when the kernels have that
 * function. Thread-safe for distinct columns or rows. With the native engine the bits of
 * a number depend on its row of x and on `depth` alone. */
void engine_project(const struct engine *engine, const struct linear *linear,
                    struct range columns, const struct range *depth, size_t num_depths,
                    const float *x, size_t x_ld, size_t rows, float *y, size_t y_ld);

/* Does so for rows that kernels->split() made, with sums in another order. */
void engine_project_split(const struct engine *engine, const struct linear *linear,
                          struct range columns, const struct range *depth,
                          size_t num_depths, const float *x, size_t x_ld, size_t rows,
                          float *y, size_t y_ld);
