/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: runs the command that was asked for. For serve, it starts and stops everything
 * in order, and handles the signals. */
#include "base/clock.h"
#include "base/error.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "config/commands.h"
#include "http/net/address.h"
#include "http/net/listen.h"
#include "http/net/origin.h"
#include "http/served.h"
#include "http/server.h"
#include "wire/init.h"

#include <attnd/library.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EXIT_USAGE 2
/* What a worker keeps of its arena from job to job, and the share of the budget that all
 * of them may keep together. */
#define ARENA_KEEP_MAX   ((size_t)64 * 1024 * 1024)
#define ARENA_KEEP_MIN   ((size_t)256 * 1024) /* less does not pay */
#define ARENA_KEEP_SHARE 8
/* How often main looks for memory that malloc() holds free, and how much it may. */
#define TRIM_MS    500
#define TRIM_BYTES ((size_t)16 * 1024 * 1024)

extern char **environ;

/* Made by commit.sh; may be "". */
extern const char main_commit[];

/* What main_serve() has started, in this order. */
struct daemon {
    struct address_ranges trusted_proxies;
    struct origins cors_origins;
    struct models models; /* until they are served */
    struct served_models served;
    struct sched_budget budget;
    struct sched_pool *pool;
    struct http_server *server;
};

static int report_error(const attn_error *error, int exit_code) {
    log_failure(error->text);
    return exit_code;
}

/* Returns `exit_code`, or a failure when standard output did not take all of the text. */
static int finish_output(int exit_code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    log_failure("standard output did not take all of the text; "
                "check the disk or the program that it goes to");
    return EXIT_FAILURE;
}

/* An eventfd that SIGTERM and SIGINT make readable. sigwait() would not do: OpenBLAS
 * starts threads before main(), and a signal mask set here does not reach them. */
static int stop_fd = -1;

static void request_stop(int signal_number) {
    const uint64_t one = 1;
    (void)signal_number;

    int error = errno; /* of the code that the signal interrupts */
    ssize_t written = write(stop_fd, &one, sizeof one);
    (void)written; /* fails only after 2^64 - 2 signals */
    errno = error;
}

/* While models load, nothing is accepted and nothing can be lost. So a signal ends attnd
 * at once. Without a handler the kernel would ignore it where attnd is process 1. */
static volatile sig_atomic_t loading_exit_code;

static void stop_loading(int signal_number) {
    (void)signal_number;
    _exit(loading_exit_code);
}

static void set_stop_handler(void (*handler)(int signal_number)) {
    const struct sigaction stop = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
}

/* Returns whether a signal has asked to stop, for which it waits `wait_ms` at most. */
static bool is_stop_requested(int wait_ms) {
    struct pollfd stop = {.fd = stop_fd, .events = POLLIN};
    return poll(&stop, 1, wait_ms) == 1;
}

/* From now on a signal stops attnd in order. */
static attn_status catch_stop_requests(attn_error *error) {
    stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd < 0)
        return error_set(error, ATTN_E_IO,
                         "cannot create an eventfd: %s; "
                         "raise the limit of open files (ulimit -n)",
                         strerror(errno));
    set_stop_handler(request_stop);
    return ATTN_OK;
}

/* SIGUSR1 asks for debug events, or for none of them again. */
static atomic_bool debug_requested;

static void request_debug(int signal_number) {
    (void)signal_number;
    atomic_store(&debug_requested, true);
}

static void catch_debug_requests(void) {
    const struct sigaction debug = {.sa_handler = request_debug, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &debug, NULL);
}

static void obey_debug_request(void) {
    if (atomic_exchange(&debug_requested, false))
        log_toggle_debug("SIGUSR1");
}

static size_t find_arena_keep(size_t max_memory, size_t workers) {
    size_t keep = max_memory / ARENA_KEEP_SHARE / workers;
    if (keep < ARENA_KEEP_MIN)
        return 0;
    return keep < ARENA_KEEP_MAX ? keep : ARENA_KEEP_MAX;
}

/* Gives the models that were loaded to the server. */
static attn_status publish_models(struct daemon *daemon, attn_error *error) {
    struct models *models = &daemon->models;
    attn_status status = served_publish(&daemon->served, models->items, models->count);
    if (status != ATTN_OK)
        return error_set(error, status, "cannot serve the models: out of memory");

    free(models->items);
    *models = (struct models){.items = NULL};
    return ATTN_OK;
}

static attn_status start_daemon(struct daemon *daemon, const struct config *config,
                                attn_error *error) {
    size_t cpus = machine_cpus("");
    size_t workers = config->workers > 0 ? config->workers : cpus;
    size_t max_memory =
        config->max_memory > 0 ? config->max_memory : machine_memory("") / 2;
    size_t arena_keep = find_arena_keep(max_memory, workers);

    /* What idle workers keep is taken off what requests may hold. */
    sched_budget_init(&daemon->budget, max_memory - workers * arena_keep);
    const struct sched_options sched = {
        .num_workers = workers,
        .queue_slots = config->queue,
        .max_delay = (int64_t)config->max_queue_delay * 1000000,
        .arena_keep = arena_keep,
        .on_start = attn_warm_up,
    };
    attn_status status = sched_pool_create(&sched, &daemon->pool);
    if (status != ATTN_OK)
        return error_set(error, status, "cannot start %zu worker%s: %s",
                         sched.num_workers, plural_of(sched.num_workers),
                         attn_status_text(status));

    const struct http_options http = {
        .listen = config->listen,
        .commit = main_commit,
        .num_threads = config->http_threads > 0 ? config->http_threads : (cpus + 7) / 8,
        .max_connections = config->max_connections,
        .max_per_client = config->max_per_client,
        .trusted_proxies = &daemon->trusted_proxies,
        .cors_origins = &daemon->cors_origins,
        .header_timeout = config->header_timeout,
        .min_rate = config->min_rate,
        .idle_timeout = config->idle_timeout,
        .access_log = config->access_log,
        .no_ui = config->no_ui,
        .ignore_client_abort = config->ignore_client_abort,
        .default_timeout = (int64_t)config->default_timeout * 1000000,
        .batch_delay = (int64_t)config->batch_delay_us * 1000,
        .max_body = config->max_body,
        .max_reply = config->max_reply,
        .models = &daemon->served,
        .pool = daemon->pool,
        .budget = &daemon->budget,
    };
    status = http_server_create(&http, &daemon->server, error);
    if (status == ATTN_OK)
        log_write(LOG_INFO, "listening", LOG_TEXT("url", http_server_url(daemon->server)),
                  LOG_NUMBER("workers", sched.num_workers),
                  LOG_NUMBER("http_threads", http.num_threads),
                  LOG_NUMBER("max_memory", max_memory),
                  LOG_TEXT("blas", attn_blas_text()));
    return status;
}

/* Logs which engine serves each model. */
static void log_models(const struct models *models) {
    for (size_t i = 0; i < models->count; i++) {
        const attn_model_info *info = attn_model_get_info(models->items[i]);

        if (info->difference > 0 && strcmp(info->engine, "openblas") == 0)
            log_write(LOG_WARN, "engines disagree, using openblas",
                      LOG_TEXT("model", info->name),
                      LOG_NUMBER("parts_per_million_apart",
                                 info->difference < 1e3 ? info->difference * 1e6 : 1e9));
        log_write(LOG_INFO, "model", LOG_TEXT("name", info->name),
                  LOG_TEXT("layout", info->layout), LOG_NUMBER("heads", info->num_heads),
                  LOG_NUMBER("head_size", info->head_size),
                  LOG_NUMBER("parameters", info->parameters),
                  LOG_TEXT("engine", info->engine), LOG_TEXT("cpu", info->cpu),
                  LOG_TEXT("precision", info->precision),
                  LOG_NUMBER("memory", info->memory));
    }
}

/* Prints the address as soon as standard output has room for it, unless a signal asks to
 * stop before. A standard output that fails is ignored: the log has the address, too. */
static void print_address(const char *url) {
    char line[NI_MAXHOST + 64];

    int fd = output_open(STDOUT_FILENO);
    int size = snprintf(line, sizeof line, "listening on %s\n", url);
    while (output_write(fd, line, (size_t)size, 50) < 0 && errno == EAGAIN &&
           !is_stop_requested(0))
        ;
    if (fd != STDOUT_FILENO)
        close(fd);
}

/* Waits for a signal, then stops; returns the exit code. */
static int run_until_stopped(struct daemon *daemon, const struct config *config) {
    print_address(http_server_url(daemon->server));
    while (!is_stop_requested(TRIM_MS)) {
        obey_debug_request();
        heap_trim(TRIM_BYTES);
    }

    log_write(LOG_INFO, "stopping", LOG_NUMBER("grace", config->grace));
    int64_t deadline = clock_now_ns() + (int64_t)config->grace * 1000000000;

    if (!http_server_stop(daemon->server, deadline)) {
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

static void log_ignored_variables(const struct config_texts *names) {
    for (size_t i = 0; i < names->count; i++)
        log_write(LOG_WARN, "unknown environment variable ignored",
                  LOG_TEXT("name", names->items[i]),
                  LOG_TEXT("remedy", "unset it; attnd --help has the known ones"));
}

static int main_serve(const struct config *config, const struct config_texts *files) {
    struct daemon daemon = {.pool = NULL};
    attn_error error;
    int exit_code = EXIT_FAILURE;
    (void)files;

    served_models_init(&daemon.served);
    log_ignored_variables(&config->ignored_variables);
    signal(SIGPIPE, SIG_IGN);
    catch_debug_requests();
    loading_exit_code = config->check_config ? EXIT_FAILURE : EXIT_SUCCESS;
    set_stop_handler(stop_loading);

    if (listen_check(config->listen, &error) != ATTN_OK ||
        address_ranges_read(config->trusted_proxies.items, config->trusted_proxies.count,
                            &daemon.trusted_proxies, &error) != ATTN_OK ||
        origins_read(config->cors_origins.items, config->cors_origins.count,
                     &daemon.cors_origins, &error) != ATTN_OK ||
        load_check(config, &error) != ATTN_OK) {
        exit_code = report_error(&error, EXIT_USAGE);
        goto done;
    }
    if (attn_init(&error) != ATTN_OK ||
        load_models(config, &daemon.models, &error) != ATTN_OK) {
        report_error(&error, exit_code);
        goto done;
    }
    log_models(&daemon.models);
    if (config->check_config) {
        printf("configuration ok: %zu model%s", daemon.models.count,
               plural_of(daemon.models.count));
        if (daemon.models.num_skipped > 0)
            printf(", %zu skipped", daemon.models.num_skipped);
        putchar('\n');
        exit_code = finish_output(EXIT_SUCCESS);
        goto done;
    }

    if (catch_stop_requests(&error) != ATTN_OK ||
        publish_models(&daemon, &error) != ATTN_OK ||
        start_daemon(&daemon, config, &error) != ATTN_OK)
        report_error(&error, exit_code);
    else
        exit_code = run_until_stopped(&daemon, config);

done:
    sched_pool_destroy(daemon.pool);
    http_server_destroy(daemon.server);
    served_models_deinit(&daemon.served);
    load_models_deinit(&daemon.models);
    free(daemon.trusted_proxies.items);
    free(daemon.cors_origins.items);
    return exit_code;
}

static int main_health(const struct config *config, const struct config_texts *files) {
    attn_error error;
    (void)files;
    if (listen_check(config->listen, &error) != ATTN_OK)
        return report_error(&error, EXIT_USAGE);
    return command_health(config);
}

static int main_bench(const struct config *config, const struct config_texts *files) {
    attn_error error;
    (void)files;
    if (attn_init(&error) != ATTN_OK)
        return report_error(&error, EXIT_FAILURE);
    return command_bench(config);
}

/* What each command runs; returns the exit code. `files` are its operands. */
static int (*const command_runs[NUM_COMMANDS])(const struct config *config,
                                               const struct config_texts *files) = {
    [COMMAND_SERVE] = main_serve,    [COMMAND_INSPECT] = command_inspect,
    [COMMAND_HEADS] = command_heads, [COMMAND_PRUNE] = command_prune,
    [COMMAND_BENCH] = main_bench,    [COMMAND_HEALTH] = main_health,
};

int main(int argc, char **argv) {
    struct config config;
    struct config_texts files = {NULL, 0};
    attn_error error;
    enum command command = COMMAND_SERVE;
    int first_option = argc > 0 ? 1 : 0;

    heap_init();
    if (argc > 1 && argv[1][0] != '-') {
        command = command_find(argv[1]);
        first_option = 2;
    }
    if (command == NUM_COMMANDS) {
        error_set(&error, ATTN_E_VALUE, "unknown command '%s'; see attnd --help",
                  argv[1]);
        return report_error(&error, EXIT_USAGE);
    }
    if (wire_init() != ATTN_OK) { /* before config_read(), which uses jansson */
        log_failure("cannot create the C locale: out of memory");
        return EXIT_FAILURE;
    }

    attn_status status =
        config_read(&command_infos[command], argc - first_option, argv + first_option,
                    environ, &config, &files, &error);
    if (command == COMMAND_SERVE) /* who types another command reads plain text */
        log_init((enum log_format)config.log_format, (enum log_level)config.log_level);
    if (status != ATTN_OK)
        return report_error(&error, EXIT_USAGE);

    int exit_code = EXIT_SUCCESS;
    if (config.help)
        config_print_help();
    else if (config.man)
        config_print_man();
    else if (config.version)
        printf("attnd %s%s\n", attn_version(), main_commit);
    else
        exit_code = command_runs[command](&config, &files);

    /* A server goes on without its one line, and health replies by its exit code. */
    bool is_text = config.help || config.man || config.version ||
                   (command != COMMAND_SERVE && command != COMMAND_HEALTH);
    if (is_text)
        exit_code = finish_output(exit_code);

    config_texts_deinit(&files);
    config_deinit(&config);
    return exit_code;
}
