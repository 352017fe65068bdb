/* SPDX-License-Identifier: Apache-2.0 */
/* rotation.h: what config.json says of a layer's rotary positions, in the spelling of any
 * version of transformers. */
#pragma once

#include "weights/families/config.h"
#include "weights/families/family.h"

/* Reads the rotary parameters of a layer of `head_size`, which rotates if its family
 * does. A value inside rope_scaling or rope_parameters comes first, then the key beside
 * it, then the default of the family. dims is 0 where the family does not rotate.
 * *ret_rotation borrows from the section. Errors, with one line in section->error that
 * names the key: ATTN_E_VALUE, ATTN_E_UNSUPPORTED for a rope_type that attnd does not
 * know. */
void rotation_read(const struct layer_source *layer, size_t head_size,
                   struct layer_rotation *ret_rotation);
