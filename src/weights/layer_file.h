/* SPDX-License-Identifier: Apache-2.0 */
/* layer_file.h: files of one layer with all that a model may have, in the layout "attnd".
 *
 * Members of the model are entries of __metadata__, under the names of attn_model_info;
 * those that are 0 are left out. Arrays are tensors. Rotary frequencies are float64: each
 * is the sum of the three numbers of a column. */
#ifndef ATTND_WEIGHTS_LAYER_FILE_H
#define ATTND_WEIGHTS_LAYER_FILE_H

#include "safetensors/file.h"

#include <attnd/model.h>

#define LAYER_FILE_LAYOUT "attnd"

/* Returns whether the file says that it is one. */
bool layer_file_is(const struct safetensors *file);

/* Creates a file from a model with dot products that still has its weights. Errors, with
 * one line: those of safetensors_write_file(). */
attn_status layer_file_write(const attn_model *model, const char *path,
                             attn_error *ret_error);

/* Creates the model called `name`. The caller owns *ret_model. Nothing is allocated
 * before all shapes were checked. Errors, with one line that names the entry or tensor:
 * ATTN_E_VALUE, _FORMAT, _SHAPE; those of assemble_from_source(). */
attn_status layer_file_create_model(const char *name, const struct safetensors *file,
                                    const attn_engine_options *engine,
                                    attn_model **ret_model, attn_error *ret_error);

/* Describes that model as it would be with engine->serve_only; with `check_weights` reads
 * all weights once to check them. The errors are the same. */
attn_status layer_file_describe(const struct safetensors *file,
                                const attn_engine_options *engine, bool check_weights,
                                attn_model_info *ret_info, attn_error *ret_error);

#endif
