/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.h: of which kind each layer of a stack is: with attention or without, with a
 * window or without. All functions leave an error in the section, ATTN_E_VALUE or
 * ATTN_E_UNSUPPORTED with one line, when config.json does not say. */
#pragma once

#include "weights/families/family.h"

/* Returns for how many layers config.json lists types that tell which have attention; 0
 * without such a list. */
size_t kind_count_layers(const struct family *family,
                         const struct config_section *section);

/* Returns whether the layer has attention. */
bool kind_attends(const struct layer_source *layer);

/* Returns whether config.json lists types of layers. Then *ret_is says if this layer's is
 * `wanted`; any other must be full attention. */
bool kind_is_listed(const struct layer_source *layer, const char *wanted, bool *ret_is);

/* Returns whether the layer has its window, where that is not 0. */
bool kind_slides(const struct layer_source *layer);

/* The rule of windows by a period, see struct family_windows. A text such as "LLLG" in
 * place of the period has L for layers with a window. */
bool kind_slides_in_period(const struct layer_source *layer);
