/* SPDX-License-Identifier: Apache-2.0 */
/* create.h: makes the model of a layer. */
#pragma once

#include "weights/layer/layer.h"

#include <attnd/model.h>

/* Creates a model of `info`, which is that of layer_fill_info() with a name, reads the
 * weights of the layer and makes the engine. The caller owns *ret_model; NULL: weights
 * are only read, to check them, in the memory that they take before there is an engine.
 *
 * Errors: ATTN_E_OVERFLOW for weights that do not fit in the memory that this process may
 * use, before any is taken; those of layer_read_model(), attn_model_create(),
 * attn_model_set_engine() and model_prepare_to_serve(). */
attn_status layer_create_model(const struct layer *layer, const attn_model_info *info,
                               const attn_engine_options *engine, attn_model **ret_model,
                               attn_error *ret_error);
