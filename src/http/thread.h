/* SPDX-License-Identifier: Apache-2.0 */
/* http/thread.h: one HTTP thread, which owns one libmicrohttpd daemon and all its
 * connections. */
#pragma once

#include "base/log.h"
#include "http/log/trace.h"
#include "http/net/connection.h"
#include "http/net/secrets.h"
#include "http/net/turns.h"
#include "http/options.h"
#include "http/route.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Called for each request: by libmicrohttpd, with the http_thread as `cls`, when its
 * client hangs up, and when the turn comes for which it waits. */
struct http_callbacks {
    MHD_AccessHandlerCallback handle;
    MHD_RequestCompletedCallback completed;
    void (*client_left)(struct exchange *exchange);
    void (*give_turn)(struct turn *turn);
};

struct page;

struct http_thread {
    const struct http_options *options;
    enum route_address address; /* where it accepts */
    bool is_unix;               /* it accepts at a Unix socket, so without TLS */
    bool is_inherited;          /* another process may accept there after this one */
    struct secrets *secrets;    /* without files at the admin address */
    struct http_callbacks callbacks;
    struct MHD_Daemon *daemon;
    pthread_t id;
    /* Watches the daemon's own epoll, wake_fd, listen_fd, and whether peers hang up. */
    int epoll_fd;
    int wake_fd;   /* an eventfd */
    int listen_fd; /* its own; -1 once the thread drains */
    /* Exchanges that were submitted and whose worker has not left handover_resume() yet.
     * Until then the worker uses this thread's daemon and eventfd. This thread counts up,
     * workers count down. */
    atomic_size_t num_with_workers;
    atomic_bool woken;       /* wake_fd was written to, and not read since */
    struct metrics *metrics; /* owned by the server */
    const struct page *page; /* as well */
    const struct route_table *routes;
    struct metrics_thread *counts; /* this thread's, of `metrics` */
    /* Of the server's main address, which metrics show. */
    struct connection_limits *main_limits;
    const atomic_bool *refuses_ready; /* of the server; set once, before `draining` */
    atomic_size_t num_rounds;         /* of its loop, which any thread may read */
    size_t seen_rounds;               /* at the last http_server_is_alive() */
    /* Set once, when the thread shall accept no more and end: first for the threads of
     * the main address, later for the thread of the admin address. */
    atomic_bool *draining;
    const int64_t *deadline; /* valid once `draining` is set */

    /* Used by this thread alone, until it has ended. */
    struct trace_source trace_source;
    bool quiesced;   /* accepts no more connections */
    bool speaks_tls; /* on all its connections */
    bool listens;    /* listen_fd is watched */
    struct connection_list connections;
    struct turns turns;       /* a round is a run of the daemon */
    size_t num_calls;         /* that libmicrohttpd has made */
    bool wants_run;           /* the daemon asks for the next run at once */
    size_t num_empty_runs;    /* of the daemon that it asked for: no event, no call */
    struct log_limit refused; /* refusals to accept */
    /* Exchanges that exist: from the request line to the end of the reply. */
    size_t num_exchanges;
    /* Exchanges whose request has arrived complete. After the thread has ended: how many
     * got no reply. */
    size_t num_accepted;
    /* Exchanges whose connection is suspended, or was resumed without this thread having
     * seen it. */
    size_t num_suspended;
    bool cut_off; /* a streamed reply was ended early, because time was up */
};

/* Starts a daemon and the thread, which accepts from `listen_fd`. It owns `listen_fd`
 * from then on, also on failure. Returns ATTN_E_IO when no file descriptor or thread is
 * left, and ATTN_E_NOMEM when the system refuses memory. */
attn_status http_thread_start(struct http_thread *thread, int listen_fd);

/* Whether the server drains, and the time for replies after the deadline is over as well.
 * Call it on the thread itself. */
bool http_thread_time_is_up(const struct http_thread *thread);

/* Wakes the thread, because a connection was resumed or the server drains. Any thread may
 * call it. */
void http_thread_wake(struct http_thread *thread);

/* Closes what http_thread_start() opened. Call it after the thread has ended. */
void http_thread_deinit(struct http_thread *thread);
