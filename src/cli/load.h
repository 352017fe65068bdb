/* SPDX-License-Identifier: Apache-2.0 */
/* load.h: loads every model that the options name. */
#ifndef ATTND_CLI_LOAD_H
#define ATTND_CLI_LOAD_H

#include "config/config.h"

#include <attnd/model.h>

struct models {
    attn_model **items; /* [count], owned */
    size_t count;
    size_t num_skipped; /* files of --model-dir that --skip-bad-models left out */
};

/* Checks what needs no file: the text of every --model, and that some option names a
 * model. Errors: ATTN_E_VALUE, ATTN_E_NOMEM. */
attn_status load_check(const struct config *config, attn_error *ret_error);

/* Loads what --model, --model-dir and --demo name, in this order, to serve only. On
 * success the caller owns *ret_models. Logs a warning for each file that is skipped, and
 * how many were. Errors, with one line: ATTN_E_VALUE for two models with the same
 * name, for a folder without *.safetensors files, and when all of them were skipped and
 * no other model is left; ATTN_E_IO for a folder that cannot be read; else as
 * load_check() and attn_model_load(). */
attn_status load_models(const struct config *config, struct models *ret_models,
                        attn_error *ret_error);

/* Returns the engine options of a model. `precision` is the one that its own --model
 * sets, or NULL; serve_only is that of the options. */
attn_engine_options load_engine_options(const struct config *config,
                                        const char *precision, bool serve_only);

/* Destroys the models; a zeroed struct is fine. */
void load_models_deinit(struct models *models);

#endif
