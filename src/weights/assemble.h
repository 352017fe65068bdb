/* SPDX-License-Identifier: Apache-2.0 */
/* assemble.h: makes a model from the tensors of a recognised layout, or describes it. */
#ifndef ATTND_WEIGHTS_ASSEMBLE_H
#define ATTND_WEIGHTS_ASSEMBLE_H

#include "weights/layout.h"

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

/* Checks every shape, then creates the model, reads its weights and makes its engine.
 *
 * `info` gives name, causal, context_length and, unless 0, num_heads; the rest comes from
 * the tensors. A second projection inside each head is multiplied into the first one
 * (math/fold.h). The caller owns *ret_model. Errors, each naming the tensor or the
 * option: ATTN_E_SHAPE, _FORMAT, _VALUE, those of safetensors_read(),
 * attn_model_create(), attn_model_set_engine() and model_prepare_to_serve(). */
attn_status assemble_model(const struct layout *layout, const struct tensor_view *view,
                           const attn_model_info *info, const attn_engine_options *engine,
                           attn_model **ret_model, attn_error *ret_error);

/* Describes that model as it would be with engine->serve_only. Checks every shape, and
 * with `check_weights` reads all weights once to check them. The errors are the same,
 * except ATTN_E_NOMEM and no product is found too large for float32. */
attn_status assemble_description(const struct layout *layout,
                                 const struct tensor_view *view,
                                 const attn_model_info *info,
                                 const attn_engine_options *engine, bool check_weights,
                                 attn_model_info *ret_info, attn_error *ret_error);

#endif
