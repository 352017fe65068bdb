/* SPDX-License-Identifier: Apache-2.0 */
/* layer.h: one layer of a capture, as it is kept: queries and keys of one sequence, and
 * the options that belong to them. */
#pragma once

#include "base/dtype.h"
#include "math/packed.h"

#include <stdbool.h>

/* Immutable once the capture is published; lives as long as the capture. All numbers are
 * finite, but for -INFINITY in the bias. */
struct capture_layer {
    const char *name;
    size_t num_queries; /* Tq; 0: queries were left out */
    size_t num_heads;   /* H of the queries; 0 without them */
    const struct dtype *queries_type;
    const unsigned char
        *queries; /* [Tq, H, D] of that type, which has to_float(), aligned */
    struct attn_packed packed; /* keys and values */
    bool has_scale, causal;
    double scale, softcap;       /* a softcap of 0: left out */
    size_t window;               /* 0: left out */
    const float *sinks, *slopes; /* [num_sinks], [num_slopes]; NULL: left out */
    size_t num_sinks, num_slopes;
    const float *bias; /* [bias_heads, bias_rows, Tk]; NULL: left out */
    size_t bias_rank;  /* 2 or 3, as in the file */
    size_t bias_heads, bias_rows;
    const size_t *positions, *key_positions; /* [Tq], [Tk]; NULL: left out */
    /* Those of the capture, NULL where it has none for this layer: the ids of the tokens
     * that its keys are [Tk], and for each query a range of keys [Tq, 2], or 0, 0. */
    const size_t *token_ids, *targets;
    bool cross; /* its keys are of other tokens than its queries */
};

#define CAPTURE_COMMON 3 /* tensors that a file may have for all layers together */

/* All layers of a capture, in the order of the file. */
struct capture_layers {
    const struct capture_layer *items; /* [count] */
    size_t count;
    /* Names of the file's tensors that are not kept, as hidden_states never are; NULL is
     * behind the last. Constant. */
    const char *left_out[CAPTURE_COMMON + 1];
};
