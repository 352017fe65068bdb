/* SPDX-License-Identifier: Apache-2.0 */
/* make.h: what the model of a layer is, how its numbers are read, and how it is made. */
#pragma once

#include "math/features.h"
#include "math/model.h"
#include "weights/layer/layer.h"

/* Completes layer->info by what the tensors tell, once they are known. */
void layer_complete(struct layer *layer);

/* Writes what makes the layer more than plain attention, see struct features. */
void layer_describe_features(const struct layer *layer,
                             char ret_text[FEATURES_TEXT_SIZE]);

/* Reads all numbers of a layer into a model that was created as layer->info says, which
 * gets their fingerprint. Errors, with one line: ATTN_E_NOMEM, ATTN_E_VALUE, those of
 * safetensors_read(). */
attn_status layer_read_model(const struct layer *layer, attn_model *model,
                             attn_error *ret_error);

/* Creates a model of `info`, which is layer->info with a name, reads the weights of the
 * layer and makes the engine. The caller owns *ret_model.
 *
 * Errors: ATTN_E_OVERFLOW for weights that do not fit in the memory that this process may
 * use, before any is taken; those of layer_read_model(), attn_model_create(),
 * attn_model_set_engine() and model_prepare_to_serve(). */
attn_status layer_create_model(const struct layer *layer, const attn_model_info *info,
                               const attn_engine_options *engine, attn_model **ret_model,
                               attn_error *ret_error);

/* Reads all weights of the layer, to check them, into the memory that they take before
 * there is an engine, and sets its fingerprint. Errors: as layer_create_model(). */
attn_status layer_check(struct layer *layer, attn_error *ret_error);
