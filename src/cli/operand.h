/* SPDX-License-Identifier: Apache-2.0 */
/* operand.h: the model that is the only operand of a command: FILE[,KEY=VALUE]..., or
 * FOLDER,layer=NAME. */
#ifndef ATTND_CLI_OPERAND_H
#define ATTND_CLI_OPERAND_H

#include "config/config.h"

#include <attnd/model.h>

/* Prepares BLAS and loads the model. The caller owns *ret_model. Returns 0, or the exit
 * code after printing why that fails: 2 for operands that are wrong, else 1. */
int operand_load(const struct config *config, const struct config_texts *files,
                 attn_model **ret_model);

/* Prints an error for the operator; returns `exit_code`. */
int operand_report(const attn_error *error, int exit_code);

#endif
