/* SPDX-License-Identifier: Apache-2.0 */
/* completion.c: a program of the build, which prints how bash or zsh completes the
 * command line of attnd. */
#include "config/commands.h"
#include "config/options.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Whether only `command`, or it and some others, has the option. NULL asks whether all
 * have it. */
static bool is_of_command(const struct option *option, const char *command) {
    if (option->command == NULL || command == NULL)
        return option->command == command;
    return strstr(option->command, command) != NULL;
}

static bool takes_folder(const struct option *option) {
    return option->metavar != NULL && strcmp(option->metavar, "DIR") == 0;
}

static bool takes_file(const struct option *option) {
    return option->metavar != NULL && (strstr(option->metavar, "FILE") != NULL ||
                                       strcmp(option->metavar, "REQUESTS") == 0);
}

static void print_commands(void) {
    for (size_t i = 0; i < NUM_COMMANDS; i++)
        printf("%s%s", i > 0 ? " " : "", command_infos[i].name);
}

static void print_choices(const struct option *option) {
    for (size_t i = 0; option->choices[i] != NULL; i++)
        printf("%s%s", i > 0 ? " " : "", option->choices[i]);
}

static void print_bash_flags(const char *command) {
    for (size_t i = 0; i < option_count(&config_options); i++) {
        const struct option *option = option_at(&config_options, i);
        if (!is_of_command(option, command))
            continue;
        printf(" --%s", option->name);
        if (option->letter != '\0')
            printf(" -%c", option->letter);
    }
}

/* Prints what to offer as the value of an option. Where bash gets no words, it completes
 * the names of files, or those of folders, or nothing. */
static void print_bash_value(const struct option *option) {
    if (option->metavar == NULL)
        return;

    printf("    --%s) ", option->name);
    if (option->kind == OPTION_CHOICE) {
        fputs("words='", stdout);
        print_choices(option);
        puts("' ;;");
    } else if (takes_file(option)) {
        puts("return ;;");
    } else if (takes_folder(option)) {
        puts("compopt -o dirnames +o default; return ;;");
    } else {
        puts("compopt +o default; return ;;");
    }
}

static void print_bash(void) {
    puts(
        "# Written by the build from the table of options.\n"
        "_attnd() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words\n"
        "    # bash makes a word of '=', in --option=value as in NAME=FILE.\n"
        "    if [[ $cur == = ]]; then\n"
        "        cur=\n"
        "    elif [[ $prev == = ]]; then\n"
        "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
        "    fi\n"
        "    case $prev in");
    for (size_t i = 0; i < option_count(&config_options); i++)
        print_bash_value(option_at(&config_options, i));

    fputs("    *)\n        if [[ $cur == -* ]]; then\n            words='", stdout);
    print_bash_flags(NULL);
    puts("'\n            case ${COMP_WORDS[1]} in");
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        printf("            %s) words+='", command_infos[i].name);
        print_bash_flags(command_infos[i].name);
        puts("' ;;");
    }

    fputs("            esac\n        elif ((COMP_CWORD == 1)); then\n            words='",
          stdout);
    print_commands();
    puts("'\n        else\n            return\n        fi ;;\n    esac\n"
         "    compopt +o default\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
         "}\n"
         "complete -o default -F _attnd attnd");
}

/* Prints `length` bytes of text within '...', where [, ] and : have a meaning. */
static void print_zsh_text(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\'')
            fputs("'\\'", stdout);
        else if (strchr("[]:\\", text[i]) != NULL)
            putchar('\\');
        putchar(text[i]);
    }
}

/* Prints an argument of _arguments for the flag `name`, with its dashes: the first
 * sentence of the help, and what to offer as the value. */
static void print_zsh_flag(const struct option *option, const char *name) {
    const char *end = strstr(option->help, ". ");
    size_t length = end != NULL ? (size_t)(end - option->help) : strlen(option->help) - 1;

    printf("    '%s%s%s[", option->kind == OPTION_TEXTS ? "*" : "", name,
           option->metavar != NULL ? "=" : "");
    print_zsh_text(option->help, length);
    putchar(']');
    if (option->metavar != NULL) {
        putchar(':');
        print_zsh_text(option->metavar, strlen(option->metavar));
        putchar(':');
        if (option->kind == OPTION_CHOICE) {
            putchar('(');
            print_choices(option);
            putchar(')');
        } else {
            fputs(option->kind == OPTION_TEXTS && takes_file(option)
                      ? "{compset -P \"*=\"; _files}" /* NAME=FILE */
                  : takes_file(option)   ? "_files"
                  : takes_folder(option) ? "_files -/"
                                         : " ",
                  stdout);
        }
    }
    puts("'");
}

static void print_zsh_flags(const char *command) {
    for (size_t i = 0; i < option_count(&config_options); i++) {
        const struct option *option = option_at(&config_options, i);
        char name[64];

        if (!is_of_command(option, command))
            continue;
        snprintf(name, sizeof name, "--%s", option->name);
        print_zsh_flag(option, name);
        if (option->letter != '\0')
            print_zsh_flag(option, (char[]){'-', option->letter, '\0'});
    }
}

static void print_zsh(void) {
    puts("#compdef attnd\n# Written by the build from the table of options.\n"
         "local -a flags=(");
    print_zsh_flags(NULL);
    puts(")\ncase $words[2] in");
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        printf("%s) flags+=(\n", command_infos[i].name);
        print_zsh_flags(command_infos[i].name);
        puts(") ;;");
    }

    fputs("esac\n_arguments $flags '1:command:(", stdout);
    print_commands();
    puts(")' '*:file:_files'");
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "bash") == 0)
        print_bash();
    else if (argc == 2 && strcmp(argv[1], "zsh") == 0)
        print_zsh();
    else
        return 2;
    return fflush(stdout) == 0 ? 0 : 1;
}
