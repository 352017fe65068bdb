/* SPDX-License-Identifier: Apache-2.0 */
/* commands.c: names, usage and help of the subcommands. main.c knows what each runs. */
#include "config/commands.h"

#include <string.h>

const struct command_info command_infos[NUM_COMMANDS] = {
    [COMMAND_SERVE] = {"serve", "attnd [serve] [OPTION]...",
                       "Load models and serve them until SIGTERM or SIGINT.", false},
    [COMMAND_INSPECT] = {"inspect",
                         "attnd inspect [--model NAME=FILE[,KEY=VALUE]...] [FILE]...",
                         "Say what layout each file has, its sizes, and what is missing.",
                         true},
    [COMMAND_BENCH] =
        {"bench", "attnd bench [--shape B,T,WIDTH,HEADS[,TK]]... [OPTION]...",
         "Time the layer in process, beside the peak of this CPU and a plain program over "
         "cblas.",
         false},
    [COMMAND_HEALTH] = {"health", "attnd health [--listen HOST:PORT]",
                        "Exit 0 when the server there is ready, 1 when it is not.",
                        false},
};

enum command command_find(const char *name) {
    enum command command = COMMAND_SERVE;
    while (command < NUM_COMMANDS && strcmp(command_infos[command].name, name) != 0)
        command++;
    return command;
}
