/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: the parts of plan_make(), in their order. */
#pragma once

#include "math/plan/plan.h"

/* Checks what only some layers take: those without projections, or with sections. */
attn_status plan_check_taken(const struct plan *plan, attn_error *ret_error);

/* Checks the lengths of one sequence. */
attn_status plan_check_lens(const struct plan *plan, size_t sequence,
                            attn_error *ret_error);

/* Checks the valid and prefix lengths and the positions of one sequence, which begins at
 * these rows of the batch. */
attn_status plan_check_entries(const attn_request *request, size_t sequence,
                               size_t first_query, size_t first_key,
                               attn_error *ret_error);

/* Checks that selected heads and queries exist. */
attn_status plan_check_selected(const struct plan *plan, attn_error *ret_error);

/* Checks the ranges and counts of request->reduce. Errors: ATTN_E_VALUE. */
attn_status plan_check_reductions(const attn_request *request, attn_error *ret_error);

/* Works out what sizes of scratch memory follow from. */
void plan_scratch(struct plan *plan);

/* Counts the operations of the attention, and of all three steps. */
void plan_count_flops(struct plan *plan);
