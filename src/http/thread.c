/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c: the loop of an HTTP thread.
 *
 * In libmicrohttpd's external epoll mode, MHD_resume_connection() from another thread
 * does not wake MHD_run_wait(). So each thread waits on an epoll of its own, which
 * watches the daemon's epoll and an eventfd. A worker resumes a connection and then
 * writes to the eventfd, unless that was done already. No lock is needed: `woken` is
 * cleared before the daemon runs, so a connection that is resumed later wakes the thread
 * again. */
#include "http/thread.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* What libmicrohttpd allocates for a connection: headers, and what it has read of a
 * body. */
#define CONNECTION_BYTES ((size_t)64 * 1024)
/* How long replies may still be sent after the deadline. */
#define LAST_REPLIES_NS 500000000
/* A thread that drains ends when nothing has arrived for this long. */
#define QUIET_MS 20

void http_thread_wake(struct http_thread *thread) {
    if (atomic_exchange(&thread->woken, true))
        return;
    uint64_t one = 1;
    ssize_t written = write(thread->wake_fd, &one, sizeof one);
    (void)written; /* cannot fail: the counter is 0 or 1 */
}

/* Stops accepting. Runs on the daemon's own thread, because libmicrohttpd may abort on
 * any other. What the kernel has accepted already is still served. */
static void stop_accepting(struct http_thread *thread) {
    thread->quiesced = true;
    int listen_fd = MHD_quiesce_daemon(thread->daemon);
    if (listen_fd < 0)
        return;

    struct sockaddr_storage address;
    for (;;) {
        socklen_t length = sizeof address;
        int fd = accept4(listen_fd, (struct sockaddr *)&address, &length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            break;
        if (MHD_add_connection(thread->daemon, fd, (struct sockaddr *)&address, length) !=
            MHD_YES)
            log_write(LOG_WARN, "connection dropped while stopping",
                      LOG_TEXT("reason", strerror(errno)));
    }
    close(listen_fd);
}

/* Returns how long to wait for events in milliseconds; -1 for no limit. */
static int find_wait_ms(struct http_thread *thread) {
    MHD_UNSIGNED_LONG_LONG timeout;
    int ms = -1;

    if (MHD_get_timeout(thread->daemon, &timeout) == MHD_YES)
        ms = timeout > INT_MAX ? INT_MAX : (int)timeout;
    if (thread->quiesced && (ms < 0 || ms > QUIET_MS))
        ms = QUIET_MS;
    return ms;
}

/* Whether the thread may end: it drains, and all is done or time is up. While a
 * connection is suspended it may not, since stopping the daemon would then abort the
 * process. */
static bool may_end(const struct http_thread *thread, bool quiet) {
    if (!thread->quiesced || thread->num_suspended > 0 ||
        atomic_load(&thread->num_with_workers) > 0)
        return false;

    int64_t late = clock_now_ns() - *thread->deadline;
    return (quiet && thread->num_exchanges == 0) ||
           (late > 0 && thread->num_accepted == 0) || http_thread_time_is_up(thread);
}

bool http_thread_time_is_up(const struct http_thread *thread) {
    return atomic_load(thread->draining) &&
           clock_now_ns() - *thread->deadline > LAST_REPLIES_NS;
}

bool http_thread_replied_to_all(const struct http_thread *thread) {
    return thread->num_accepted == 0 && !thread->cut_off;
}

static void *thread_main(void *argument) {
    struct http_thread *thread = argument;
    bool quiet = false; /* while draining: the last wait ended without an event */

    while (!may_end(thread, quiet)) {
        struct epoll_event events[2];
        int ms = find_wait_ms(thread);
        int count = epoll_wait(thread->epoll_fd, events, 2, ms);
        quiet = count == 0 && thread->quiesced && ms == QUIET_MS;
        for (int i = 0; i < count; i++) {
            uint64_t times;
            if (events[i].data.fd == thread->wake_fd &&
                read(thread->wake_fd, &times, sizeof times) == sizeof times)
                atomic_store(&thread->woken, false);
        }

        if (atomic_load(thread->draining) && !thread->quiesced)
            stop_accepting(thread);
        MHD_run_wait(thread->daemon, 0);
    }

    /* MHD_stop_daemon() completes the exchanges that are left, which counts num_accepted
     * down. They got no reply, so http_thread_replied_to_all() needs the count from
     * before. */
    size_t num_without_reply = thread->num_accepted;
    MHD_stop_daemon(thread->daemon);
    thread->num_accepted = num_without_reply;
    return NULL;
}

/* Logs libmicrohttpd's own messages, most of them about clients that went away. */
__attribute__((format(printf, 2, 0))) static void log_mhd(void *cls, const char *format,
                                                          va_list args) {
    char text[256];
    (void)cls;

    if (!log_enabled(LOG_DEBUG))
        return;
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    log_write(LOG_DEBUG, "libmicrohttpd", LOG_TEXT("text", text));
}

/* Leaves paths as they are sent: no route needs an escape, and no route matches a path
 * with "%2e" or "%00" in it. */
static size_t keep_path_escapes(void *cls, struct MHD_Connection *connection,
                                char *text) {
    (void)cls;
    (void)connection;
    return strlen(text);
}

static struct MHD_Daemon *start_mhd_daemon(struct http_thread *thread, int listen_fd) {
    const struct http_options *options = thread->options;
    size_t limit =
        (options->max_connections + options->num_threads - 1) / options->num_threads;

    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ITC | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, thread->callbacks.handle, thread, MHD_OPTION_EXTERNAL_LOGGER, log_mhd,
        NULL, MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)limit, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)options->idle_timeout,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, keep_path_escapes,
        NULL, MHD_OPTION_NOTIFY_COMPLETED, thread->callbacks.completed, thread,
        MHD_OPTION_END);
}

static bool watch_fd(int epoll_fd, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

attn_status http_thread_start(struct http_thread *thread, int listen_fd) {
    attn_status status;

    errno = 0; /* libmicrohttpd leaves that of the call that failed */
    thread->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    thread->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_init(&thread->woken, false);
    atomic_init(&thread->num_with_workers, 0);

    thread->daemon = start_mhd_daemon(thread, listen_fd);
    if (thread->daemon == NULL) {
        close(listen_fd);
        goto fail;
    }

    int daemon_fd =
        MHD_get_daemon_info(thread->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    if (thread->epoll_fd < 0 || thread->wake_fd < 0 ||
        !watch_fd(thread->epoll_fd, daemon_fd) ||
        !watch_fd(thread->epoll_fd, thread->wake_fd) ||
        pthread_create(&thread->id, NULL, thread_main, thread) != 0) {
        MHD_stop_daemon(thread->daemon);
        goto fail;
    }
    return ATTN_OK;

fail:
    status = errno == EMFILE || errno == ENFILE ? ATTN_E_IO : ATTN_E_NOMEM;
    http_thread_deinit(thread);
    return status;
}

void http_thread_deinit(struct http_thread *thread) {
    if (thread->epoll_fd >= 0)
        close(thread->epoll_fd);
    if (thread->wake_fd >= 0)
        close(thread->wake_fd);
    thread->epoll_fd = thread->wake_fd = -1;
}
