/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: starts the HTTP threads, and stops them by a deadline. */
#include "http/server.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "http/handover.h"
#include "http/metrics/metrics.h"
#include "http/net/framing.h"
#include "http/net/listen.h"
#include "http/page.h"
#include "http/receive.h"
#include "http/routes.h"
#include "http/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define LAST_WAIT_NS 1000000000 /* how long threads may take to end after the deadline */

/* Connections get at most one part in so many of the budget, but room for one. */
#define CONNECTIONS_SHARE   4
#define CONNECTIONS_DEFAULT ((size_t)4096)
/* The connections of the admin address, and one part in so many of the budget that they
 * get at most. */
#define ADMIN_CONNECTIONS 32
#define ADMIN_SHARE       16
/* Descriptors that are not connections: of a thread, and of everything else, among them
 * connections that are about to be closed. */
#define THREAD_DESCRIPTORS 40
#define OTHER_DESCRIPTORS  24

#define ADDRESS_SIZE (NI_MAXHOST + 16)
#define URL_SIZE     (ADDRESS_SIZE + 8)

struct http_server {
    struct http_options options;
    char url[URL_SIZE];
    struct http_thread *threads; /* [num_threads] */
    struct metrics *metrics;
    struct page page;
    /* [num_threads + 1], at the last http_server_is_alive(); the last is of `admin` */
    size_t *num_rounds;
    size_t num_started;
    atomic_bool refuses_ready;
    atomic_bool draining;            /* set once; `deadline` is written before */
    int64_t deadline;                /* clock_now_ns */
    struct connection_limits limits; /* of all threads together */
    /* The admin address, which shares nothing with them. */
    char admin_url[URL_SIZE];
    struct http_thread admin; /* runs when has_admin is set */
    bool has_admin;
    atomic_bool admin_draining; /* as `draining`, once the other threads have ended */
    int64_t admin_deadline;     /* likewise */
    struct connection_limits admin_limits;
};

/* How long is waited for threads that were told to end, and what is done meanwhile. */
struct thread_wait {
    int64_t deadline; /* clock_now_ns */
    void (*chores)(void *context);
    void *context;
};

static void do_nothing(void *context) {
    (void)context;
}

/* Joins a thread, unless it still runs at the deadline. pthread_timedjoin_np() goes by
 * the wall clock, which may be set back; pthread_clockjoin_np() is unknown to thread
 * sanitizers. */
static bool join_until(pthread_t id, const struct thread_wait *wait) {
    const struct timespec pause = {.tv_nsec = 2000000};
    while (pthread_tryjoin_np(id, NULL) != 0) {
        if (clock_now_ns() > wait->deadline)
            return false;
        wait->chores(wait->context);
        nanosleep(&pause, NULL);
    }
    return true;
}

/* Ends a thread that was told to. Returns false when it still runs at the deadline. */
static bool end_thread(struct http_thread *thread, const struct thread_wait *wait) {
    if (join_until(thread->id, wait)) {
        http_thread_deinit(thread);
        return true;
    }
    pthread_detach(thread->id); /* it may still end before the process does */
    return false;
}

/* Ends the thread of the admin address, which waits for no client. */
static bool stop_admin(struct http_server *server) {
    struct thread_wait wait = {.chores = do_nothing};
    if (!server->has_admin)
        return true;
    server->admin_deadline = clock_now_ns();
    atomic_store(&server->admin_draining, true);
    http_thread_wake(&server->admin);
    wait.deadline = server->admin_deadline + LAST_WAIT_NS;
    return end_thread(&server->admin, &wait);
}

/* As http_server_stop(), but waits for the threads as `wait` says. */
static bool stop_threads(struct http_server *server, int64_t deadline,
                         const struct thread_wait *wait) {
    server->deadline = deadline;
    atomic_store(&server->refuses_ready, true);
    atomic_store(&server->draining, true);
    for (size_t i = 0; i < server->num_started; i++)
        http_thread_wake(&server->threads[i]);

    bool all_ended = true;
    for (size_t i = 0; i < server->num_started; i++)
        all_ended = end_thread(&server->threads[i], wait) && all_ended;
    return stop_admin(server) && all_ended;
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

static size_t lesser_of(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Returns the bytes that are reserved for each connection of --listen. */
static size_t find_connection_bytes(const struct http_options *options) {
    bool tls = options->secrets != NULL && secrets_has_certificate(options->secrets);
    return MEMORY_CONNECTION_BYTES + (tls ? MEMORY_TLS_BYTES : 0);
}

/* Prepares connections of `bytes` each, which get at most one part in `share` of the
 * budget. There may be one at least. */
static void begin_limits(struct connection_limits *limits,
                         const struct http_options *options, size_t num_threads,
                         size_t max_connections, size_t bytes, size_t share) {
    size_t by_memory = options->budget->limit / share / bytes;

    limits->options = options;
    limits->max_connections = lesser_of(max_connections, by_memory > 0 ? by_memory : 1);
    atomic_init(&limits->num_connections, 0);
    client_table_init(&limits->clients, num_threads, options->pool);
}

/* Finds how many connections there may be: --max-connections, as far as memory and
 * descriptors reach. */
static void init_limits(struct http_server *server) {
    const struct http_options *options = &server->options;
    struct connection_limits *limits = &server->limits;
    bool has_admin = options->admin_listen != NULL;
    size_t bytes = find_connection_bytes(options);
    size_t by_descriptors = find_descriptors(options->num_threads + has_admin);

    size_t wanted = options->max_connections;
    enum log_level level = wanted > 0 ? LOG_WARN : LOG_INFO; /* who asks is warned */
    if (wanted == 0)
        wanted = CONNECTIONS_DEFAULT;

    begin_limits(limits, options, options->num_threads, wanted, bytes, CONNECTIONS_SHARE);
    if (limits->max_connections < wanted)
        log_write(level, "fewer connections, a quarter of --max-memory holds no more",
                  LOG_NUMBER("max_connections", limits->max_connections));
    if (by_descriptors < limits->max_connections) {
        limits->max_connections = by_descriptors;
        log_write(level, "fewer connections, the limit of open files allows no more",
                  LOG_NUMBER("max_connections", by_descriptors));
    }

    begin_limits(&server->admin_limits, options, 1, has_admin ? ADMIN_CONNECTIONS : 0,
                 MEMORY_CONNECTION_BYTES, ADMIN_SHARE);
    memory_init(&server->admin_limits.memory, options->budget,
                server->admin_limits.max_connections * MEMORY_CONNECTION_BYTES);
    memory_init(&limits->memory, options->budget, limits->max_connections * bytes);
}

/* Allocates what the threads use. */
static attn_status create_state(struct http_server *server) {
    size_t num_threads = server->options.num_threads;
    size_t num_admin = server->options.admin_listen != NULL ? 1 : 0;

    server->threads = calloc(num_threads, sizeof *server->threads);
    server->num_rounds = calloc(num_threads + 1, sizeof *server->num_rounds);
    if (server->threads == NULL || server->num_rounds == NULL)
        return ATTN_E_NOMEM;
    attn_status status = metrics_create(num_threads + num_admin, &server->metrics);
    return status == ATTN_OK ? page_init(&server->page) : status;
}

/* Refuses a budget without room for one connection at each address. */
static attn_status check_budget(const struct http_options *options,
                                attn_error *ret_error) {
    size_t least = find_connection_bytes(options);
    if (options->admin_listen != NULL)
        least += MEMORY_CONNECTION_BYTES;
    if (options->budget->limit >= least)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "--max-memory %zu is too small for a connection; set at least %zu",
                     options->budget->limit, least);
}

/* --- threads --- */

static attn_status refuse_threads(attn_status status, size_t count,
                                  attn_error *ret_error) {
    return error_set(
        ret_error, status, "cannot start %zu HTTP thread%s: %s", count, plural_of(count),
        status == ATTN_E_IO
            ? "no file descriptor is left; raise the limit of open files (ulimit -n)"
            : attn_status_text(status));
}

/* Returns what threads of both addresses have in common. */
static struct http_thread prepare_thread(struct http_server *server, size_t index) {
    return (struct http_thread){.options = &server->options,
                                .callbacks = {receive_handle, receive_completed,
                                              handover_client_left, handover_give_turn},
                                .metrics = server->metrics,
                                .page = &server->page,
                                .routes = &routes_table,
                                .counts = &server->metrics->threads[index],
                                .main_limits = &server->limits,
                                .refuses_ready = &server->refuses_ready};
}

/* Starts the threads of --listen. */
static attn_status start_threads(struct http_server *server, attn_error *ret_error) {
    const struct http_options *options = &server->options;
    size_t count = options->num_threads;
    char address[ADDRESS_SIZE];
    int *fds = calloc(count, sizeof *fds);
    if (fds == NULL)
        return refuse_threads(ATTN_E_NOMEM, count, ret_error);

    attn_status status = listen_open("--listen", options->listen, count, fds, address,
                                     sizeof address, ret_error);
    if (status != ATTN_OK) {
        free(fds);
        return status;
    }

    for (size_t i = 0; i < count; i++) {
        struct http_thread *thread = &server->threads[i];
        *thread = prepare_thread(server, i);
        thread->address = options->admin_listen != NULL ? ROUTE_AT_MAIN : ROUTE_AT_ONLY;
        thread->secrets = options->secrets;
        thread->connections.limits = &server->limits;
        thread->connections.index = i;
        thread->draining = &server->draining;
        thread->deadline = &server->deadline;
        if (status != ATTN_OK)
            close(fds[i]);
        else if ((status = http_thread_start(thread, fds[i])) == ATTN_OK)
            server->num_started++;
    }
    free(fds);
    if (status != ATTN_OK)
        return refuse_threads(status, count, ret_error);
    snprintf(server->url, sizeof server->url, "%s://%s",
             server->threads[0].speaks_tls ? "https" : "http", address);
    return ATTN_OK;
}

/* Starts the thread of --admin-listen, if there is one. */
static attn_status start_admin(struct http_server *server, attn_error *ret_error) {
    const char *listen = server->options.admin_listen;
    struct http_thread *thread = &server->admin;
    char address[ADDRESS_SIZE];
    int fd;
    if (listen == NULL)
        return ATTN_OK;

    attn_status status =
        listen_open("--admin-listen", listen, 1, &fd, address, sizeof address, ret_error);
    if (status != ATTN_OK)
        return status;
    *thread = prepare_thread(server, server->options.num_threads);
    thread->address = ROUTE_AT_ADMIN;
    thread->connections.limits = &server->admin_limits;
    thread->draining = &server->admin_draining;
    thread->deadline = &server->admin_deadline;
    status = http_thread_start(thread, fd);
    if (status != ATTN_OK)
        return refuse_threads(status, 1, ret_error);
    server->has_admin = true;
    snprintf(server->admin_url, sizeof server->admin_url, "http://%s", address);
    return ATTN_OK;
}

attn_status http_server_create(const struct http_options *options,
                               struct http_server **ret_server, attn_error *ret_error) {
    struct http_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return refuse_threads(ATTN_E_NOMEM, options->num_threads, ret_error);

    server->options = *options;
    atomic_init(&server->refuses_ready, false);
    atomic_init(&server->draining, false);
    atomic_init(&server->admin_draining, false);
    init_limits(server);
    framing_init();
    attn_status status = check_budget(options, ret_error);
    if (status == ATTN_OK && create_state(server) != ATTN_OK)
        status = refuse_threads(ATTN_E_NOMEM, options->num_threads, ret_error);
    if (status == ATTN_OK)
        status = start_threads(server, ret_error);
    if (status == ATTN_OK)
        status = start_admin(server, ret_error);
    if (status == ATTN_OK) {
        *ret_server = server;
        return ATTN_OK;
    }
    /* Threads that serve a request already use the server until they end. */
    const struct thread_wait wait = {.deadline = INT64_MAX, .chores = do_nothing};
    stop_threads(server, clock_now_ns(), &wait);
    http_server_destroy(server);
    return status;
}

const char *http_server_admin_url(const struct http_server *server) {
    return server->has_admin ? server->admin_url : NULL;
}

const char *http_server_url(const struct http_server *server) {
    return server->url;
}

void http_server_refuse_ready(struct http_server *server) {
    atomic_store(&server->refuses_ready, true);
}

/* Whether the thread went through its loop since the last call, which noted *num_rounds.
 * Wakes it, so that it does so before the next one. */
static bool is_running(struct http_thread *thread, size_t *num_rounds) {
    size_t before = *num_rounds;
    *num_rounds = atomic_load(&thread->num_rounds);
    http_thread_wake(thread);
    return *num_rounds != before;
}

bool http_server_is_alive(struct http_server *server) {
    bool alive = true;
    for (size_t i = 0; i < server->num_started; i++)
        alive = is_running(&server->threads[i], &server->num_rounds[i]) && alive;
    if (server->has_admin)
        alive =
            is_running(&server->admin, &server->num_rounds[server->num_started]) && alive;
    return alive;
}

bool http_server_stop(struct http_server *server, int64_t deadline,
                      void (*chores)(void *context), void *context) {
    const struct thread_wait wait = {deadline + LAST_WAIT_NS, chores, context};
    return stop_threads(server, deadline, &wait);
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
    memory_deinit(&server->admin_limits.memory);
    client_table_deinit(&server->admin_limits.clients);
    free(server->threads);
    metrics_destroy(server->metrics);
    page_deinit(&server->page);
    free(server->num_rounds);
    free(server);
}
