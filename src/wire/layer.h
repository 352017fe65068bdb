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
};

/* All layers of a capture, in the order of the file. */
struct capture_layers {
    const struct capture_layer *items; /* [count] */
    size_t count;
};
