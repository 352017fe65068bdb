/* SPDX-License-Identifier: Apache-2.0 */
/* traits.h: what a layer computes, as config.json and the defaults of its family say. */
#pragma once

#include "weights/families/match.h"

/* Writes what layer `index` of a stack is called behind the folder's name. */
void traits_name(const struct match_stack *stack, size_t index,
                 char ret_part[LAYER_PART_SIZE]);

/* Fills in all of a layer but its tensors, of which some have their names. Errors, with
 * one line in stack->section.error that names the key: ATTN_E_VALUE,
 * ATTN_E_UNSUPPORTED. */
attn_status traits_read(const struct match *match, const struct match_stack *stack,
                        size_t index, struct layer *ret_layer);
