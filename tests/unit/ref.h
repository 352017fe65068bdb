/* SPDX-License-Identifier: Apache-2.0 */
/* ref.h: the layer computed plainly, from its definition, in float64. It is the oracle
 * that every kernel is compared with, so it is kept simple rather than fast. It decides
 * on its own which keys a query attends to. */
#ifndef ATTND_TESTS_REF_H
#define ATTND_TESTS_REF_H

#include "ref_round.h"

#include <attnd/attention.h>

/* Laid out as in attn_result, but with the scores of all heads and queries. What is NULL
 * is not computed. */
struct ref_result {
    double *outputs, *weights, *heads, *lse, *scores;
};

/* Computes what attn_run() computes, for a request that attn_plan() accepts. The weights
 * are laid out as request->need_weights says; what else is computed, *ret_result alone
 * says. Thread-safe; allocates. Returns ATTN_OK, what attn_plan() returns, or
 * ATTN_E_NOMEM. */
attn_status attn_ref_run(const attn_model *model, const attn_request *request,
                         const struct ref_result *ret_result);

/* The same, with the roundings of an engine. Changes rounding->state. */
attn_status attn_ref_run_rounded(const attn_model *model, const attn_request *request,
                                 struct ref_rounding *rounding,
                                 const struct ref_result *ret_result);

#endif
