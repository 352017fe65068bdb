/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: one layer: its weights as they were loaded, and the engine made from them. The
 * room src/weights writes the weights once; nothing writes to them afterwards. A model
 * that is loaded to serve only keeps what its engine needs. */
#pragma once

#include "math/engine.h"

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

/* Linear weights are [out, in], row-major, y = x W^T + b. H heads, of size S in queries
 * and keys, and of size D in values; head h owns rows h*S .. h*S+S-1 of the query and key
 * weights, and as many of D of the value weight. The inputs of query weights are latent
 * rows where info.latent.query is not 0, and so on. A missing bias is NULL. Each array
 * is an allocation of its own, aligned to ATTN_ALIGNMENT. After model_pack() all are
 * NULL. */
struct attn_model {
    attn_model_info info;
    float *query_weight;  /* [H*S, query_size or latent.query] */
    float *query_bias;    /* [H*S] */
    float *key_weight;    /* [KV*S, key_size or latent.key]; KV is num_kv_heads */
    float *key_bias;      /* [KV*S] */
    float *value_weight;  /* [KV*D, value_size or latent.key] */
    float *value_bias;    /* [KV*D] */
    float *output_weight; /* [out_size, H*D]; NULL without an output projection */
    float *output_bias;   /* [out_size] */
    /* Additive scoring inside each head, the same for all heads; else NULL. */
    float *additive_query; /* [additive_size, S] */
    float *additive_key;   /* [additive_size, S] */
    float *additive_score; /* [additive_size] */
    float *gate_weight;    /* [H*D, query_size]; NULL without a gate */
    float *gate_bias;      /* [H*D] */
    /* What makes latent rows; else NULL. */
    float *latent_query_weight; /* [latent.query, query_size] */
    float *latent_query_bias;   /* [latent.query] */
    float *latent_key_weight;   /* [latent.key, key_size] */
    float *latent_key_bias;     /* [latent.key] */
    /* Not released by model_pack(): the layer computes with them as they are. Norms that
     * multiply by 1 + w have that as their weight. Pairs of a rotation are half of
     * rotation.size apart, whatever the file had. */
    float *sinks;             /* [H] */
    float *alibi_slopes;      /* [H] */
    float *distance_bias;     /* [H, 2 * bias_distance + 1]: of distances from
                                 -bias_distance on */
    float *query_norm_weight; /* [S], or [H*S] when head_norm is whole or per_head */
    float *query_norm_bias;   /* as large, with head_norm_bias */
    float *key_norm_weight;   /* [S], or [KV*S] likewise */
    float *key_norm_bias;     /* as large, with head_norm_bias */
    float *latent_query_norm; /* [latent.query] */
    float *latent_key_norm;   /* [latent.key - latent.shared] */
    float *out_norm_weight;   /* [H*D], with out_norm */
    float *pre_norm_weight;   /* [query_size], when pre_norm_applied */
    float *pre_norm_bias;     /* [query_size], with pre_norm_bias */
    struct model_rotation rotation;
    struct engine engine; /* made once the weights are written */
};

/* One array of a model: where its pointer is kept, and its shape; a vector has one
 * column. */
struct model_array {
    float **pointer;
    bool present;
    size_t rows, columns;
};

#define MODEL_ARRAYS 29

/* Of the list below. An engine may hold the first MODEL_ARRAYS_PACKED in its own form. */
enum { MODEL_ARRAY_OUTPUT = 6, MODEL_ARRAYS_PLAIN = 11, MODEL_ARRAYS_PACKED = 17 };

/* Returns whether keys come from where queries do, so that the norm before the layer is
 * theirs too. */
static inline bool model_has_own_keys(const attn_model_info *info) {
    return info->kind == NULL || strcmp(info->kind, "self") == 0;
}

/* Lists the arrays of a model of the sizes in model->info, whether or not it has them
 * yet: weight and bias of query, key, value and output, the three of additive scoring,
 * weight and bias of the gate and of both kinds of latent rows, and the others. */
void model_list_arrays(attn_model *model, struct model_array ret_arrays[MODEL_ARRAYS]);

/* Allocates a model of the sizes in `info`, with weights of 0, and sets its parameters,
 * bytes and memory. The caller owns *ret_model. It writes the weights and then calls
 * attn_model_set_engine(), before another thread uses the model.
 *
 * Errors: ATTN_E_OVERFLOW when a size cannot be computed or exceeds what BLAS addresses,
 * ATTN_E_NOMEM. The caller refuses sizes of 0. */
attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model);

/* Gives a model engine openblas with the kernels `cpu`, and releases the weights that it
 * has folded (additive scoring). No other thread may use the model. Errors: as
 * attn_model_set_engine(). The model can then only be destroyed. */
attn_status model_use_openblas(attn_model *model, const char *cpu, attn_error *ret_error);

/* Replaces the engine of model_use_openblas() by a native one, which `options` must
 * choose, and releases the weights while that packs its own. So both together never need
 * much more than the larger. No other thread may use the model.
 *
 * Errors: as attn_model_set_engine(). The model can then only be destroyed. */
attn_status model_pack(attn_model *model, const attn_engine_options *options,
                       attn_error *ret_error);

/* Gives a model the engine of `options`, warms it up on a small request, and compares a
 * native one with OpenBLAS on the same request. That engine computes first, from the
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
