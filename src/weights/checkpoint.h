/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: an opened file becomes a model. */
#ifndef ATTND_WEIGHTS_CHECKPOINT_H
#define ATTND_WEIGHTS_CHECKPOINT_H

#include "safetensors/file.h"

#include <attnd/model.h>

/* Creates the model called `name`: options, then the file's __metadata__, then the
 * layout's defaults decide. Errors and ownership as attn_model_load(), but ret_error does
 * not name the file. */
attn_status checkpoint_create_model(const char *name, const struct safetensors *file,
                                    const attn_model_options *options,
                                    attn_model **ret_model, attn_error *ret_error);

#endif
