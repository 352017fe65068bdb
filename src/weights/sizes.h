/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h: finds the tensors of one layer and checks their shapes, before memory is
 * allocated for any of them.
 *
 * H heads of size D; M is the width between the stages of a two-stage projection. */
#ifndef ATTND_WEIGHTS_SIZES_H
#define ATTND_WEIGHTS_SIZES_H

#include "weights/layout.h"

#include <attnd/model.h>

/* The tensors of the query, key or value projection. Those of single heads are not here:
 * they are found by their names. */
struct projection {
    const struct safetensors_tensor *weight; /* [>= H*D, in], or stage [M, in], or NULL */
    const struct safetensors_tensor *bias;   /* [>= H*D], or stage [M], or NULL */
    size_t first_row;      /* of weight, when several projections are packed */
    size_t first_bias_row; /* of bias, likewise */
    size_t in_size;
    bool head_bias; /* each head has a bias of its own */
};

struct layer_sizes {
    attn_model_info info;                            /* all but parameters and bytes */
    size_t hidden;                                   /* H*D */
    struct projection projections[3];                /* by LINEAR_QUERY.._VALUE */
    const struct safetensors_tensor *output_weight;  /* [out_size, H*D] or NULL */
    const struct safetensors_tensor *output_bias;    /* [out_size] or NULL */
    const struct safetensors_tensor *additive_query; /* [A, D] or NULL */
    const struct safetensors_tensor *additive_key;   /* [A, D] or NULL */
    const struct safetensors_tensor *additive_score; /* [1, A] or [A], or NULL */
};

/* Finds all sizes and checks every shape. `info` gives name, causal, context_length
 * and, unless 0, num_heads. Errors, each naming the tensor or the option: ATTN_E_SHAPE,
 * _FORMAT, _VALUE, _OVERFLOW. */
attn_status layer_sizes_find(const struct layout *layout, const struct tensor_view *view,
                             const attn_model_info *info, struct layer_sizes *ret_sizes,
                             attn_error *ret_error);

#endif
