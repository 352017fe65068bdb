/* SPDX-License-Identifier: Apache-2.0 */
/* create.h: makes the model of a layer, or only checks its weights. */
#pragma once

#include "weights/layer/layer.h"

#include <attnd/model.h>

/* Creates a model of `info`, which is that of layer_fill_info() with a name, reads the
 * weights of the layer and makes the engine. The caller owns *ret_model. Errors:
 * ATTN_E_OVERFLOW for weights that do not fit in the memory that this process may use,
 * before any is taken; those of layer_read_model(), attn_model_create(),
 * attn_model_set_engine() and model_prepare_to_serve(). */
attn_status layer_create_model(const struct layer *layer, const attn_model_info *info,
                               const attn_engine_options *engine, attn_model **ret_model,
                               attn_error *ret_error);

/* Reads all weights once, to check them, in the memory that a model of them takes before
 * its engine is made. Errors: ATTN_E_OVERFLOW as above; those of layer_read_model() and
 * attn_model_create(). */
attn_status layer_check_weights(const struct layer *layer, const attn_model_info *info,
                                attn_error *ret_error);
