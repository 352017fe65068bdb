/* SPDX-License-Identifier: Apache-2.0 */
/* rope.h: the rotary positions of a layer, in the spelling of any version. */
#ifndef ATTND_WEIGHTS_FAMILIES_ROPE_H
#define ATTND_WEIGHTS_FAMILIES_ROPE_H

#include "weights/families/config.h"
#include "weights/families/family.h"

/* Reads the rotary parameters of a layer of `head_size`, which has a window when
 * `sliding`. A value inside rope_scaling or rope_parameters comes first, then the key
 * beside it, then the default of the family. dims is 0 where the layer does not rotate.
 * *ret_rope borrows from the section. Errors, with one line in section->error that names
 * the key: ATTN_E_VALUE, ATTN_E_UNSUPPORTED for a rope_type that attnd does not know. */
void rope_read(const struct family *family, const struct config_section *section,
               size_t head_size, bool sliding, struct layer_rope *ret_rope);

#endif
