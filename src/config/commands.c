/* SPDX-License-Identifier: Apache-2.0 */
/* commands.c: names, usage and help of the subcommands. main.c knows what each runs. */
#include "config/commands.h"

#include "base/error.h"
#include "base/nearest.h"

#include <string.h>
#include <unistd.h>

const struct command_info command_infos[NUM_COMMANDS] = {
    [COMMAND_SERVE] = {.name = "serve",
                       .usage = "attnd [serve] [OPTION]...",
                       .help = "Load models and serve them until SIGTERM or SIGINT."},
    [COMMAND_INSPECT] =
        {.name = "inspect",
         .usage = "attnd inspect [--model NAME=FILE[,KEY=VALUE]...] "
                  "[FILE[,KEY=VALUE]...]...",
         .help = "Print the layout and the sizes of each file, or the layers of "
                 "each folder, or what is missing.",
         .accepts_files = true},
    [COMMAND_HEALTH] = {.name = "health",
                        .usage = "attnd health [--listen HOST:PORT|unix:PATH]",
                        .help = "Ask the server at that address whether it is ready; "
                                "exit 0 when it is, else 1."},
};

enum command command_find(const char *name) {
    enum command command = COMMAND_SERVE;
    while (command < NUM_COMMANDS && strcmp(command_infos[command].name, name) != 0)
        command++;
    return command;
}

void command_refuse(const char *name, attn_error *ret_error) {
    struct nearest nearest = {.typed = name};
    for (enum command i = COMMAND_SERVE; i < NUM_COMMANDS; i++)
        nearest_try(&nearest, command_infos[i].name);

    const char *before = "see attnd --help", *word = "", *after = "";
    if (nearest.name != NULL)
        before = "did you mean ", word = nearest.name, after = "?";
    if (strcmp(name, "heads") == 0 || strcmp(name, "prune") == 0)
        before = "it is in the Python package attnd: see docs/heads.md",
        word = after = "";
    else if (nearest.name == NULL && access(name, F_OK) == 0)
        before = "to serve a file write attnd --model NAME=", word = name;
    error_set(ret_error, ATTN_E_VALUE, "unknown command '%s'; %s%s%s", name, before, word,
              after);
}
