/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: makes a model from an opened file, or describes what it would be. */
#pragma once

#include "weights/layer/layer.h"

#include <attnd/model.h>

/* Refuses a name that models cannot have: ATTN_E_VALUE, with one line. */
attn_status checkpoint_check_name(const char *name, attn_error *ret_error);

/* Returns what a file may lack, of a model that was made of it or described: its heads
 * share keys, and are not rotated. A constant; NULL: nothing. */
const char *checkpoint_find_note(const attn_model_info *info);

/* An opened file of one layer. */
struct checkpoint;

/* Opens the file at `path`, and finds its layer; reads no weights. The caller owns
 * *ret_checkpoint. Errors and options are as in attn_model_load(). */
attn_status checkpoint_open(const char *path, const attn_model_options *options,
                            struct checkpoint **ret_checkpoint, attn_error *ret_error);

/* Returns the layer, which is called "model" and belongs to `checkpoint`. */
const struct layer *checkpoint_get_layer(const struct checkpoint *checkpoint);

/* Closes the file; NULL is fine. */
void checkpoint_close(struct checkpoint *checkpoint);

/* Creates the model called `name`. The options, which may be NULL, override the file's
 * __metadata__, which overrides the layout's defaults. Errors and ownership are as in
 * attn_model_load(), but ret_error does not name the file. */
attn_status checkpoint_create_model(const char *name, const struct safetensors *file,
                                    const attn_model_options *options,
                                    const attn_engine_options *engine,
                                    attn_model **ret_model, attn_error *ret_error);

/* Describes the model that attn_model_load() would make of the file to serve only. With
 * `check_weights` it reads all weights, checks what attn_model_load() would check, and
 * finds their fingerprint; otherwise it reads the header alone. Does not need
 * attn_init(). Errors are as in attn_model_load(). */
attn_status checkpoint_describe(const char *path, const attn_model_options *options,
                                const attn_engine_options *engine, bool check_weights,
                                attn_model_info *ret_info, attn_error *ret_error);
