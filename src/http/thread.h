/* SPDX-License-Identifier: Apache-2.0 */
/* http/thread.h: one HTTP thread, which owns one libmicrohttpd daemon and all its
 * connections. */
#ifndef ATTND_HTTP_THREAD_H
#define ATTND_HTTP_THREAD_H

#include "http/model_stats.h"
#include "http/options.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* What libmicrohttpd calls for each request, with the http_thread as `cls`. */
struct http_callbacks {
    MHD_AccessHandlerCallback handle;
    MHD_RequestCompletedCallback completed;
};

struct http_thread {
    const struct http_options *options;
    struct http_callbacks callbacks;
    struct MHD_Daemon *daemon;
    pthread_t id;
    int epoll_fd; /* watches the daemon's own epoll and wake_fd */
    int wake_fd;  /* an eventfd */
    /* Exchanges that a worker may still touch, or this thread for their sake. */
    atomic_size_t num_with_workers;
    atomic_bool woken;         /* wake_fd was written and not yet read */
    struct model_stats *stats; /* [options->num_models], the server's */
    atomic_bool *draining;     /* the server's; only ever becomes true */
    const int64_t *deadline;   /* the server's; valid once `draining` */
    /* Only this thread's own: */
    bool quiesced;
    size_t num_exchanges; /* begun and not completed */
    size_t num_accepted;  /* of these, whose request is complete */
    size_t num_suspended; /* of these, with a worker */
    bool cut_off;         /* a reply was ended in the middle, as time was up */
};

/* Opens a daemon on `listen_fd`, which it takes over also on failure, and starts the
 * thread. ATTN_E_NOMEM when the system refuses. */
attn_status http_thread_start(struct http_thread *thread, int listen_fd);

/* Whether every request that was complete has been answered; after the thread has ended.
 */
bool http_thread_answered_all(const struct http_thread *thread);

/* Whether the server drains and even replies that are on their way have had their time.
 * Only on the thread itself. */
bool http_thread_time_is_up(const struct http_thread *thread);

/* Wakes the thread: a connection was resumed, or the server drains. Any thread. */
void http_thread_wake(struct http_thread *thread);

/* Closes what http_thread_start() opened, after the thread has ended. */
void http_thread_deinit(struct http_thread *thread);

#endif
