/* SPDX-License-Identifier: Apache-2.0 */
/* option.h: an option, and sets of them. Flags, ATTND_* variables, the fields of the
 * configuration file, --help and the man page all come from them. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

#define EXIT_USAGE 2 /* the exit code for what is wrong with options */

#define OPTION_VARIABLE_PREFIX "ATTND_" /* of the environment variables of options */

struct config_texts {
    char **items; /* [count], owned */
    size_t count;
};

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
    size_t offset; /* of the value, in the struct that the set fills */
    /* The default, written as the flag's value; NULL: none, or 0. */
    const char *value;
    size_t min, max;            /* of COUNT and BYTES */
    const char *metavar;        /* what the help shows as the value; NULL for FLAG */
    const char *const *choices; /* NULL-terminated, of CHOICE */
    const char *help;           /* one to three sentences */
    bool command_line_only;     /* not in the file or the environment */
    char letter;                /* 'h' when -h is the same flag; '\0': none */
};

/* Begins an option whose value is a member of `owner`, a struct. */
#define OPTION_OF(owner, text, type, member)                                             \
    .name = (text), .kind = OPTION_##type, .offset = offsetof(owner, member)

/* The options of a program: its own, and the shared ones of compute.h. They fill a struct
 * that begins with a struct config_compute. */
struct option_set {
    const char *program;      /* its name */
    const struct option *own; /* [num_own] */
    size_t num_own;
    const struct option *shared; /* [num_shared] */
    size_t num_shared;
};

/* Return how many options a set has, and the option of an index below that. */
size_t option_count(const struct option_set *set);
const struct option *option_at(const struct option_set *set, size_t i);

/* Whether `name` names the option, with `separator` where the option has '-'. */
bool option_has_name(const char *option, const char *name, char separator);

/* Finds an option by its name, with `separator`, '-' or '_', between its words. Returns
 * NULL when there is none. */
const struct option *option_find(const struct option_set *set, const char *name,
                                 char separator);

/* Finds an option by its letter, which is not '\0'. Returns NULL when there is none. */
const struct option *option_find_letter(const struct option_set *set, char letter);
