/* SPDX-License-Identifier: Apache-2.0 */
/* load.h: every model that the operator named. */
#ifndef ATTND_CLI_LOAD_H
#define ATTND_CLI_LOAD_H

#include "config/config.h"

#include <attnd/model.h>

struct models {
    attn_model **items; /* [count], owned */
    size_t count;
};

/* Loads what --model, --model-dir and --demo name, in this order. On success the caller
 * owns *ret_models. Errors, with one line: ATTND_E_VALUE for a malformed --model, two
 * models of one name or no model at all; ATTND_E_IO for a folder; else as
 * attn_model_load(). */
attnd_status load_models(const struct config *config, struct models *ret_models,
                         attnd_error *ret_error);

/* Gives the memory back; a zeroed struct is fine. */
void load_models_deinit(struct models *models);

#endif
