/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the one table of options, from which flags, ATTND_* variables, the keys of
 * the configuration file, --help and the man page all come. */
#ifndef ATTND_CONFIG_OPTIONS_H
#define ATTND_CONFIG_OPTIONS_H

#include "config/config.h"

#include <stddef.h>

enum option_kind {
    OPTION_FLAG,  /* bool */
    OPTION_TEXT,  /* char * */
    OPTION_TEXTS, /* struct config_texts, repeatable */
    OPTION_COUNT, /* size_t */
    OPTION_BYTES, /* size_t; KiB, MiB and GiB may follow the number */
    OPTION_CHOICE /* int: index into choices */
};

struct option {
    const char
        *name; /* as a flag, without the dashes; '_' for '-' in file and environment */
    enum option_kind kind;
    size_t offset; /* of the value in struct config */
    const char
        *value;      /* its default, in the words that the flag takes; NULL: none, or 0 */
    size_t min, max; /* of COUNT and BYTES */
    const char *metavar;        /* NULL for FLAG */
    const char *const *choices; /* NULL-terminated, of CHOICE */
    const char *help;           /* one or two sentences */
    const char *command;        /* the only command that takes it; NULL: any */
    bool command_line_only;     /* neither file nor environment may say it */
};

extern const struct option config_options[];
extern const size_t config_num_options;

/* Finds an option by its name; `separator` is what stands between words, '-' or '_'. NULL
 * when there is none. */
const struct option *option_find(const char *name, char separator);

/* Returns the word for the value of an option of kind CHOICE, which must exist. */
const char *option_choice(const char *name, int value);

#endif
