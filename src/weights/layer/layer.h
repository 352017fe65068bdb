/* SPDX-License-Identifier: Apache-2.0 */
/* layer.h: everything about one attention layer of a checkpoint: what it computes, and
 * where its weights lie.
 *
 * H query heads share KV key and value heads. Queries and keys have size D, values a size
 * of their own; i and j are the positions of a query and a key. The order inside a layer:
 * norm before, latent rows with their norm, project, clip, norm of queries, keys and
 * values, rotate, factor of queries, scale, softcap, bias by distance, mask, softmax with
 * sinks, gate, norm of the heads' outputs, project. */
#pragma once

#include "weights/layer/view.h"

#include <attnd/attention.h>
#include <attnd/model.h>
#include <stdbool.h>

#define LAYER_PART_SIZE 32 /* bytes of "decoder.3.cross", terminator included */

struct layer_norm {
    const char *name; /* in the module, but of the norm before; '#' is a head's number */
    bool plus_one;    /* it multiplies by 1 + w */
    bool bare; /* it has no weight, which is as one of 1; an identity has no kind */
    const struct safetensors_tensor *weight; /* NULL: the file has none */
    /* Where the weights of heads after the first are, whose names differ by the number of
     * the head; NULL: `weight` has them all. */
    const struct tensor_view *of_heads;
    const struct safetensors_tensor *bias; /* NULL: none */
};

/* How the rotary frequencies f = base^(-2a/R) are scaled. */
enum layer_rotation_type {
    ROTATION_DEFAULT,
    ROTATION_LINEAR,
    ROTATION_DYNAMIC,
    ROTATION_LLAMA3,
    ROTATION_YARN,
    ROTATION_LONGROPE,
    ROTATION_PROPORTIONAL, /* the first pairs of a whole head turn, the others do not */
};

/* Which pairs take their position from time, row and column. */
enum layer_sections {
    SECTIONS_NONE,
    SECTIONS_BLOCKS, /* the first ones time, the next ones row, the last ones column */
    SECTIONS_INTERLEAVED /* in turns, as long as row and column have pairs; then time */
};

struct layer_rotation {
    size_t dims;      /* R, the first numbers of a head; 0: the layer has no rotation */
    bool interleaved; /* pairs are neighbours, not R/2 apart */
    bool backward;    /* by the negative angle */
    enum layer_sections sections;
    size_t section_sizes[ATTN_AXES]; /* pairs of each axis, R/2 in all */
    /* Patches on a side of an image, and the tokens before them; 0: none. Half of the
     * pairs have a patch's row, the others its column. */
    size_t grid, grid_first;
    enum layer_rotation_type type;
    double base;
    double factor;                      /* 0: not given */
    double low_freq_factor;             /* llama3 */
    double high_freq_factor;            /* llama3 */
    double beta_fast, beta_slow;        /* yarn */
    bool truncate;                      /* yarn */
    size_t turning;                     /* proportional: pairs that turn */
    double attention_factor;            /* yarn and longrope; 0: not given */
    double mscale, mscale_all_dim;      /* yarn; 0: not given */
    size_t max_positions;               /* max_position_embeddings; 0: not given */
    size_t original_positions;          /* llama3, yarn, longrope; 0: not given */
    double query_beta;                  /* of the factor of queries; 0: none */
    const struct json_t *short_factors; /* longrope: R/2 numbers larger than 0 */
    const struct json_t *long_factors;  /* longrope: for sequences that are longer */
};

/* Of ATTN_BIAS_BUCKETS and ATTN_BIAS_CONTENT: a bias of a score, as a function of
 * j - i. */
struct layer_bias {
    /* [table_rows, H], buckets first; of content [table_rows, table_columns], rows that
     * positional keys and queries are projected from, or which are those of all heads */
    const struct safetensors_tensor *table;
    size_t table_rows, table_columns;
    size_t table_layer; /* which layer has it */
    size_t num_buckets; /* of content: 0 means a row for each distance */
    size_t max_distance;
    bool both_sides; /* keys after the query have buckets of their own */
    /* Of content. */
    size_t own_row;             /* of distance 0 */
    bool descending;            /* a key before the query has a row after it */
    struct layer_norm norm;     /* of the table; its name is as that of the table in
                                  family.h, NULL: none */
    double norm_eps;            /* of a layer norm */
    const char *projections[2]; /* linears of keys and queries in the module, or NULL */
};

/* A linear map, y = x W^T + b, whose outputs are heads of D rows each. */
struct layer_linear {
    bool has_bias, may_have_bias; /* by config.json and family; the latter: if stored */
    const char *bias_name;        /* in the module; NULL: as the weight's */
    const struct safetensors_tensor *weight;
    const struct safetensors_tensor *bias; /* NULL: none */
    bool transposed;                       /* weight is [in, out] instead of [out, in] */
    size_t in_size;
    /* Head h begins at row first_row + h / group_heads * group_rows +
     * h % group_heads * head_rows, of the weight; of the bias so many rows later. */
    size_t first_row, num_heads, head_rows, group_heads, group_rows, bias_rows;
    /* Where weights and biases of heads after the first are, as in struct layer_norm. */
    const struct tensor_view *of_heads;
    /* A map of M rows before those of the heads: weight [M, in_size], bias [M] or NULL.
     * Weights of heads are then [head_rows, M]. NULL: none. */
    const struct safetensors_tensor *stage, *stage_bias;
};

/* Linears that make no linear of a model: they project a table of content. */
enum { LAYER_POSITION_KEY = ATTN_NUM_LINEARS, LAYER_POSITION_QUERY, LAYER_NUM_LINEARS };

struct layer {
    /* Its model, but for the name. Of latent attention, the rotated numbers are the last
     * of each query head in the file, and key heads have the others only. */
    attn_model_info info;
    /* The name behind the folder's: "3", "decoder.3.cross"; of a single file "". */
    char part[LAYER_PART_SIZE];
    bool cross;           /* keys come from elsewhere */
    bool borrows;         /* keys and values are those of an earlier layer */
    bool keys_are_values; /* the linear of values is that of keys */
    size_t lender;        /* which has the tensors of keys and values; or info.layer */
    double value_factor;  /* of values */
    struct layer_rotation rotation;
    struct layer_bias bias;
    /* Where the tensors of norms are, whose kinds are in `info`. */
    struct layer_norm query_norm, key_norm, out_norm, norm_before;
    struct layer_norm latent_query_norm, latent_key_norm;
    const char *sinks_name;                 /* in the module; NULL: none */
    const struct safetensors_tensor *sinks; /* [H], or NULL */
    /* Query [A, D], key [A, D] and score [A] of additive scoring; NULL: it is not. */
    const struct safetensors_tensor *additive[3];
    struct layer_linear linears[LAYER_NUM_LINEARS]; /* ATTN_GATE: weight may be NULL */
};
