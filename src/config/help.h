/* SPDX-License-Identifier: Apache-2.0 */
/* help.h: what --help and the man page both say. */
#pragma once

#include "config/option.h"

#define HELP_NUM_EXIT_CODES 3

extern const char *const help_exit_codes[HELP_NUM_EXIT_CODES]; /* what each means */

extern const char help_description[]; /* what attnd does, in a paragraph */

/* Writes an option's flag, with its letter where it has one: "--help, -h". */
void help_format_flag(const struct option *option, char *ret_text, size_t size);

/* Writes the name of an option's environment variable, such as ATTND_MAX_BODY. */
void help_format_variable(const struct option *option, char *ret_name, size_t size);

/* Prints `text` wrapped, with `indent` blanks before each line. */
void help_print_indented(const char *text, int indent);

/* Prints the options of a set. */
void help_print_options(const struct option_set *set);
