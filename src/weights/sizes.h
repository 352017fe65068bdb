/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h: finds the tensors of one layer and checks their shapes, before memory is
 * allocated for any of them.
 *
 * H heads of size D; M is the width between the stages of a two-stage projection. */
#pragma once

#include "math/model.h"
#include "weights/layout.h"

/* The tensors of the query, key or value projection. Those of single heads are not here:
 * they are found by their names. */
struct projection {
    const struct safetensors_tensor *weight; /* [>= H*D, in], or stage [M, in], or NULL */
    const struct safetensors_tensor *bias;   /* [>= H*D], or stage [M], or NULL */
    size_t first_row;      /* of weight, when several projections are packed */
    size_t first_bias_row; /* of bias, when their biases are packed */
    size_t in_size;
    bool head_bias; /* each head has a bias of its own */
};

/* A layer, and where its numbers are. */
struct layer_sizes {
    const struct layout *layout;
    struct tensor_view view;
    attn_model_info info;             /* all but parameters and bytes */
    size_t hidden;                    /* H*D */
    struct projection projections[3]; /* by LINEAR_QUERY.._VALUE */
    /* Weight [out_size, H*D] and bias [out_size] of the output projection; query [A, D],
     * key [A, D] and score [1, A] or [A] of additive scoring. NULL where there is none */
    const struct safetensors_tensor *others[5];
    attn_error *ret_error; /* of all functions that look at the layer */
};

/* Finds all sizes and checks every shape. Given are the layout and the view, and of
 * `info` the name, causal, context_length and, unless 0, num_heads; the rest is 0.
 * Errors, each naming the tensor or the option: ATTN_E_SHAPE, _FORMAT, _VALUE,
 * _OVERFLOW. */
attn_status layer_sizes_find(struct layer_sizes *sizes, attn_error *ret_error);
