/* SPDX-License-Identifier: Apache-2.0 */
/* http/options.h: the server's settings. */
#pragma once

#include "sched/budget.h"
#include "sched/pool.h"

#include <stdbool.h>

struct address_ranges;
struct captures;
struct origins;
struct secrets;
struct model_changer;
struct generations;

/* Everything is borrowed and must outlive the server. */
struct http_options {
    char *const *listens; /* [num_listens], at least 1; see listen.h */
    size_t num_listens;
    char *admin_listen;      /* in the same form; NULL: no admin address */
    const char *commit;      /* that follows the version, or NULL */
    size_t num_threads;      /* of each of the listens, at least 1 */
    size_t max_connections;  /* of all threads together; 0: the default */
    size_t header_timeout;   /* seconds; also the grace of bodies and replies */
    int64_t default_timeout; /* ns, of requests that state none; 0: no limit */
    size_t idle_timeout;     /* seconds */
    size_t min_rate;         /* bytes per second, of bodies and replies */
    size_t max_per_client;   /* requests in progress; 0: no limit */
    const struct address_ranges *trusted_proxies;
    /* Web pages elsewhere with these origins may use the server. */
    const struct origins *cors_origins;
    bool access_log;         /* requests are logged at LOG_INFO, not LOG_DEBUG */
    struct secrets *secrets; /* NULL: neither keys nor TLS */
    bool no_ui;              /* the page is not served */
    size_t max_body;         /* bytes */
    size_t max_reply;        /* bytes */
    const struct model_changer *changer; /* NULL: no client may load or unload */
    struct generations *models;          /* of which a generation is published */
    bool needs_models;                   /* without any, the server is not ready */
    struct sched_pool *pool;
    struct sched_budget *budget;
    struct captures *captures; /* NULL: none are kept */
};
