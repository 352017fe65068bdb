/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: the subcommands besides serve; each returns the exit code of the process.
 */
#ifndef ATTND_CLI_COMMANDS_H
#define ATTND_CLI_COMMANDS_H

#include "config/config.h"

/* Prints what each --model and each file is, or why it cannot be loaded: 0 when all can,
 * else
 * 1. A bare file is loaded with nothing said about it. */
int command_inspect(const struct config *config, const struct config_texts *files);

/* Asks the server at --listen whether it is ready: 0 when it is, else 1. */
int command_health(const struct config *config);

/* Times the layer, or with --wire reading JSON, and prints the figures: 0, or 1 when it
 * cannot be run, 2 for a malformed --shape. attn_init() must have succeeded. */
int command_bench(const struct config *config);

#endif
