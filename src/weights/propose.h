/* SPDX-License-Identifier: Apache-2.0 */
/* propose.h: tells which tensors a layer has that fits no layout. */
#pragma once

#include "weights/layer/view.h"

#include <stdbool.h>

enum { PROPOSAL_SIZE = 400 };

/* Finds weights of queries, keys, values and output among tensors of a file, whose names
 * are whole, by names and shapes. Writes the options that serve them, as in
 * ",prefix=a.,q=to_q,k=to_k,v=to_v,o=to_out.0", but for num_heads, and for transposed
 * where the shapes do not tell it. Returns false where it cannot tell, or where another
 * tensor of their module would be refused. */
bool propose_options(const struct safetensors *file, const struct tensor_view *tensors,
                     char ret_text[PROPOSAL_SIZE]);
