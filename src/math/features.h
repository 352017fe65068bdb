/* SPDX-License-Identifier: Apache-2.0 */
/* features.h: what a layer has besides plain attention. */
#pragma once

#include <attnd/model.h>

#define FEATURES_TEXT_SIZE 320

/* The files of a layer have these, and its model does not show them. */
struct features_origin {
    size_t lender;          /* the layer that has the keys, where kind is "borrowed" */
    double value_factor;    /* of values, in the weights by now; 0 stands for 1 */
    bool interleaved;       /* pairs of a rotation are neighbours */
    const size_t *sections; /* pairs of each axis, [ATTN_AXES]; NULL: none */
    bool sections_interleaved;
    size_t num_buckets;           /* of the bias by distance */
    bool plus_one;                /* norms multiply by 1 + w */
    bool bare_heads, bare_before; /* these norms have no weight */
};

/* What the features of a layer do to its computation. */
struct features_effects {
    /* Scores and results come from more than the projections, so that few queries cannot
     * be computed directly, see plan_find_kind(). A scale of its own, a gate and a causal
     * mask do not count, nor does what a request may set. */
    bool indirect;
    /* Projected rows are changed before the attention, and values are: they are normed,
     * rotated or multiplied. Such a layer is indirect. */
    bool finishes, finishes_values;
};

struct features {
    /* "causal, rope 10000 of 64"; or "plain". What has no room is left out. */
    char text[FEATURES_TEXT_SIZE];
    bool more; /* than plain attention: any that is not in d2l's own layer */
    struct features_effects effects;
};

/* Lists the features of a layer whose defaults are set, as attn_model_create() sets them.
 * `origin` may be NULL. */
void features_list(const attn_model_info *info, const struct features_origin *origin,
                   struct features *ret_features);

/* Returns what the queries of a layer are, in a few words; a constant. The same words are
 * the same pointer. */
const char *features_queries(const attn_model_info *info);
