/* SPDX-License-Identifier: Apache-2.0 */
/* assemble.h: makes a model from the tensors of a layer. */
#pragma once

#include "weights/sizes.h"

#include <attnd/model.h>

/* Where the weights of a model come from. */
struct weight_source {
    const attn_model_info *info; /* its sizes */
    /* Reads all weights into a model of these sizes. May be called twice. */
    attn_status (*read)(const void *context, attn_model *model, attn_error *ret_error);
    const void *context;
};

/* Creates a model, reads its weights and makes its engine. The caller owns *ret_model.
 * Errors: ATTN_E_OVERFLOW for weights that do not fit in the memory that this process may
 * use, before any is taken; those of source->read(), attn_model_create(),
 * attn_model_set_engine() and model_prepare_to_serve(). */
attn_status assemble_from_source(const struct weight_source *source,
                                 const attn_engine_options *engine,
                                 attn_model **ret_model, attn_error *ret_error);

/* Reads all weights once, to check them, in the memory that a model of them takes before
 * its engine is made. Errors: ATTN_E_OVERFLOW as above; those of source->read() and
 * attn_model_create(). */
attn_status assemble_check_weights(const struct weight_source *source,
                                   attn_error *ret_error);

/* Creates the model of a layer of a single file, reads its weights and makes its engine.
 *
 * A second projection inside each head is multiplied into the first one (math/fold.h).
 * The caller owns *ret_model. Errors, in sizes->ret_error, each naming the tensor:
 * ATTN_E_VALUE for a product that is too large for float32, those of safetensors_read()
 * and assemble_from_source(). */
attn_status assemble_model(const struct layer_sizes *sizes,
                           const attn_engine_options *engine, attn_model **ret_model);

/* Reads every tensor of the layer once, part by part, and keeps none. Errors, in
 * sizes->ret_error: those of safetensors_read(). */
attn_status assemble_check_tensors(const struct layer_sizes *sizes);
