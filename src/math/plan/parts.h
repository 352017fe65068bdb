/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: the last parts of plan_make(), in their order, once sequences are counted. */
#pragma once

#include "math/plan/plan.h"

/* Checks the ranges and counts of request->reduce. Errors: ATTN_E_VALUE. */
attn_status plan_check_reductions(const attn_request *request, attn_error *ret_error);

/* Works out what sizes of scratch memory follow from. */
void plan_scratch(struct plan *plan);

/* Counts the operations of the attention, and of all three steps. */
void plan_count_flops(struct plan *plan);
