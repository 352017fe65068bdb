/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: makes a model from an opened file. */
#ifndef ATTND_WEIGHTS_CHECKPOINT_H
#define ATTND_WEIGHTS_CHECKPOINT_H

#include "safetensors/file.h"

#include <attnd/model.h>

/* Creates the model called `name`. The options, which may be NULL, override the file's
 * __metadata__, which overrides the layout's defaults. Errors and ownership are as in
 * attn_model_load(), but ret_error does not name the file. */
attn_status checkpoint_create_model(const char *name, const struct safetensors *file,
                                    const attn_model_options *options,
                                    const attn_engine_options *engine,
                                    attn_model **ret_model, attn_error *ret_error);

#endif
