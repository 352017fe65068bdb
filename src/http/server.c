/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: starts the HTTP threads, and stops them by a deadline. */
#include "http/server.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
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

#define URL_SIZE (LISTEN_TEXT_MAX + 8)

/* Where some threads of an address accept. */
struct server_listen {
    struct listen_address address;
    struct connection_places places;
    char url[URL_SIZE];
};

/* The values of one option, and the threads that accept there. They share all limits. The
 * main and the admin address share no connection. */
struct server_address {
    const char *option;
    char *const *texts;            /* [num_listens] */
    const int *inherited;          /* [num_listens]; see struct http_options */
    struct server_listen *listens; /* [num_listens], the first num_open are open */
    size_t num_listens, num_open;  /* 0: there is no such address */
    enum route_address kind;
    struct secrets *secrets;
    /* [num_threads]; those of one of the listens follow each other. */
    struct http_thread *threads;
    size_t num_threads, num_started;
    struct metrics_thread *counts;   /* [num_threads], of the server's metrics */
    struct connection_limits limits; /* of all threads together */
    atomic_bool draining;            /* set once; `deadline` is written before */
    int64_t deadline;                /* clock_now_ns */
};

struct http_server {
    struct http_options options;
    struct server_address main, admin; /* the latter drains after the former has ended */
    struct metrics *metrics;
    struct page page;
    atomic_bool refuses_ready;
};

/* How long is waited for threads that were told to end, and what is done meanwhile. */
struct thread_wait {
    int64_t deadline;              /* clock_now_ns */
    void (*chores)(void *context); /* NULL: none */
    void *context;
};

/* Ends a thread that was told to. Returns false when it still runs at the deadline.
 * pthread_timedjoin_np() goes by the wall clock, which may be set back;
 * pthread_clockjoin_np() is unknown to thread sanitizers. */
static bool end_thread(struct http_thread *thread, const struct thread_wait *wait) {
    const struct timespec pause = {.tv_nsec = 2000000};
    while (pthread_tryjoin_np(thread->id, NULL) != 0) {
        if (clock_now_ns() > wait->deadline) {
            pthread_detach(thread->id); /* it may still end before the process does */
            return false;
        }
        if (wait->chores != NULL)
            wait->chores(wait->context);
        nanosleep(&pause, NULL);
    }
    http_thread_deinit(thread);
    return true;
}

static bool stop_address(struct server_address *address, int64_t deadline,
                         const struct thread_wait *wait) {
    bool all_ended = true;

    for (size_t i = 0; i < address->num_open; i++)
        listen_remove(&address->listens[i].address);
    address->deadline = deadline;
    atomic_store(&address->draining, true);
    for (size_t i = 0; i < address->num_started; i++)
        http_thread_wake(&address->threads[i]);
    for (size_t i = 0; i < address->num_started; i++)
        all_ended = end_thread(&address->threads[i], wait) && all_ended;
    return all_ended;
}

/* As http_server_stop(), but waits for the threads as `wait` says. */
static bool stop_threads(struct http_server *server, int64_t deadline,
                         const struct thread_wait *wait) {
    atomic_store(&server->refuses_ready, true);
    bool all_ended = stop_address(&server->main, deadline, wait);

    /* The admin address waits for no client. */
    int64_t now = clock_now_ns();
    const struct thread_wait soon = {.deadline = now + LAST_WAIT_NS};
    return stop_address(&server->admin, now, &soon) && all_ended;
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

/* Returns the bytes that are reserved for each connection of --listen. */
static size_t find_connection_bytes(const struct http_options *options) {
    bool tls = secrets_has_certificate(options->secrets);
    return MEMORY_CONNECTION_BYTES + (tls ? MEMORY_TLS_BYTES : 0);
}

/* Prepares connections of `bytes` each, which get at most one part in `share` of the
 * budget. There may be one at least. */
static void begin_limits(struct server_address *address,
                         const struct http_options *options, size_t max_connections,
                         size_t bytes, size_t share) {
    struct connection_limits *limits = &address->limits;
    size_t by_memory = size_max(options->budget->limit / share / bytes, 1);

    limits->options = options;
    limits->max_connections = size_min(max_connections, by_memory);
    client_table_init(&limits->clients, address->num_threads, options->pool);
}

/* Finds how many connections there may be: --max-connections, as far as memory and
 * descriptors reach. */
static void init_limits(struct http_server *server) {
    const struct http_options *options = &server->options;
    struct connection_limits *limits = &server->main.limits;
    struct connection_limits *admin = &server->admin.limits;
    size_t bytes = find_connection_bytes(options);
    size_t by_descriptors =
        find_descriptors(server->main.num_threads + server->admin.num_threads);

    size_t wanted = options->config->max_connections;
    enum log_level level = wanted > 0 ? LOG_WARN : LOG_INFO; /* the default may be less */
    if (wanted == 0)
        wanted = CONNECTIONS_DEFAULT;

    begin_limits(&server->main, options, wanted, bytes, CONNECTIONS_SHARE);
    if (limits->max_connections < wanted)
        log_write(level, "fewer connections, a quarter of --max-memory holds no more",
                  LOG_NUMBER("max_connections", limits->max_connections));
    if (by_descriptors < limits->max_connections) {
        limits->max_connections = by_descriptors;
        log_write(level, "fewer connections, the limit of open files allows no more",
                  LOG_NUMBER("max_connections", by_descriptors));
    }
    if (limits->max_connections < server->main.num_threads) {
        limits->max_connections = server->main.num_threads;
        log_write(level, "more connections, each HTTP thread has one at least",
                  LOG_NUMBER("max_connections", limits->max_connections));
    }

    begin_limits(&server->admin, options,
                 server->admin.num_listens > 0 ? ADMIN_CONNECTIONS : 0,
                 MEMORY_CONNECTION_BYTES, ADMIN_SHARE);
    memory_init(&admin->memory, options->budget,
                admin->max_connections * MEMORY_CONNECTION_BYTES);
    memory_init(&limits->memory, options->budget, limits->max_connections * bytes);
}

/* Allocates what all threads use. Returns false when memory is short. */
static bool create_state(struct http_server *server) {
    size_t num_main = server->main.num_threads;
    server->metrics = metrics_create(num_main + server->admin.num_threads);
    if (server->metrics == NULL)
        return false;
    server->main.counts = server->metrics->threads;
    server->admin.counts = server->metrics->threads + num_main;
    return page_init(&server->page);
}

/* Refuses a budget without room for one connection of each HTTP thread. */
static attn_status check_budget(const struct http_options *options,
                                attn_error *ret_error) {
    size_t num_threads = options->config->listens.count * options->num_threads;
    size_t least = find_connection_bytes(options) * num_threads;
    if (options->config->admin_listen != NULL)
        least += MEMORY_CONNECTION_BYTES;
    if (options->budget->limit >= least)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "--max-memory %zu is too small for connections; set at least %zu",
                     options->budget->limit, least);
}

/* --- threads --- */

static attn_status refuse_threads(attn_status status, size_t count,
                                  attn_error *ret_error) {
    return error_set(
        ret_error, status, "cannot start %zu HTTP thread%s: %s", count, plural_of(count),
        status == ATTN_E_IO
            ? "no file descriptor is left; raise the limit of open files (ulimit -n); "
              "or " NO_THREAD_LEFT
            : attn_status_text(status));
}

/* Returns a socket that listens at the address already, or -1. */
static int find_inherited(const struct server_address *address, size_t which) {
    return address->inherited != NULL ? address->inherited[which] : -1;
}

/* Fills in a thread that is zeroed. */
static void init_thread(struct http_server *server, struct server_address *address,
                        size_t index) {
    size_t count = address->num_threads / address->num_listens;
    size_t which = index / count;
    struct connection_places *places = &address->listens[which].places;
    address->threads[index] = (struct http_thread){
        .options = &server->options,
        .is_unix = listen_is_unix(address->texts[which]),
        .is_inherited = find_inherited(address, which) >= 0,
        .callbacks = {receive_handle, receive_completed, handover_client_left,
                      handover_give_turn},
        .address = address->kind,
        .secrets = address->secrets,
        .metrics = server->metrics,
        .page = &server->page,
        .routes = &routes_table,
        .counts = &address->counts[index],
        .main_limits = &server->main.limits,
        .connections = {.limits = &address->limits,
                        .places = places,
                        .max_places =
                            places->max / count + (index % count < places->max % count),
                        .index = index},
        .refuses_ready = &server->refuses_ready,
        .draining = &address->draining,
        .deadline = &address->deadline,
    };
}

/* Opens the next of the listens, and starts the `count` threads that accept there. */
static attn_status start_listen(struct http_server *server,
                                struct server_address *address, size_t count,
                                attn_error *ret_error) {
    struct server_listen *listen = &address->listens[address->num_open];
    const char *text = address->texts[address->num_open];
    size_t first = address->num_open * count;
    int *fds = calloc(count, sizeof *fds);
    if (fds == NULL)
        return refuse_threads(ATTN_E_NOMEM, count, ret_error);

    int inherited = find_inherited(address, address->num_open);
    attn_status status = listen_open(address->option, text, inherited, count, fds,
                                     &listen->address, ret_error);
    if (status != ATTN_OK) {
        free(fds);
        return status;
    }

    listen->places.max = address->limits.max_connections / address->num_listens;
    address->num_open++;
    for (size_t i = 0; i < count; i++) {
        init_thread(server, address, first + i);
        if (status != ATTN_OK)
            close(fds[i]);
        else if ((status = http_thread_start(&address->threads[first + i], fds[i])) ==
                 ATTN_OK)
            address->num_started++;
    }
    free(fds);
    if (status != ATTN_OK)
        return refuse_threads(status, count, ret_error);
    const char *scheme = address->threads[first].speaks_tls ? "https://" : "http://";
    snprintf(listen->url, sizeof listen->url, "%s%s", listen_is_unix(text) ? "" : scheme,
             listen->address.text);
    return ATTN_OK;
}

/* Starts all threads of an address, if there is one. */
static attn_status start_threads(struct http_server *server,
                                 struct server_address *address, attn_error *ret_error) {
    size_t count = address->num_listens;
    attn_status status = ATTN_OK;
    if (count == 0)
        return ATTN_OK;

    address->threads = calloc(address->num_threads, sizeof *address->threads);
    address->listens = calloc(count, sizeof *address->listens);
    if (address->threads == NULL || address->listens == NULL)
        return refuse_threads(ATTN_E_NOMEM, server->options.num_threads, ret_error);
    for (size_t i = 0; i < count && status == ATTN_OK; i++)
        status = start_listen(server, address, address->num_threads / count, ret_error);
    return status;
}

attn_status http_server_create(const struct http_options *options,
                               struct http_server **ret_server, attn_error *ret_error) {
    struct http_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return refuse_threads(ATTN_E_NOMEM, options->num_threads, ret_error);

    static struct secrets no_secrets; /* no file: neither keys nor TLS */
    const struct config *config = options->config;
    bool has_admin = config->admin_listen != NULL;
    server->options = *options;
    server->main = (struct server_address){
        .option = "--listen",
        .texts = config->listens.items,
        .inherited = options->inherited,
        .num_listens = config->listens.count,
        .kind = has_admin ? ROUTE_AT_MAIN : ROUTE_AT_ONLY,
        .secrets = options->secrets,
        .num_threads = options->num_threads * config->listens.count,
    };
    server->admin = (struct server_address){.option = "--admin-listen",
                                            .secrets = &no_secrets,
                                            .texts = &config->admin_listen,
                                            .num_listens = has_admin ? 1 : 0,
                                            .kind = ROUTE_AT_ADMIN,
                                            .num_threads = has_admin ? 1 : 0};
    init_limits(server);
    framing_init();
    attn_status status = check_budget(options, ret_error);
    if (status == ATTN_OK && !create_state(server))
        status = refuse_threads(ATTN_E_NOMEM, options->num_threads, ret_error);
    if (status == ATTN_OK)
        status = start_threads(server, &server->main, ret_error);
    if (status == ATTN_OK)
        status = start_threads(server, &server->admin, ret_error);
    if (status == ATTN_OK) {
        *ret_server = server;
        return ATTN_OK;
    }
    /* Threads that serve a request already use the server until they end. */
    const struct thread_wait wait = {.deadline = INT64_MAX};
    stop_threads(server, clock_now_ns(), &wait);
    http_server_destroy(server);
    return status;
}

const char *http_server_url(const struct http_server *server, bool admin, size_t index) {
    const struct server_address *address = admin ? &server->admin : &server->main;
    return index < address->num_open ? address->listens[index].url : NULL;
}

void http_server_refuse_ready(struct http_server *server) {
    atomic_store(&server->refuses_ready, true);
}

/* Whether all threads went through their loop since the last call. Wakes them, so that
 * they do so before the next one. */
static bool are_running(struct server_address *address) {
    bool alive = true;
    for (size_t i = 0; i < address->num_started; i++) {
        struct http_thread *thread = &address->threads[i];
        size_t num_rounds = atomic_load(&thread->num_rounds);
        alive = alive && num_rounds != thread->seen_rounds;
        thread->seen_rounds = num_rounds;
        http_thread_wake(thread);
    }
    return alive;
}

bool http_server_is_alive(struct http_server *server) {
    bool main_runs = are_running(&server->main);
    return are_running(&server->admin) && main_runs;
}

bool http_server_stop(struct http_server *server, int64_t deadline,
                      void (*chores)(void *context), void *context) {
    const struct thread_wait wait = {deadline + LAST_WAIT_NS, chores, context};
    return stop_threads(server, deadline, &wait);
}

bool http_server_replied_to_all(const struct http_server *server) {
    for (size_t i = 0; i < server->main.num_threads; i++) {
        const struct http_thread *thread = &server->main.threads[i];
        if (thread->num_accepted > 0 || thread->cut_off)
            return false;
    }
    return true;
}

void http_server_destroy(struct http_server *server) {
    if (server == NULL)
        return;
    struct server_address *const addresses[] = {&server->main, &server->admin};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        memory_deinit(&addresses[i]->limits.memory);
        client_table_deinit(&addresses[i]->limits.clients);
        free(addresses[i]->threads);
        free(addresses[i]->listens);
    }
    free(server->metrics);
    page_deinit(&server->page);
    free(server);
}
