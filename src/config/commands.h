/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h: the one table of subcommands, for main(), --help and the man page. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>

enum command {
    COMMAND_SERVE, /* the default */
    COMMAND_INSPECT,
    COMMAND_HEALTH,
    NUM_COMMANDS /* also: unknown */
};

struct command_info {
    const char *name;
    const char *usage;
    const char *help;
    bool accepts_files; /* as operands, after the options */
};

/* Indexed by enum command; constant. */
extern const struct command_info command_infos[NUM_COMMANDS];

/* Returns the command of this name, or NUM_COMMANDS when there is none. */
enum command command_find(const char *name);

/* Says that there is no command of this name, and what may have been meant. */
void command_refuse(const char *name, attn_error *ret_error);
