/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c: starts and stops everything in order, and does what signals ask for. */
#include "daemon/serve.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/output.h"
#include "base/size.h"
#include "captures/store.h"
#include "daemon/check.h"
#include "daemon/inherited.h"
#include "daemon/loader.h"
#include "daemon/notify.h"
#include "daemon/signals.h"
#include "http/net/address.h"
#include "http/net/listen.h"
#include "http/net/origin.h"
#include "http/net/secrets.h"
#include "http/server.h"
#include "weights/families/folder.h"

#include <attnd/library.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of its arena that a worker keeps from job to job, and the share of the budget
 * that all of them may keep together. */
#define ARENA_KEEP_MAX   ((size_t)64 * 1024 * 1024)
#define ARENA_KEEP_MIN   ((size_t)256 * 1024) /* less does not pay */
#define ARENA_KEEP_SHARE 8
/* How often the main loop looks for memory that malloc() holds free, and how much it
 * may. */
#define TRIM_MS    500
#define TRIM_BYTES ((size_t)16 * 1024 * 1024)
/* Signals that come faster are obeyed together, so that they do not fill the log. */
#define OBEY_AGAIN_MS 100

/* Parts that daemon_serve() has started, in this order. */
struct daemon {
    const char *commit;      /* of this build */
    struct stat config_file; /* of --config, as it was at start */
    struct address_ranges trusted_proxies;
    struct origins cors_origins;
    struct secrets secrets;
    int *inherited; /* http_options.inherited; owned */
    struct generations generations;
    struct catalogue catalogue;
    size_t max_memory; /* bytes */
    struct sched_budget budget;
    struct captures *captures; /* NULL: none are kept */
    struct sched_pool *pool;
    struct loader *loader;
    struct model_changer changer;
    struct http_server *server;
    size_t num_lines; /* that standard output has taken, one for each address */
    int line_fd;
    int64_t next_trim, next_obeyed; /* clock_now_ns; of do_chores() */
};

static size_t find_arena_keep(size_t max_memory, size_t workers) {
    size_t keep = max_memory / ARENA_KEEP_SHARE / workers;
    return keep < ARENA_KEEP_MIN ? 0 : size_min(keep, ARENA_KEEP_MAX);
}

static size_t num_workers_of(const struct config *config) {
    return config->compute.workers > 0 ? config->compute.workers : machine_cpus("");
}

/* sched_call_on_each(): all workers warm up at the same time. */
static void warm_up_together(void *barrier) {
    pthread_barrier_wait(barrier);
    attn_warm_up();
}

/* Starts what computes. */
static attn_status start_workers(struct daemon *daemon, const struct config *config,
                                 attn_error *error) {
    size_t workers = num_workers_of(config);
    size_t max_memory = config->max_memory, memory = machine_memory("");
    if (max_memory == 0) /* captures come on top */
        max_memory = (memory - size_min(config->capture_memory, memory)) / 2;
    size_t arena_keep = find_arena_keep(max_memory, workers);

    /* Requests may not hold the memory that idle workers keep. */
    daemon->max_memory = max_memory;
    sched_budget_init(&daemon->budget, max_memory - workers * arena_keep);
    const struct sched_options sched = {
        .num_workers = workers,
        .queue_slots = config->queue,
        .max_delay = (int64_t)config->max_queue_delay * 1000000,
        .arena_keep = arena_keep,
    };
    attn_status status = sched_pool_create(&sched, &daemon->pool);
    if (status != ATTN_OK)
        return error_set(error, status, "cannot start %zu worker%s: %s", workers,
                         plural_of(workers),
                         status == ATTN_E_IO ? NO_THREAD_LEFT : attn_status_text(status));
    pthread_barrier_t all;
    pthread_barrier_init(&all, NULL, (unsigned)workers);
    sched_call_on_each(daemon->pool, warm_up_together, &all, INT64_MAX / 4);
    pthread_barrier_destroy(&all);
    return ATTN_OK;
}

/* Starts what receives requests and sends replies. */
static attn_status start_server(struct daemon *daemon, const struct config *config,
                                attn_error *error) {
    size_t num_threads = config->http_threads;
    if (num_threads == 0)
        num_threads = (machine_cpus("") + 7) / 8;

    daemon->changer = (struct model_changer){daemon->loader, loader_submit};
    const struct http_options http = {
        .config = config,
        .secrets = &daemon->secrets,
        .commit = daemon->commit,
        .num_threads = num_threads,
        .inherited = daemon->inherited,
        .trusted_proxies = &daemon->trusted_proxies,
        .cors_origins = &daemon->cors_origins,
        .models = &daemon->generations,
        .changer = config->model_control != 0 ? &daemon->changer : NULL,
        .pool = daemon->pool,
        .budget = &daemon->budget,
        .captures = daemon->captures,
    };
    attn_status status = http_server_create(&http, &daemon->server, error);
    if (status == ATTN_OK && config->admin_listen != NULL)
        log_write(LOG_INFO, "admin address",
                  LOG_TEXT("url", http_server_url(daemon->server, true, 0)));
    if (status == ATTN_OK)
        log_write(LOG_INFO, "listening",
                  LOG_TEXT("url", http_server_url(daemon->server, false, 0)),
                  LOG_NUMBER("workers", num_workers_of(config)),
                  LOG_NUMBER("http_threads", num_threads),
                  LOG_NUMBER("max_memory", daemon->max_memory),
                  LOG_NUMBER("capture_memory", config->capture_memory),
                  LOG_TEXT("blas", attn_blas_text()));
    for (size_t i = 1; status == ATTN_OK && i < config->listens.count; i++)
        log_write(LOG_INFO, "listening",
                  LOG_TEXT("url", http_server_url(daemon->server, false, i)));
    return status;
}

/* Makes room for captures, where they are to be kept. */
static attn_status start_captures(struct daemon *daemon, const struct config *config,
                                  attn_error *error) {
    if (config->capture_memory == 0)
        return ATTN_OK;
    daemon->captures = captures_create(config->capture_memory);
    daemon->catalogue.captures = daemon->captures;
    return daemon->captures != NULL
               ? ATTN_OK
               : error_set(error, ATTN_E_NOMEM, "--capture-memory: out of memory");
}

/* Starts the workers, loads the models, and starts what receives requests. */
static attn_status start_daemon(struct daemon *daemon, const struct config *config,
                                attn_error *error) {
    attn_status status = start_workers(daemon, config, error);
    daemon->catalogue.pool = daemon->pool;
    if (status == ATTN_OK)
        status = start_captures(daemon, config, error);
    if (status == ATTN_OK)
        status = catalogue_start(&daemon->catalogue, error);
    if (status != ATTN_OK)
        return status;

    signals_end_loading();
    notify_init();
    status = loader_start(&daemon->catalogue, &daemon->loader);
    if (status != ATTN_OK)
        return error_set(error, status, "cannot start the loader: %s",
                         status == ATTN_E_IO ? NO_THREAD_LEFT : attn_status_text(status));
    return start_server(daemon, config, error);
}

/* Prints a line for each address, in the format of the log, once standard output has room
 * for it. One that fails is ignored: the log has the address, too. */
static void print_addresses(struct daemon *daemon) {
    bool json = daemon->catalogue.config->log_format == LOG_FORMAT_JSON;
    char line[OUTPUT_BYTES_MAX];
    const char *url;

    while ((url = http_server_url(daemon->server, false, daemon->num_lines)) != NULL) {
        size_t size = json
                          ? log_print(line, LOG_INFO, "listening", LOG_TEXT("url", url))
                          : (size_t)snprintf(line, sizeof line, "listening on %s\n", url);
        if (output_write(daemon->line_fd, line, size) < 0 && errno == EAGAIN)
            return;
        daemon->num_lines++;
    }
    if (daemon->line_fd != STDOUT_FILENO)
        close(daemon->line_fd);
    daemon->line_fd = STDOUT_FILENO;
}

/* captures_keep_spaces(): whether a key has the name of the space. */
static bool keeps_space(void *context, const char *space) {
    return secrets_has_name(context, space);
}

/* Says that options are not read again, where --config is not the file that was read. */
static void warn_of_config(const struct daemon *daemon) {
    const char *path = daemon->catalogue.config->file;
    struct stat now;

    if (path == NULL)
        return;
    if (stat(path, &now) != 0 || !folder_state_is_same(&now, &daemon->config_file))
        log_write(LOG_WARN, "a changed --config needs a restart", LOG_TEXT("file", path),
                  LOG_TEXT("remedy", "first check it with attnd --check-config"));
}

/* Does what signals ask for; returns whether one did. Once attnd stops, nothing is read
 * again. */
static bool obey_signals(struct daemon *daemon) {
    bool reload = signals_take(SIGHUP), debug = signals_take(SIGUSR1);
    if (reload && !signals_stop_requested()) {
        secrets_reload(&daemon->secrets);
        if (daemon->captures != NULL)
            captures_keep_spaces(daemon->captures, keeps_space, &daemon->secrets);
        warn_of_config(daemon);
        loader_reload(daemon->loader);
    }
    if (debug)
        log_toggle_debug("SIGUSR1");
    return reload || debug;
}

/* Does the small work of the main thread, until attnd ends. It may be called at any
 * rate. */
static void do_chores(void *context) {
    struct daemon *daemon = context;
    int64_t now = clock_now_ns();

    print_addresses(daemon);
    if (now >= daemon->next_obeyed && obey_signals(daemon))
        daemon->next_obeyed = now + OBEY_AGAIN_MS * (int64_t)1000000;
    if (now >= daemon->next_trim) {
        heap_trim(TRIM_BYTES);
        daemon->next_trim = now + (int64_t)TRIM_MS * 1000000;
    }
}

/* Tells the service manager that attnd is alive, while its HTTP threads are. Returns how
 * many ms the main loop may wait before it calls again. */
static int report_alive(const struct daemon *daemon, int64_t *next) {
    int64_t now = clock_now_ns();
    if (notify_alive_ns() == 0)
        return TRIM_MS;

    if (now >= *next) {
        if (http_server_is_alive(daemon->server))
            notify_send(NOTIFY_ALIVE);
        else
            log_fields(LOG_ERROR, "an HTTP thread does not run", NULL, 0);
        *next = now + notify_alive_ns();
    }
    int64_t left_ms = (*next - now) / 1000000 + 1;
    return left_ms < TRIM_MS ? (int)left_ms : TRIM_MS;
}

/* Does what signals ask for, until one asks to stop. */
static void run_until_stop(struct daemon *daemon) {
    int64_t next_alive = clock_now_ns() + notify_alive_ns();

    http_server_is_alive(daemon->server); /* the first interval begins */
    while (!signals_stop_requested()) {
        do_chores(daemon);
        int wait_ms = report_alive(daemon, &next_alive);
        int64_t left_ms = (daemon->next_obeyed - clock_now_ns()) / 1000000 + 1;
        signals_wait(left_ms > 0 && left_ms < wait_ms ? (int)left_ms : wait_ms);
    }
}

/* Serves on for --readiness-delay, so that no client sends here any more when attnd stops
 * accepting. */
static void leave(struct daemon *daemon, const struct config *config) {
    int64_t end = clock_now_ns() + (int64_t)config->readiness_delay * 1000000000;

    notify_send(NOTIFY_STOPPING);
    loader_refuse(daemon->loader);
    http_server_refuse_ready(daemon->server);
    log_write(LOG_INFO, "stopping",
              LOG_NUMBER("readiness_delay", config->readiness_delay),
              LOG_NUMBER("grace", config->grace));
    while (clock_now_ns() < end) {
        do_chores(daemon);
        signals_wait(TRIM_MS);
    }
}

/* Stops in order; returns the exit code. */
static int stop_daemon(struct daemon *daemon, const struct config *config) {
    leave(daemon, config);
    int64_t deadline = clock_now_ns() + (int64_t)config->grace * 1000000000;

    if (!http_server_stop(daemon->server, deadline, do_chores, daemon)) {
        log_write(LOG_ERROR, "grace period ended with requests unfinished",
                  LOG_NUMBER("grace", config->grace));
        _exit(EXIT_FAILURE); /* workers still run, so nothing can be released */
    }
    if (!http_server_replied_to_all(daemon->server)) {
        log_write(LOG_ERROR, "grace period ended with replies unsent",
                  LOG_NUMBER("grace", config->grace));
        return EXIT_FAILURE;
    }
    log_fields(LOG_INFO, "stopped", NULL, 0);
    return EXIT_SUCCESS;
}

/* Checks the addresses, and reads what those who connect must have. */
static attn_status secure_addresses(struct daemon *daemon, const struct config *config,
                                    attn_error *error) {
    const struct secret_files files = {config->api_key_file, config->tls_cert,
                                       config->tls_key};
    const char *open_to_all = NULL; /* a --listen */
    attn_status status = ATTN_OK;
    bool is_loopback;

    for (size_t i = 0; i < config->listens.count && status == ATTN_OK; i++) {
        status = listen_find_loopback("--listen", config->listens.items[i], &is_loopback,
                                      error);
        if (status == ATTN_OK && !is_loopback && open_to_all == NULL)
            open_to_all = config->listens.items[i];
    }
    if (status == ATTN_OK && config->admin_listen != NULL)
        status = listen_find_loopback("--admin-listen", config->admin_listen,
                                      &is_loopback, error);
    if (status == ATTN_OK)
        status = secrets_init(&daemon->secrets, &files, error);
    if (status == ATTN_OK && config->max_per_key > 0 && config->api_key_file == NULL)
        return error_set(error, ATTN_E_VALUE,
                         "--max-per-key counts by the names of keys; give "
                         "--api-key-file FILE, or --max-per-client");

    if (status != ATTN_OK || config->insecure_listen || config->api_key_file != NULL ||
        open_to_all == NULL)
        return status;
    return error_set(error, ATTN_E_VALUE,
                     "--listen %s lets other machines in without a key; give "
                     "--api-key-file FILE, or --insecure-listen where the network lets "
                     "in nobody else",
                     open_to_all);
}

static attn_status adopt_sockets(struct daemon *daemon, const struct config *config,
                                 attn_error *error) {
    daemon->inherited = calloc(config->listens.count, sizeof *daemon->inherited);
    if (daemon->inherited == NULL)
        return error_set(error, ATTN_E_NOMEM, "out of memory");
    return inherited_find(config->listens.items, config->listens.count, daemon->inherited,
                          error);
}

/* Applies the options that need more than their own text, and checks them. */
static attn_status apply_config(struct daemon *daemon, const struct config *config,
                                attn_error *error) {
    attn_status status = secure_addresses(daemon, config, error);
    if (status == ATTN_OK)
        status = adopt_sockets(daemon, config, error);
    if (status == ATTN_OK)
        status = address_ranges_read(config->trusted_proxies.items,
                                     config->trusted_proxies.count,
                                     &daemon->trusted_proxies, error);
    if (status == ATTN_OK)
        status = origins_read(config->cors_origins.items, config->cors_origins.count,
                              &daemon->cors_origins, error);
    if (status == ATTN_OK)
        status = load_specs(config, &daemon->catalogue.specs, error);
    if (status == ATTN_OK)
        check_config(config);
    return status;
}

static void print_checked(const struct catalogue *catalogue) {
    size_t count = list_count_loaded(&catalogue->list);

    printf("configuration ok: %zu model%s", count, plural_of(count));
    if (count < catalogue->list.count)
        printf(", %zu skipped", catalogue->list.count - count);
    putchar('\n');
}

/* Starts everything and serves; returns the exit code. */
static int run_daemon(struct daemon *daemon, const struct config *config) {
    attn_error error;

    if (signals_init(config->check_config ? EXIT_FAILURE : EXIT_SUCCESS, &error) !=
        ATTN_OK)
        return log_failure(error.text, EXIT_FAILURE);
    if (apply_config(daemon, config, &error) != ATTN_OK)
        return log_failure(error.text, EXIT_USAGE);
    attn_status status = attn_init(&error);
    if (status == ATTN_OK && config->check_config)
        status = catalogue_start(&daemon->catalogue, &error);
    else if (status == ATTN_OK)
        status = start_daemon(daemon, config, &error);
    if (status != ATTN_OK)
        return log_failure(error.text, EXIT_FAILURE);
    if (config->check_config) {
        check_readable(config, &daemon->catalogue.list);
        print_checked(&daemon->catalogue);
        return EXIT_SUCCESS;
    }
    notify_send(NOTIFY_READY);
    daemon->line_fd = output_open(STDOUT_FILENO);
    run_until_stop(daemon);
    return stop_daemon(daemon, config);
}

int daemon_serve(const struct config *config, const char *commit) {
    struct daemon daemon = {.commit = commit};

    for (size_t i = 0; i < config->ignored_variables.count; i++)
        log_write(LOG_WARN, "unknown environment variable ignored",
                  LOG_TEXT("name", config->ignored_variables.items[i]),
                  LOG_TEXT("remedy", "unset it; attnd --help has the known ones, such as "
                                     "ATTND_LISTEN=HOST:PORT"));
    if (config->file != NULL)
        stat(config->file, &daemon.config_file);
    generations_init(&daemon.generations);
    daemon.catalogue.config = config;
    daemon.catalogue.generations = &daemon.generations;
    daemon.catalogue.budget = &daemon.budget;
    int exit_code = run_daemon(&daemon, config);

    if (!loader_stop(daemon.loader))
        _exit(exit_code); /* it still uses what would be released */
    sched_pool_destroy(daemon.pool);
    http_server_destroy(daemon.server);
    captures_destroy(daemon.captures);
    catalogue_deinit(&daemon.catalogue);
    generations_deinit(&daemon.generations);
    free(daemon.trusted_proxies.items);
    free(daemon.cors_origins.items);
    free(daemon.inherited);
    secrets_deinit(&daemon.secrets);
    return exit_code;
}
