/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: all subcommands except serve. Each returns the exit code of the process. */
#pragma once

#include "config/config.h"

/* Prints what each --model and each file is, or why it cannot be loaded. Files are loaded
 * without options. Returns 0 when all can be loaded, 1 when one cannot, and 2 when none
 * is given. */
int command_inspect(const struct config *config, const struct config_texts *files);

/* Prints what each head of the model in the only operand attends to over the requests of
 * --data, and how much the outputs depend on it. Returns 0; 1 when that fails; 2 when
 * options or operands are wrong. */
int command_heads(const struct config *config, const struct config_texts *files);

/* Writes --output: the model in the only operand without the heads --heads, or with
 * --keep heads. With --data it prints how much the outputs change. Returns as
 * command_heads() does. */
int command_prune(const struct config *config, const struct config_texts *files);

/* Asks the server at --listen, the first of several, whether it is ready. Returns 0 when
 * it is, else 1. */
int command_health(const struct config *config);
