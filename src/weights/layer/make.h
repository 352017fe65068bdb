/* SPDX-License-Identifier: Apache-2.0 */
/* make.h: what the model of a layer is, and how its numbers are read. */
#pragma once

#include "math/features.h"
#include "math/model.h"
#include "weights/layer/layer.h"

/* Describes what attn_model_create() is asked for, but for the name and context_length.
 * With `pre_norm` the norm before the layer is part of the model, where there is one. The
 * texts are constants. */
void layer_fill_info(const struct layer *layer, bool pre_norm, attn_model_info *ret_info);

/* Writes what makes the layer more than plain attention, see struct features. */
void layer_describe_features(const struct layer *layer,
                             char ret_text[FEATURES_TEXT_SIZE]);

/* Reads all numbers of a layer into a model that was created as layer_fill_info() says.
 * Errors, with one line: ATTN_E_NOMEM, ATTN_E_VALUE, those of safetensors_read(). */
attn_status layer_read_model(const struct layer *layer, attn_model *model,
                             attn_error *ret_error);
