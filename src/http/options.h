/* SPDX-License-Identifier: Apache-2.0 */
/* http/options.h: the server's settings, and the models that it serves. */
#ifndef ATTND_HTTP_OPTIONS_H
#define ATTND_HTTP_OPTIONS_H

#include "sched/budget.h"
#include "sched/pool.h"

#include <attnd/model.h>

/* Everything is borrowed and must outlive the server. */
struct http_options {
    const char *listen;     /* HOST:PORT, [IPv6]:PORT */
    size_t num_threads;     /* at least 1 */
    size_t max_connections; /* in all; each thread accepts an equal share, rounded up */
    size_t idle_timeout;    /* seconds */
    size_t max_body;        /* bytes */
    size_t max_reply;       /* bytes */
    const attn_model *const *models;
    size_t num_models;
    struct sched_pool *pool;
    struct sched_budget *budget;
};

#endif
