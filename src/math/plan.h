/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: how attn_run() divides its scratch memory. */
#ifndef ATTND_MATH_PLAN_H
#define ATTND_MATH_PLAN_H

#include <attnd/attention.h>

#define QUERY_BLOCK 32 /* queries of one head whose scores are computed together */

/* Offsets and strides in floats. The outputs of the heads take the place of the projected
 * queries, block by block, as soon as these are used up. */
struct plan {
    attn_sizes sizes;
    size_t hidden;           /* H*D */
    size_t queries;          /* [sum of Tq, H*D]; unused without output projection */
    size_t keys;             /* [sum of Tk, H*D] */
    size_t values;           /* [sum of Tk, H*D] */
    size_t scores;           /* [QUERY_BLOCK, longest Tk] */
    size_t additive_keys;    /* [longest Tk, additive_size] */
    size_t additive_queries; /* [QUERY_BLOCK, additive_size] */
    size_t longest_key_len;
};

/* As attn_plan(), with the offsets. */
attnd_status plan_make(const attn_model *model, const attn_request *request,
                       struct plan *ret_plan, attnd_error *ret_error);

#endif
