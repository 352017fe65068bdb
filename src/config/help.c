/* SPDX-License-Identifier: Apache-2.0 */
/* help.c: --help, from the tables of options and commands. */
#include "config/help.h"

#include "config/commands.h"
#include "config/options.h"

#include <attnd/library.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define HELP_WIDTH  80 /* columns */
#define HELP_INDENT 8

const char *const help_exit_codes[HELP_NUM_EXIT_CODES] = {
    "Stopped on request, after every accepted request got a reply, or while models were "
    "loaded.",
    "Could not start (a model, the address, memory), or stopped before every accepted "
    "request got a reply. Another command could not do its work.",
    "An option, a variable or the configuration file is wrong; one line names it.",
};

const char help_description[] =
    "attnd loads multi-head attention layers from safetensors files and serves them over "
    "HTTP. A request has queries, keys, values and valid_lens, as JSON or in the "
    "safetensors format, or follows the Open Inference Protocol. Native kernels, chosen "
    "for this CPU, compute the layer on a pool of workers; OpenBLAS can compute its "
    "projections instead. The reply has the outputs and, on request, the attention "
    "weights of every head.";

void help_print_indented(const char *text, int indent) {
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

void help_format_flag(const struct option *option, char *ret_text, size_t size) {
    if (option->letter != '\0')
        snprintf(ret_text, size, "--%s, -%c", option->name, option->letter);
    else
        snprintf(ret_text, size, "--%s", option->name);
}

void help_format_variable(const struct option *option, char *ret_name, size_t size) {
    size_t at = (size_t)snprintf(ret_name, size, OPTION_VARIABLE_PREFIX);
    for (const char *c = option->name; *c != '\0' && at + 1 < size; c++)
        ret_name[at++] = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
    ret_name[at] = '\0';
}

void help_print_options(const struct option_set *set) {
    for (size_t i = 0; i < option_count(set); i++) {
        const struct option *option = option_at(set, i);
        char text[64];

        help_format_flag(option, text, sizeof text);
        printf("  %s", text);
        if (option->metavar != NULL)
            printf(" %s", option->metavar);
        if (option->value != NULL)
            printf("  (default %s)", option->value);
        if (set == &config_options && !option->command_line_only) {
            help_format_variable(option, text, sizeof text);
            printf("  [%s]", text);
        }
        putchar('\n');
        help_print_indented(option->help, HELP_INDENT);
    }
}

void config_print_help(void) {
    printf("attnd %s: multi-head attention over HTTP\n\nUsage:\n", attn_version());
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        printf("  %s\n", command_infos[i].usage);
        help_print_indented(command_infos[i].help, HELP_INDENT);
    }

    putchar('\n');
    help_print_indented(help_description, 0);
    printf("\nFirst steps: attnd --demo, then, in another shell:\n"
           "  curl -s http://127.0.0.1:8080/v1/attention \\\n"
           "    -H 'Content-Type: application/json' \\\n"
           "    -d '{\"model\":\"journey\","
           "\"queries\":[[0.43,0.15,0.89],[0.55,0.87,0.66]]}'\n");

    printf("\nOptions (a flag overrides ATTND_..., which overrides --config, "
           "which overrides the default):\n");
    help_print_options(&config_options);
    printf("\nExit status:\n");
    for (size_t i = 0; i < HELP_NUM_EXIT_CODES; i++) {
        printf("  %zu\n", i);
        help_print_indented(help_exit_codes[i], HELP_INDENT);
    }
}
