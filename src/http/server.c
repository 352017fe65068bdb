/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: starts the HTTP threads, and stops them by a deadline. */
#include "http/server.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "http/exchange.h"
#include "http/metrics/metrics.h"
#include "http/net/framing.h"
#include "http/net/listen.h"
#include "http/thread.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define LAST_WAIT_NS 1000000000 /* how long threads may take to end after the deadline */

/* Connections get at most one part in so many of the budget, but room for one. */
#define CONNECTIONS_SHARE 4
/* Descriptors that are not connections: of a thread, and of everything else, among them
 * connections that are about to be closed. */
#define THREAD_DESCRIPTORS 40
#define OTHER_DESCRIPTORS  24

struct http_server {
    struct http_options options;
    char url[NI_MAXHOST + 16];
    struct http_thread *threads; /* [num_threads] */
    struct metrics *metrics;
    size_t *num_rounds; /* [num_threads], at the last http_server_is_alive() */
    size_t num_started;
    atomic_bool refuses_ready;
    atomic_bool draining;            /* set once; `deadline` is written before */
    int64_t deadline;                /* clock_now_ns */
    struct connection_limits limits; /* of all threads together */
};

/* Joins a thread, unless it still runs at `deadline`. pthread_timedjoin_np() goes by the
 * wall clock, which may be set back; pthread_clockjoin_np() is unknown to thread
 * sanitizers. */
static bool join_until(pthread_t id, int64_t deadline) {
    const struct timespec pause = {.tv_nsec = 2000000};
    while (pthread_tryjoin_np(id, NULL) != 0) {
        if (clock_now_ns() > deadline)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* As http_server_stop(), but waits for the threads until `wait_end`. */
static bool stop_threads(struct http_server *server, int64_t deadline, int64_t wait_end) {
    server->deadline = deadline;
    atomic_store(&server->refuses_ready, true);
    atomic_store(&server->draining, true);
    for (size_t i = 0; i < server->num_started; i++)
        http_thread_wake(&server->threads[i]);

    bool all_ended = true;
    for (size_t i = 0; i < server->num_started; i++) {
        struct http_thread *thread = &server->threads[i];
        if (join_until(thread->id, wait_end)) {
            http_thread_deinit(thread);
        } else { /* it may still end before the process does */
            pthread_detach(thread->id);
            all_ended = false;
        }
    }
    return all_ended;
}

/* Raises the limit of open files as far as allowed. Returns how many connections it
 * allows beside everything else. */
static size_t find_descriptors(size_t num_threads) {
    size_t others = OTHER_DESCRIPTORS + num_threads * THREAD_DESCRIPTORS;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return SIZE_MAX;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_NOFILE, &files);
    return files.rlim_cur > others ? (size_t)files.rlim_cur - others : 1;
}

/* Finds how many connections there may be: --max-connections, as far as memory and
 * descriptors reach. */
static void init_limits(struct http_server *server) {
    const struct http_options *options = &server->options;
    struct connection_limits *limits = &server->limits;
    size_t by_memory =
        options->budget->limit / CONNECTIONS_SHARE / MEMORY_CONNECTION_BYTES;
    size_t by_descriptors = find_descriptors(options->num_threads);

    limits->options = options;
    limits->max_connections = options->max_connections;
    atomic_init(&limits->num_connections, 0);
    client_table_init(&limits->clients);

    if (by_memory == 0)
        by_memory = 1;
    if (by_memory < limits->max_connections) {
        limits->max_connections = by_memory;
        log_write(LOG_WARN, "fewer connections, a quarter of --max-memory holds no more",
                  LOG_NUMBER("max_connections", by_memory));
    }
    if (by_descriptors < limits->max_connections) {
        limits->max_connections = by_descriptors;
        log_write(LOG_WARN, "fewer connections, the limit of open files allows no more",
                  LOG_NUMBER("max_connections", by_descriptors));
    }
    memory_init(&limits->memory, options->budget,
                limits->max_connections * MEMORY_CONNECTION_BYTES);
}

/* Allocates what the threads use. */
static attn_status create_state(struct http_server *server) {
    size_t num_threads = server->options.num_threads;

    server->threads = calloc(num_threads, sizeof *server->threads);
    server->num_rounds = calloc(num_threads, sizeof *server->num_rounds);
    if (server->threads == NULL || server->num_rounds == NULL)
        return ATTN_E_NOMEM;
    return metrics_create(num_threads, &server->metrics);
}

/* Starts a thread for each of the sockets, which then belong to the threads, also on
 * failure. */
static attn_status start_threads(struct http_server *server, const int *fds) {
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < server->options.num_threads; i++) {
        server->threads[i] = (struct http_thread){
            .options = &server->options,
            .callbacks = {exchange_handle, exchange_completed, exchange_client_left},
            .connections = {.limits = &server->limits},
            .metrics = server->metrics,
            .counts = &server->metrics->threads[i],
            .refuses_ready = &server->refuses_ready,
            .draining = &server->draining,
            .deadline = &server->deadline};
        if (status != ATTN_OK)
            close(fds[i]);
        else if ((status = http_thread_start(&server->threads[i], fds[i])) == ATTN_OK)
            server->num_started++;
    }
    return status;
}

attn_status http_server_create(const struct http_options *options,
                               struct http_server **ret_server, attn_error *ret_error) {
    attn_status status = ATTN_E_NOMEM;
    size_t num_threads = options->num_threads;
    struct http_server *server = calloc(1, sizeof *server);
    int *fds = calloc(num_threads, sizeof *fds);
    if (server == NULL || fds == NULL)
        goto fail;

    server->options = *options;
    atomic_init(&server->refuses_ready, false);
    atomic_init(&server->draining, false);
    init_limits(server);
    if (create_state(server) != ATTN_OK)
        goto fail;
    if (options->budget->limit < MEMORY_CONNECTION_BYTES) {
        status =
            error_set(ret_error, ATTN_E_VALUE,
                      "--max-memory %zu is too small for a connection; set at least %zu",
                      options->budget->limit, MEMORY_CONNECTION_BYTES);
        goto fail_reported;
    }
    framing_init();
    status = listen_open(options->listen, num_threads, fds, server->url,
                         sizeof server->url, ret_error);
    if (status != ATTN_OK)
        goto fail_reported;

    status = start_threads(server, fds);
    if (status != ATTN_OK)
        goto fail;

    free(fds);
    *ret_server = server;
    return ATTN_OK;

fail:
    error_set(
        ret_error, status, "cannot start %zu HTTP threads: %s", num_threads,
        status == ATTN_E_IO
            ? "no file descriptor is left; raise the limit of open files (ulimit -n)"
            : attn_status_text(status));
fail_reported:
    free(fds);
    if (server != NULL) /* threads that serve a request already use it until they end */
        stop_threads(server, clock_now_ns(), INT64_MAX);
    http_server_destroy(server);
    return status;
}

const char *http_server_url(const struct http_server *server) {
    return server->url;
}

void http_server_refuse_ready(struct http_server *server) {
    atomic_store(&server->refuses_ready, true);
}

bool http_server_is_alive(struct http_server *server) {
    bool alive = true;
    for (size_t i = 0; i < server->num_started; i++) {
        struct http_thread *thread = &server->threads[i];
        size_t num_rounds = atomic_load(&thread->num_rounds);
        alive = alive && num_rounds != server->num_rounds[i];
        server->num_rounds[i] = num_rounds;
        http_thread_wake(thread);
    }
    return alive;
}

bool http_server_stop(struct http_server *server, int64_t deadline) {
    return stop_threads(server, deadline, deadline + LAST_WAIT_NS);
}

bool http_server_replied_to_all(const struct http_server *server) {
    for (size_t i = 0; i < server->options.num_threads; i++) {
        if (!http_thread_replied_to_all(&server->threads[i]))
            return false;
    }
    return true;
}

void http_server_destroy(struct http_server *server) {
    if (server == NULL)
        return;
    memory_deinit(&server->limits.memory);
    client_table_deinit(&server->limits.clients);
    free(server->threads);
    metrics_destroy(server->metrics);
    free(server->num_rounds);
    free(server);
}
