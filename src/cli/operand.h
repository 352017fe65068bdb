/* SPDX-License-Identifier: Apache-2.0 */
/* operand.h: the model that is the only operand of a command: FILE[,KEY=VALUE]..., or
 * FOLDER,layer=NAME. */
#pragma once

#include "config/config.h"

#include <attnd/model.h>

struct model_spec;

/* Parses the operand, and prepares BLAS. The caller owns *ret_spec. Returns 0, or the
 * exit code after printing why that fails: 2 for operands that are wrong, else 1. */
int operand_parse(const struct config *config, const struct config_texts *files,
                  struct model_spec *ret_spec, attn_engine_options *ret_engine);

/* Loads the layer of a file, not of a folder. The caller owns *ret_model. Errors: those
 * of attn_model_load(). */
attn_status operand_load_file(const struct model_spec *spec,
                              const attn_engine_options *engine, attn_model **ret_model,
                              attn_error *ret_error);

/* Prepares BLAS and loads the model. The caller owns *ret_model. Returns 0, or the exit
 * code after printing why that fails: 2 for operands that are wrong, else 1. */
int operand_load(const struct config *config, const struct config_texts *files,
                 attn_model **ret_model);

/* Prints an error for the operator; returns `exit_code`. */
int operand_report(const attn_error *error, int exit_code);
