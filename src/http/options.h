/* SPDX-License-Identifier: Apache-2.0 */
/* http/options.h: the server's settings. */
#pragma once

#include "config/config.h"
#include "sched/budget.h"
#include "sched/pool.h"

struct address_ranges;
struct captures;
struct origins;
struct secrets;
struct model_changer;
struct generations;

/* Everything is borrowed and must outlive the server. */
struct http_options {
    const struct config *config; /* what follows was made of other parts of it */
    size_t num_threads;          /* of each of the listens, at least 1 */
    /* [config->listens.count]: a socket that listens there already, or -1. NULL: none.
     * The server closes them. */
    const int *inherited;
    const char *commit; /* that follows the version, or NULL */
    const struct address_ranges *trusted_proxies;
    /* Web pages elsewhere with these origins may use the server. */
    const struct origins *cors_origins;
    struct secrets *secrets;             /* which may be without files */
    const struct model_changer *changer; /* NULL: no client may load or unload */
    struct generations *models;          /* of which a generation is published */
    struct sched_pool *pool;
    struct sched_budget *budget;
    struct captures *captures; /* NULL: none are kept */
};
