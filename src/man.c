/* SPDX-License-Identifier: Apache-2.0 */
/* man.c: a program of the build, which prints the man page (troff) of attnd. */
#include "config/commands.h"
#include "config/help.h"
#include "config/options.h"

#include <attnd/library.h>
#include <stdio.h>

/* Prints text with troff's own characters escaped. */
static void print_troff(const char *text) {
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\\')
            fputs("\\e", stdout);
        else if (*c == '-')
            fputs("\\-", stdout);
        else if ((*c == '.' || *c == '\'') && (c == text || c[-1] == '\n'))
            printf("\\&%c", *c);
        else
            putchar(*c);
    }
}

static void print_man_item(const char *item, const char *metavar, const char *help) {
    fputs(".TP\n\\fB", stdout);
    print_troff(item);
    fputs("\\fR", stdout);
    if (metavar != NULL) {
        fputs(" \\fI", stdout);
        print_troff(metavar);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    print_troff(help);
    putchar('\n');
}

static void print_man_options(void) {
    for (size_t i = 0; i < option_count(&config_options); i++) {
        const struct option *option = option_at(&config_options, i);
        char item[64];

        help_format_flag(option, item, sizeof item);
        print_man_item(item, option->metavar, option->help);
        if (option->value != NULL) {
            fputs("Default: ", stdout);
            print_troff(option->value);
            fputs(".\n", stdout);
        }
        if (!option->command_line_only) {
            help_format_variable(option, item, sizeof item);
            fputs("Environment: ", stdout);
            print_troff(item);
            fputs(".\n", stdout);
        }
    }
}

int main(void) {
    puts(".\\\" Written by the build from the table in src/config/options.c; "
         "do not edit.");
    printf(".TH ATTND 1 \"\" \"attnd %s\" \"User Commands\"\n", attn_version());
    puts(".SH NAME\nattnd \\- serve multi\\-head attention over HTTP\n.SH SYNOPSIS");
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        fputs(i > 0 ? ".br\n" : "", stdout);
        print_troff(command_infos[i].usage);
        putchar('\n');
    }

    puts(".SH DESCRIPTION");
    print_troff(help_description);
    puts("\n.PP\nOnce attnd serves, it prints one line on standard output for each\n"
         "address: \"listening on http://HOST:PORT\" or \"listening on unix:PATH\", or\n"
         "with \\-\\-log\\-format json an event of the log. That goes to standard error\n"
         "and has these addresses, too. SIGTERM\n"
         "and SIGINT stop attnd; it finishes the requests that it has accepted, for\n"
         "\\-\\-grace seconds at most. SIGUSR1 logs debug events, and a second one ends\n"
         "that.\n.SH COMMANDS");
    for (size_t i = 0; i < NUM_COMMANDS; i++)
        print_man_item(command_infos[i].usage, NULL, command_infos[i].help);

    puts(".SH OPTIONS\n"
         "The value of an option follows a blank or '='. It may also be in the\n"
         "environment variable that is named with the option, or in the file of\n"
         "\\-\\-config. A flag overrides the environment, which overrides the file,\n"
         "which overrides the default.");
    print_man_options();

    puts(".SH EXIT STATUS");
    for (size_t i = 0; i < HELP_NUM_EXIT_CODES; i++)
        print_man_item((char[]){(char)('0' + i), '\0'}, NULL, help_exit_codes[i]);

    puts(".SH EXAMPLES\n.nf\n"
         "attnd \\-\\-demo\n"
         "attnd \\-\\-model layer0=layer0.safetensors,num_heads=12,causal=true\n"
         "attnd inspect layer0.safetensors\n.fi\n"
         ".SH SEE ALSO\n"
         "In the source: docs/protocol.md and docs/protocol\\-v2.md for requests,\n"
         "docs/models.md for the layouts of checkpoints,\n"
         "docs/heads.md for heads.");
    return fflush(stdout) == 0 ? 0 : 1;
}
