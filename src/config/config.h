/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: the value of every option of attnd. main.c, daemon, cli, http and models
 * read it; the rooms below them have option structs of their own, which these fill. */
#pragma once

#include "config/commands.h"
#include "config/compute.h"

struct config {
    struct config_compute compute;

    /* Models, for serve (models/load.c) and inspect. */
    struct config_texts models;
    char *model_dir; /* NULL: none */
    bool skip_bad_models;
    bool demo;

    /* The daemon, read by main.c; health reads both addresses and `tls_cert` too. */
    struct config_texts listens; /* HOST:PORT or unix:PATH, at least one */
    char *admin_listen;          /* in the same form; NULL: none */
    bool insecure_listen;        /* `listens` may be reached by others, without keys */
    char *api_key_file;          /* paths; NULL: none */
    char *tls_cert;
    char *tls_key;
    size_t http_threads;    /* 0: one per 8 CPUs */
    size_t queue;           /* jobs that may wait */
    size_t max_queue_delay; /* ms */
    size_t default_timeout; /* ms; 0: none */
    size_t max_connections; /* of all threads together; 0: as many as there is room for */
    size_t max_per_client;  /* requests in progress; 0: no limit */
    size_t max_per_key;     /* the same, of all keys of one name */
    struct config_texts trusted_proxies;
    struct config_texts cors_origins;
    size_t header_timeout;  /* seconds; also the grace of bodies and replies */
    size_t min_rate;        /* bytes per second, of bodies and replies */
    bool no_ui;             /* the page is not served */
    size_t max_body;        /* bytes */
    size_t max_reply;       /* bytes */
    size_t max_memory;      /* bytes; 0: half of the memory of the process */
    size_t capture_memory;  /* bytes; 0: no captures are kept */
    size_t capture_ttl;     /* seconds */
    size_t idle_timeout;    /* seconds */
    size_t grace;           /* seconds */
    size_t readiness_delay; /* seconds */
    int model_control;      /* 1: explicit */
    int log_format;         /* enum log_format */
    int log_level;          /* enum log_level */
    bool access_log;        /* requests are logged at LOG_INFO, not LOG_DEBUG */
    bool check_config;

    char *file;                            /* value of --config; NULL: none */
    struct config_texts ignored_variables; /* names of ATTND_... that no option has */
    bool help;
    bool version;
};

/* Fills *ret_config from flags, environment, file and defaults: an earlier source in this
 * list overrides a later one. `argv` begins after the program's name and `command`.
 * Arguments that are not options are copied to *ret_operands when the command accepts
 * files, else they are errors.
 *
 * The name of a variable ATTND_... that no option has is kept for a warning: the
 * environment is shared with others.
 *
 * On success the caller owns *ret_config and *ret_operands. On failure *ret_config has no
 * texts, and the other values as far as the sources could be read: every source is read
 * to its end, so that log_format is known wherever it stands. Errors, with one line that
 * names the first defect and its source: ATTN_E_VALUE, ATTN_E_FORMAT or ATTN_E_IO for the
 * file, ATTN_E_NOMEM. */
attn_status config_read(const struct command_info *command, int argc, char *const *argv,
                        char *const *environment, struct config *ret_config,
                        struct config_texts *ret_operands, attn_error *ret_error);

/* Returns whether any option names models, or a place where they may come to lie. */
static inline bool config_names_models(const struct config *config) {
    return config->models.count > 0 || config->model_dir != NULL || config->demo;
}

/* Free the memory; a zeroed struct is fine. */
void config_texts_deinit(struct config_texts *texts);
void config_deinit(struct config *config);

/* Prints the help to standard output. */
void config_print_help(void);
