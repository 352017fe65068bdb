/* SPDX-License-Identifier: Apache-2.0 */
/* help.c: --help and the man page, both from the table of options. */
#include "config/commands.h"
#include "config/options.h"

#include <attnd/library.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define HELP_WIDTH  80 /* columns */
#define HELP_INDENT 8

static const struct {
    const char *code;
    const char *help;
} exit_codes[] = {
    {"0", "Stopped on request, after every accepted request got a reply, "
          "or while models were loaded."},
    {"1", "Could not start (a model, the address, memory), "
          "or stopped before every accepted request got a reply. "
          "Another command could not do its work."},
    {"2", "An option, a variable or the configuration file is wrong; one line names it."},
};

static const char description[] =
    "attnd loads multi-head attention layers from safetensors files and serves them over "
    "HTTP. A request has queries, keys, values and valid_lens, as JSON or in the "
    "safetensors format, or follows the Open Inference Protocol. Native kernels, chosen "
    "for this CPU, compute the layer on a pool of workers; OpenBLAS can compute its "
    "projections instead. The reply has the outputs and, on request, the attention "
    "weights of every head.";

/* Prints `text` wrapped, with `indent` blanks before each line. */
static void print_indented(const char *text, int indent) {
    size_t column = 0;

    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (column == 0 || (size_t)indent + column + 1 + word > HELP_WIDTH) {
            printf("%s%*s", column == 0 ? "" : "\n", indent, "");
            column = 0;
        }
        printf("%s%.*s", column == 0 ? "" : " ", (int)word, text);
        column += word + (column == 0 ? 0 : 1);
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void print_wrapped(const char *text) {
    print_indented(text, HELP_INDENT);
}

/* Writes an option's flag, with its letter where it has one: "--help, -h". */
static void format_flag(const struct option *option, char *ret_text, size_t size) {
    if (option->letter != '\0')
        snprintf(ret_text, size, "--%s, -%c", option->name, option->letter);
    else
        snprintf(ret_text, size, "--%s", option->name);
}

/* Writes the name of an option's environment variable, such as ATTND_MAX_BODY. */
static void format_variable_name(const struct option *option, char *ret_name,
                                 size_t size) {
    size_t at = (size_t)snprintf(ret_name, size, OPTION_VARIABLE_PREFIX);
    for (const char *c = option->name; *c != '\0' && at + 1 < size; c++)
        ret_name[at++] = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
    ret_name[at] = '\0';
}

/* Prints the options whose `command` is this one or, when it is NULL, is NULL too. */
static void print_help_options(const char *command) {
    for (size_t i = 0; i < config_num_options; i++) {
        const struct option *option = &config_options[i];
        if ((option->command == NULL) != (command == NULL) ||
            (command != NULL && strcmp(option->command, command) != 0))
            continue;

        char text[64];
        format_flag(option, text, sizeof text);
        printf("  %s", text);
        if (option->metavar != NULL)
            printf(" %s", option->metavar);
        if (option->value != NULL)
            printf("  (default %s)", option->value);
        if (!option->command_line_only) {
            format_variable_name(option, text, sizeof text);
            printf("  [%s]", text);
        }
        putchar('\n');
        print_wrapped(option->help);
    }
}

void config_print_help(void) {
    printf("attnd %s: multi-head attention over HTTP\n\nUsage:\n", attn_version());
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        printf("  %s\n", command_infos[i].usage);
        print_wrapped(command_infos[i].help);
    }

    putchar('\n');
    print_indented(description, 0);
    printf("\nFirst steps: attnd --demo, then, in another shell:\n"
           "  curl -s http://127.0.0.1:8080/v1/attention \\\n"
           "    -H 'Content-Type: application/json' \\\n"
           "    -d '{\"model\":\"journey\","
           "\"queries\":[[0.43,0.15,0.89],[0.55,0.87,0.66]]}'\n");

    printf("\nOptions (a flag overrides ATTND_..., which overrides --config, "
           "which overrides the default):\n");
    print_help_options(NULL);
    printf("\nOptions of attnd heads and prune, which also use "
           "--engine, --cpu and --precision:\n");
    print_help_options("heads and prune");
    printf("\nOptions of attnd prune alone:\n");
    print_help_options("prune");
    printf("\nOptions of attnd bench, which also uses "
           "--model, --workers, --engine, --cpu and --precision:\n");
    print_help_options("bench");

    printf("\nExit status:\n");
    for (size_t i = 0; i < sizeof exit_codes / sizeof exit_codes[0]; i++) {
        printf("  %s\n", exit_codes[i].code);
        print_wrapped(exit_codes[i].help);
    }
}

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
    for (size_t i = 0; i < config_num_options; i++) {
        const struct option *option = &config_options[i];
        char item[64];

        format_flag(option, item, sizeof item);
        print_man_item(item, option->metavar, option->help);
        if (option->command != NULL)
            printf("Only for attnd %s.\n", option->command);
        if (option->value != NULL) {
            fputs("Default: ", stdout);
            print_troff(option->value);
            fputs(".\n", stdout);
        }
        if (!option->command_line_only) {
            format_variable_name(option, item, sizeof item);
            fputs("Environment: ", stdout);
            print_troff(item);
            fputs(".\n", stdout);
        }
    }
}

void config_print_man(void) {
    puts(".\\\" Written by attnd --man from the table in src/config/options.c; "
         "do not edit.");
    printf(".TH ATTND 1 \"\" \"attnd %s\" \"User Commands\"\n", attn_version());
    puts(".SH NAME\nattnd \\- serve multi\\-head attention over HTTP\n.SH SYNOPSIS");
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        fputs(i > 0 ? ".br\n" : "", stdout);
        print_troff(command_infos[i].usage);
        putchar('\n');
    }

    puts(".SH DESCRIPTION");
    print_troff(description);
    puts(
        "\n.PP\nOnce attnd serves, it prints one line on standard output:\n"
        "\"listening on http://HOST:PORT\", or with \\-\\-log\\-format json an event of\n"
        "the log. That goes to standard error and has this address, too. SIGTERM\n"
        "and SIGINT stop attnd; it finishes the requests that it has accepted, for\n"
        "\\-\\-grace seconds at most. SIGUSR1 logs debug events, and a second one ends\n"
        "that.\n.SH COMMANDS");
    for (size_t i = 0; i < NUM_COMMANDS; i++)
        print_man_item(command_infos[i].usage, NULL, command_infos[i].help);

    puts(".SH OPTIONS\n"
         "The value of an option follows a blank or '='. It may also be in the\n"
         "environment variable that is named with the option, or in the file of\n"
         "\\-\\-config. A flag overrides the environment, which overrides the file,\n"
         "which overrides the default. Flags that are only for some\n"
         "commands are refused by others.");
    print_man_options();

    puts(".SH EXIT STATUS");
    for (size_t i = 0; i < sizeof exit_codes / sizeof exit_codes[0]; i++)
        print_man_item(exit_codes[i].code, NULL, exit_codes[i].help);

    puts(".SH EXAMPLES\n.nf\n"
         "attnd \\-\\-demo\n"
         "attnd \\-\\-model layer0=layer0.safetensors,num_heads=12,causal=true\n"
         "attnd inspect layer0.safetensors\n"
         "attnd heads layer0.safetensors,num_heads=12 \\-\\-data requests.jsonl\n"
         "attnd prune layer0.safetensors,num_heads=12 \\-\\-heads 1,4 "
         "\\-\\-output pruned.safetensors\n.fi\n"
         ".SH SEE ALSO\n"
         "In the source: docs/protocol.md and docs/protocol\\-v2.md for requests,\n"
         "docs/models.md for the layouts of checkpoints,\n"
         "docs/heads.md for heads and prune.");
}
