/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: all subcommands except serve. Each returns the exit code of the process. */
#pragma once

#include "config/config.h"

/* Prints what each --model and each file is, or why it cannot be loaded. Files are loaded
 * without options. Returns 0 when all can be loaded, 1 when one cannot, and 2 when none
 * is given. */
int command_inspect(const struct config *config, const struct config_texts *files);

/* Asks the server at --listen, the first of several, whether it is ready. Returns 0 when
 * it is, else 1. */
int command_health(const struct config *config);
