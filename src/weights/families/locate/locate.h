/* SPDX-License-Identifier: Apache-2.0 */
/* locate.h: finds which tensors have the weights of a layer. */
#pragma once

#include "weights/families/traits.h"

/* Fills in the tensors of a layer whose traits are known, and checks every shape and
 * dtype against them. A tensor of the module that the family does not know is refused,
 * since it might change the results; so is a bias that config.json does not announce, or
 * announces and that is missing. Errors, with one line in stack->section.error that names
 * the tensor: ATTN_E_FORMAT, _SHAPE, _UNSUPPORTED, _OVERFLOW. */
attn_status locate_tensors(const struct match *match, const struct match_stack *stack,
                           const struct tensor_view *tensors, struct layer *layer);
