/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the one table of options. Flags, ATTND_* variables, the fields of the
 * configuration file, --help and the man page all come from it. */
#ifndef ATTND_CONFIG_OPTIONS_H
#define ATTND_CONFIG_OPTIONS_H

#include "config/config.h"

#include <stddef.h>

#define OPTION_VARIABLE_PREFIX "ATTND_" /* of the environment variables of options */

enum option_kind {
    OPTION_FLAG,  /* bool */
    OPTION_TEXT,  /* char * */
    OPTION_TEXTS, /* struct config_texts, repeatable */
    OPTION_COUNT, /* size_t */
    OPTION_BYTES, /* size_t; KiB, MiB and GiB may follow the number */
    OPTION_CHOICE /* int: index into choices */
};

struct option {
    /* As a flag, without the dashes. File and environment have '_' for '-'. */
    const char *name;
    enum option_kind kind;
    size_t offset; /* of the value in struct config */
    /* The default, written as the flag's value; NULL: none, or 0. */
    const char *value;
    size_t min, max;            /* of COUNT and BYTES */
    const char *metavar;        /* what the help shows as the value; NULL for FLAG */
    const char *const *choices; /* NULL-terminated, of CHOICE */
    const char *help;           /* one to three sentences */
    /* The only command that uses it, or ones, as in "heads and prune"; NULL: any. Others
     * refuse it. */
    const char *command;
    const char *instead;    /* what others have instead, a clause; NULL: nothing */
    bool command_line_only; /* not in the file or the environment */
    char letter;            /* 'h' when -h is the same flag; '\0': none */
};

extern const struct option config_options[];
extern const size_t config_num_options;

/* Finds an option by its name, with `separator`, '-' or '_', between its words. Returns
 * NULL when there is none. */
const struct option *option_find(const char *name, char separator);

/* Returns what to do instead of an option that an earlier version had, a clause, or NULL
 * where there was none of this name. */
const char *option_find_retired(const char *name, char separator);

/* Finds an option by its letter, which is not '\0'. Returns NULL when there is none. */
const struct option *option_find_letter(char letter);

/* Returns the word for a value of the option called `name`, which must be a CHOICE. */
const char *option_choice(const char *name, int value);

#endif
