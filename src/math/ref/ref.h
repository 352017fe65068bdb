/* SPDX-License-Identifier: Apache-2.0 */
/* ref.h: the layer computed plainly, from its definition, in float64. It is the oracle
 * that every kernel is compared with, so it is kept simple rather than fast. */
#ifndef ATTND_MATH_REF_H
#define ATTND_MATH_REF_H

#include <attnd/attention.h>

/* Computes what attn_run() computes, for a request that attn_plan() accepts. The outputs
 * and the weights (NULL when not wanted) are laid out as in attn_result, in float64.
 * Thread-safe; allocates. Returns ATTN_OK, what attn_plan() returns, or ATTN_E_NOMEM. */
attn_status attn_ref_run(const attn_model *model, const attn_request *request,
                         double *ret_outputs, double *ret_weights);

#endif
