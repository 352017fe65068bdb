/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: what the operator asked for. Only main reads the struct; rooms get their own.
 */
#ifndef ATTND_CONFIG_CONFIG_H
#define ATTND_CONFIG_CONFIG_H

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

struct config_texts {
    char **items; /* [count], owned */
    size_t count;
};

struct config {
    char *listen; /* HOST:PORT */
    struct config_texts models;
    char *model_dir; /* NULL: none */
    bool demo;
    size_t workers;      /* 0: as many as CPUs */
    size_t http_threads; /* 0: choose */
    int engine;          /* index of --engine's choices */
    int cpu;             /* of --cpu's */
    int precision;       /* of --precision's */
    size_t queue;        /* jobs that may wait */
    size_t max_connections;
    size_t max_body;     /* bytes */
    size_t max_reply;    /* bytes */
    size_t max_memory;   /* bytes; 0: half of what there is */
    size_t idle_timeout; /* seconds */
    size_t grace;        /* seconds */
    int log_format;      /* enum log_format */
    int log_level;       /* enum log_level */
    char *file;          /* of --config; NULL: none */
    bool check_config;
    struct config_texts shapes; /* the rest is attnd bench's */
    int part;                   /* enum bench_part */
    bool causal;
    size_t fill; /* per cent of the keys that are valid */
    bool weights;
    bool wire;
    bool json;
    size_t seconds; /* for each shape */
    bool help;
    bool man;
    bool version;
};

/* Fills *ret_config from flags, environment, file and defaults; the first that says
 * something about an option wins, in this order. argv[0] and the subcommand are not in
 * `argv`. What is left over when the flags end goes to `ret_operands`, borrowed from
 * argv, unless that is NULL: then an operand is an error.
 *
 * On success the caller owns *ret_config. Errors, with one line that names the option and
 * where it was said: ATTN_E_VALUE, ATTN_E_FORMAT or ATTN_E_IO for the file,
 * ATTN_E_NOMEM. */
attn_status config_read(int argc, char *const *argv, char *const *environment,
                        struct config *ret_config, struct config_texts *ret_operands,
                        attn_error *ret_error);

/* Give the memory back; a zeroed struct is fine. */
void config_texts_deinit(struct config_texts *texts);
void config_deinit(struct config *config);

/* Prints the help or the man page (troff) to standard output. */
void config_print_help(void);
void config_print_man(void);

#endif
