/* SPDX-License-Identifier: Apache-2.0 */
/* norms.h: finds the tensors of all norms of a layer. */
#pragma once

#include "weights/families/locate/locator.h"

/* Finds them for the kinds of norms that the layer has. Errors, which name the tensor:
 * ATTN_E_FORMAT, ATTN_E_SHAPE, ATTN_E_UNSUPPORTED. */
void locate_norms(const struct locator *locator);
