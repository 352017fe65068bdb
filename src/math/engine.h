/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h: how the projections of a layer are computed.
 *
 * The native engine multiplies by weights that were packed once. The other one, openblas
 * or plain, multiplies by blas.h, with the weights as they are. The attention between the
 * projections is the same for both. */
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

/* The weights of a layer, by attn_linear, to make an engine of. They are borrowed;
 * but a weight that `owned` points to is owned by that pointer, and released once the
 * engine has a copy of its own. */
struct layer_weights {
    const float *weights[ATTN_NUM_LINEARS]; /* NULL: there is no such projection */
    const float *biases[ATTN_NUM_LINEARS];  /* NULL: none */
    float **owned[ATTN_NUM_LINEARS];        /* the same weights; NULL: borrowed */
    /* [additive_size, width.score], of queries and keys; NULL: nothing to fold */
    const float *additive[2];
    const float *additive_score; /* [additive_size] */
};

/* A model computes with it; immutable once made. Additive scoring is folded in:
 * those of queries and keys then compute W_q q and W_k k, [H, additive_size], at once. */
struct engine {
    const struct kernels *kernels;
    bool native;
    const char *fallback; /* why the kernels are not those asked for; NULL: they are */
    struct magnitudes split_range; /* of rows that kernels->split() splits */
    size_t score_size; /* columns of one head in queries and keys: width.score, or
                          additive_size */
    struct linear linears[ATTN_NUM_LINEARS]; /* of no outputs: there is none */
    float *additive_score; /* owned: [additive_size]; NULL: not additive */
    float *folded[2];      /* owned, unless native: query and key with additive scoring */
    float *packed;         /* owned, of native: all panels */
    size_t bytes;          /* of what is owned */
};

/* Returns the sizes of a projection, before additive scoring is folded in; 0 where the
 * layer has none. */
struct linear engine_size_linear(const attn_model_info *info, attn_linear which);

/* Chooses the kernels of an engine for a layer of the sizes in `info`, and computes its
 * sizes, `bytes` among them. It owns nothing yet and cannot compute. Errors, with one
 * line in ret_error: as attn_model_set_engine(), except ATTN_E_NOMEM. */
attn_status engine_plan(const attn_model_info *info, const attn_engine_options *options,
                        struct engine *ret_engine, attn_error *ret_error);

/* Makes an engine for a layer of the sizes in `info`. The caller releases it by
 * engine_deinit(). The other engine copies no weights, except for additive scoring,
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
 * split(). */
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
 * function; or with `split` what kernels->split() made, whose sums have another order.
 * Thread-safe for distinct columns or rows. With the native engine the bits of
 * a number depend on its row of x and on `depth` alone. */
void engine_project(const struct engine *engine, const struct linear *linear,
                    struct range columns, const struct range *depth, size_t num_depths,
                    const float *x, size_t x_ld, bool split, size_t rows, float *y,
                    size_t y_ld);
