/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: one layer: its weights as they were loaded, and the engine made from them. The
 * room src/weights writes the weights once; nothing writes to them afterwards. A model
 * that is loaded to serve only keeps what its engine needs. */
#pragma once

#include "math/engine.h"
#include "math/features.h"

#include <attnd/model.h>
#include <string.h>

/* Rotary frequencies of a layer, in float64. The angle of pair a at position p is p times
 * frequency a; cosine and sine are multiplied by `magnitude`. A sequence's length is its
 * largest position, of queries and keys, plus 1. */
struct model_rotation {
    double *frequencies; /* [rotation.size / 2]; NULL without a rotation */
    double magnitude;
    size_t max_length; /* longer sequences have other frequencies; 0: none have */
    /* Of these, longrope: [rotation.size / 2]. NULL means dynamic scaling: the base is
     * multiplied by (factor * length / max_length - (factor - 1))^(R / (R - 2)), R being
     * rotation.size. */
    double *long_frequencies;
    double base, factor;
    /* [rotation.size / 2] the axis that each pair has its position from, below ATTN_AXES;
     * NULL without sections. On a grid of n x n patches, that in row y and column x is at
     * 2 y + 1 and 2 x + 1; what is not a patch is at n, the middle, which turns as 0 does
     * since only differences count. */
    unsigned char *axis_of;
};

/* Whether pairs have their positions from axes, which are given or of a grid. */
static inline bool model_has_sections(const attn_model_info *info) {
    return info->rotation.axes > 1 || info->rotation.grid > 0;
}

/* The arrays of a model. The first are MODEL_WEIGHT() and MODEL_BIAS() of projections. An
 * engine may hold the first MODEL_NUM_PACKED in its own form; the layer computes with the
 * others as they are. H heads, of size S in queries and keys, and of size D in values; KV
 * heads of keys. Norms that multiply by 1 + w have that as their weight. */
enum model_array_id {
    /* Of additive scoring inside each head, the same for all heads. */
    MODEL_ADDITIVE_QUERY = 2 * ATTN_NUM_LINEARS, /* [additive_size, S] */
    MODEL_ADDITIVE_KEY,                          /* [additive_size, S] */
    MODEL_ADDITIVE_SCORE,                        /* [additive_size] */
    MODEL_NUM_PACKED,
    MODEL_SINKS = MODEL_NUM_PACKED, /* [H] */
    MODEL_SLOPES,                   /* [H], of ALiBi */
    /* Of distances from -bias_distance on, [H, 2 * bias_distance + 1]; or of content, [1,
     * 2 * bias_distance + 1]: rows of these, which ascend or descend. */
    MODEL_DISTANCE_BIAS,
    MODEL_POSITION_KEYS,    /* [position_rows, H*S] */
    MODEL_POSITION_QUERIES, /* [position_rows, H*S] */
    MODEL_QUERY_NORM,       /* [S], or [H*S] when head_norm is whole or per_head */
    MODEL_QUERY_NORM_BIAS,
    MODEL_KEY_NORM, /* [S], or [KV*S] likewise */
    MODEL_KEY_NORM_BIAS,
    MODEL_LATENT_QUERY_NORM, /* [latent.query] */
    MODEL_LATENT_KEY_NORM,   /* [latent.key - latent.shared] */
    MODEL_OUT_NORM,          /* [H*D] */
    MODEL_PRE_NORM,          /* [query_size] */
    MODEL_PRE_NORM_BIAS,     /* [query_size] */
    MODEL_PRE_NORM_INVERSE,  /* [query_size], see entering_invert() */
    MODEL_NUM_ARRAYS
};

#define MODEL_WEIGHT(linear) ((size_t)2 * (linear))
#define MODEL_BIAS(linear)   ((size_t)2 * (linear) + 1)

/* Each array is an allocation of its own, aligned to ATTN_ALIGNMENT. */
struct model_array {
    float *numbers; /* [rows, columns], row-major; NULL: there are none, or no more */
    size_t rows, columns; /* 0: the model has no such array. A vector has one column */
    size_t bytes;         /* rounded up as aligned_alloc() demands */
};

/* Pairs of a rotation are half of rotation.size apart, whatever the file had. */
struct attn_model {
    attn_model_info info;
    struct model_array arrays[MODEL_NUM_ARRAYS]; /* by enum model_array_id */
    struct model_rotation rotation;
    struct features_effects effects; /* of its features */
    struct engine engine;            /* made once the weights are written */
};

/* Returns the weight of a projection, y = x W^T + b, [out, in] as engine_size_linear()
 * says; NULL: there is none. */
static inline float *model_weight(const attn_model *model, attn_linear which) {
    return model->arrays[MODEL_WEIGHT(which)].numbers;
}

/* Returns its bias, [out]; NULL: there is none. */
static inline float *model_bias(const attn_model *model, attn_linear which) {
    return model->arrays[MODEL_BIAS(which)].numbers;
}

/* Returns whether keys come from where queries do, so that the norm before the layer is
 * theirs too. */
static inline bool model_has_own_keys(const attn_model_info *info) {
    return info->kind == NULL || strcmp(info->kind, "self") == 0;
}

#define MODEL_NOTE_MAX 160 /* bytes of a note */

/* Returns a note when queries, [count, query_size], look as if the norm before the layer
 * was applied to them twice, or never: one line of ASCII, a constant. Returns NULL
 * otherwise, and where there is no such norm. Thread-safe. */
const char *model_find_note(const attn_model *model, const float *queries, size_t count);

/* Allocates a model of the sizes in `info`, with weights of 0, and sets its parameters,
 * bytes and memory. The caller owns *ret_model. It writes the weights and then calls
 * attn_model_set_engine(), before another thread uses the model.
 *
 * Errors: ATTN_E_OVERFLOW when a size cannot be computed or exceeds what BLAS addresses,
 * ATTN_E_NOMEM. The caller refuses sizes of 0. */
attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model);

/* Gives a model the engine of blas.h with the kernels `cpu`, and releases the weights
 * that it has folded (additive scoring). No other thread may use the model. Errors: as
 * attn_model_set_engine(). The model can then only be destroyed. */
attn_status model_use_blas(attn_model *model, const char *cpu, attn_error *ret_error);

/* Replaces the engine of model_use_blas() by a native one, which `options` must
 * choose, and releases the weights while that packs its own. So both together never need
 * much more than the larger. No other thread may use the model.
 *
 * Errors: as attn_model_set_engine(). The model can then only be destroyed. */
attn_status model_pack(attn_model *model, const attn_engine_options *options,
                       attn_error *ret_error);

/* Gives a model the engine of `options`, warms it up on a small request, and compares a
 * native one with that of blas.h on the same request. That one computes first, from the
 * weights as they were loaded; then model_pack() replaces it. So what is compared is what
 * serves. *ret_agree is whether the outputs differ by no more than the tolerance of the
 * precision; else the model may only be destroyed. Sets info.engine.difference.
 *
 * attn_init() must have succeeded. No other thread may use the model. Errors, with one
 * line in ret_error: as attn_model_set_engine(). The model can then only be destroyed. */
attn_status model_prepare_to_serve(attn_model *model, const attn_engine_options *options,
                                   bool *ret_agree, attn_error *ret_error);

/* Computes a small request of a model several times on the calling thread. Sets the
 * operations of the layer, and what the fastest run took. Thread-safe. Errors:
 * ATTN_E_NOMEM. */
attn_status model_try(const attn_model *model, double *ret_flops, double *ret_ns);

/* Describes a model of the sizes in `info`, as model_prepare_to_serve() would leave it,
 * without its memory. Errors, with one line in ret_error: ATTN_E_OVERFLOW as
 * attn_model_create(); also as attn_model_set_engine(), except ATTN_E_NOMEM. */
attn_status model_describe(const attn_model_info *info,
                           const attn_engine_options *options, attn_model_info *ret_info,
                           attn_error *ret_error);
