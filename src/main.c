/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: runs the command that was asked for. */
#include "base/heap.h"
#include "base/log.h"
#include "cli/commands.h"
#include "config/commands.h"
#include "daemon/serve.h"
#include "http/net/listen.h"
#include "safetensors/parse.h"

#include <attnd/library.h>
#include <stdio.h>
#include <stdlib.h>

extern char **environ;

/* Made by commit.sh; may be "". */
extern const char main_commit[];

/* Returns `exit_code`, or a failure when standard output did not take all of the text. */
static int finish_output(int exit_code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    return log_failure("standard output did not take all of the text; "
                       "check the disk or the program that it goes to",
                       EXIT_FAILURE);
}

static int run_health(const struct config *config) {
    attn_error error;
    if (listen_check("--listen", config->listens.items[0], &error) != ATTN_OK ||
        (config->admin_listen != NULL &&
         listen_check("--admin-listen", config->admin_listen, &error) != ATTN_OK))
        return log_failure(error.text, EXIT_USAGE);
    return command_health(config);
}

/* Runs the command, whose operands are `files`. Returns the exit code. */
static int run_command(enum command command, const struct config *config,
                       const struct config_texts *files) {
    if (command == COMMAND_INSPECT)
        return command_inspect(config, files);
    if (command == COMMAND_HEALTH)
        return run_health(config);
    return daemon_serve(config, main_commit);
}

int main(int argc, char **argv) {
    struct config config;
    struct config_texts files = {NULL, 0};
    attn_error error;
    enum command command = COMMAND_SERVE;
    int first_option = argc > 0 ? 1 : 0;

    heap_init();
    if (argc > 1 && argv[1][0] != '-') {
        command = command_find(argv[1]);
        first_option = 2;
    }
    if (command == NUM_COMMANDS) {
        command_refuse(argv[1], &error);
        return log_failure(error.text, EXIT_USAGE);
    }
    parse_json_init(); /* before config_read(), which uses jansson */

    attn_status status =
        config_read(&command_infos[command], argc - first_option, argv + first_option,
                    environ, &config, &files, &error);
    if (command == COMMAND_SERVE) /* the others are interactive */
        log_init((enum log_format)config.log_format, (enum log_level)config.log_level);
    if (status != ATTN_OK)
        return log_failure(error.text, EXIT_USAGE);

    int exit_code = EXIT_SUCCESS;
    if (config.help)
        config_print_help();
    else if (config.version)
        printf("attnd %s%s\n", attn_version(), main_commit);
    else
        exit_code = run_command(command, &config, &files);

    /* serve does not fail when its address line cannot be printed, and health replies by
     * its exit code. */
    bool is_text = config.help || config.version || config.check_config ||
                   (command != COMMAND_SERVE && command != COMMAND_HEALTH);
    if (is_text)
        exit_code = finish_output(exit_code);

    config_texts_deinit(&files);
    config_deinit(&config);
    return exit_code;
}
