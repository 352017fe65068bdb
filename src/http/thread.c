/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c: the loop of an HTTP thread.
 *
 * In libmicrohttpd's external epoll mode, MHD_resume_connection() from another thread
 * does not wake MHD_run_wait(). So each thread waits on an epoll of its own, which
 * watches the daemon's epoll, the listening socket and an eventfd. A worker resumes a
 * connection and then writes to the eventfd, unless that was done already. No lock is
 * needed: `woken` is cleared before the daemon runs, so a connection that is resumed
 * later wakes the thread again. */
#include "http/thread.h"

#include "base/clock.h"
#include "base/log.h"
#include "http/metrics/metrics.h"
#include "http/net/framing.h"
#include "http/net/places.h"
#include "tls/session.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long replies may still be sent after the deadline. */
#define LAST_REPLIES_NS 500000000
/* A thread that drains ends when nothing has arrived for this long. */
#define QUIET_MS 20
/* The longest wait for events. */
#define WAIT_MS_MAX 1000
/* Connections that are accepted before others are served. */
#define ACCEPT_MAX 32
/* Events that are taken at one time. */
#define EVENTS_MAX 64
/* Runs of the daemon without an event or a call, before the thread pauses between them.
 * Large replies that are in memory need some. */
#define EMPTY_RUNS_MAX 64
/* The pause after as many more over TLS: the daemon asks for runs without end while a
 * handshake has begun and is not complete. So a thread that drains counts it as quiet. */
#define HANDSHAKE_MS QUIET_MS
/* How often a refusal to accept is logged, at most. */
#define LOG_AGAIN_NS 10000000000

void http_thread_wake(struct http_thread *thread) {
    if (atomic_exchange(&thread->woken, true))
        return;
    uint64_t one = 1;
    ssize_t written = write(thread->wake_fd, &one, sizeof one);
    (void)written; /* cannot fail: the counter is 0 or 1 */
}

/* --- accepting --- */

static bool watch(struct http_thread *thread, int fd, uint32_t events, void *what) {
    struct epoll_event event = {.events = events, .data.ptr = what};
    return epoll_ctl(thread->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Closing a descriptor ends its watch only when no other process has it: a debugger may,
 * or a child that something in the process has forked. */
static bool unwatch(struct http_thread *thread, int fd) {
    struct epoll_event ignored = {0};
    return epoll_ctl(thread->epoll_fd, EPOLL_CTL_DEL, fd, &ignored) == 0;
}

/* Watches the listening socket, or stops that: it stays readable while connections wait
 * that cannot be accepted now. */
static void set_listens(struct http_thread *thread, bool listens) {
    if (thread->listens == listens)
        return;
    if (listens)
        thread->listens = watch(thread, thread->listen_fd, EPOLLIN, &thread->listen_fd);
    else
        thread->listens = !unwatch(thread, thread->listen_fd);
}

static void log_refused_accept(struct http_thread *thread, const char *reason) {
    if (log_limit_add(&thread->refused, LOG_AGAIN_NS) == 0)
        return;
    log_write(LOG_WARN, "cannot accept connections", LOG_TEXT("reason", reason),
              LOG_NUMBER("connections",
                         atomic_load(&thread->connections.limits->num_connections)));
}

/* Whether accept4() failed for this one connection alone, and took it from those that
 * wait. EPERM does not: it is of a filter, which refuses every call. */
static bool is_lost_connection(int error) {
    return error == ECONNABORTED || error == EINTR || error == EPROTO ||
           (error >= ENETDOWN && error <= EHOSTUNREACH);
}

/* Whether a connection that ends lets accept4() work again. */
static bool is_exhausted(int error) {
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void hand_over(struct http_thread *thread, int fd, const struct sockaddr *peer,
                      socklen_t length) {
    if (MHD_add_connection(thread->daemon, fd, peer, length) == MHD_YES)
        return;
    log_refused_accept(thread, strerror(errno));
    connection_forget(&thread->connections, fd);
}

/* Hands an accepted socket to libmicrohttpd, or closes it when there is no place. Over
 * TLS it waits before that for its first bytes. */
static void add_connection(struct http_thread *thread, int fd,
                           const struct sockaddr *peer, socklen_t length) {
    struct connection *connection = connection_create(&thread->connections, fd, peer);

    if (connection == NULL) {
        close(fd);
        log_refused_accept(thread, strerror(ENOMEM));
    } else if (!place_take(connection)) {
        close(fd);
        connection_destroy(connection);
        log_refused_accept(thread,
                           "every connection of this HTTP thread has a request in "
                           "progress, and no client has more of them than this one; if "
                           "it is a proxy, name it with --trusted-proxy");
    } else if (thread->speaks_tls) {
        connection_hold(connection);
    } else {
        hand_over(thread, fd, peer, length);
    }
}

/* Lets those begin whose first bytes are there, as far as handshakes may run. */
static void add_held(struct http_thread *thread) {
    struct connection *connection;

    while ((connection = connection_take_held(&thread->connections)) != NULL) {
        /* libmicrohttpd only keeps the address. It is empty when the peer left. */
        struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
        struct sockaddr *peer = (struct sockaddr *)&address;
        socklen_t length = sizeof address;
        if (getpeername(connection->fd, peer, &length) != 0)
            length = sizeof address;
        hand_over(thread, connection->fd, peer, length);
    }
}

/* Accepts what waits, up to ACCEPT_MAX connections. libmicrohttpd does not accept by
 * itself: 0.9.75 stops that at its limit, and begins again only at the start of a later
 * run, which nothing may cause. Returns how many no longer wait. */
static size_t accept_waiting(struct http_thread *thread) {
    size_t count;

    for (count = 0; count < ACCEPT_MAX; count++) {
        struct sockaddr_storage address;
        struct sockaddr *peer = (struct sockaddr *)&address;
        socklen_t length = sizeof address;

        if ((thread->is_unix || thread->is_inherited) && !thread->quiesced &&
            place_is_elsewhere(&thread->connections)) {
            set_listens(thread, false); /* until the daemon has run */
            break;
        }
        int fd = accept4(thread->listen_fd, peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            add_connection(thread, fd, peer, length);
            continue;
        }

        int error = errno;
        if (is_lost_connection(error))
            continue;
        if (error != EAGAIN) {
            log_refused_accept(thread, strerror(error));
            set_listens(thread, false); /* until the daemon has run */
        }
        if (is_exhausted(error))
            place_end_one(&thread->connections);
        break;
    }
    return count;
}

/* Lets a new connection show the certificate of now, which it keeps. When that fails, the
 * connection ends: it would show the one of the start. */
static void begin_tls(struct http_thread *thread, struct MHD_Connection *connection,
                      struct connection *peer) {
    void *session =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)
            ->tls_session;
    peer->handshake.session = session;
    tls_session_watch(session, &peer->handshake.established);
    peer->certificate = secrets_acquire_certificate(thread->secrets);
    if (!tls_certificate_use(peer->certificate, session))
        shutdown(peer->fd, SHUT_RDWR);
}

/* Releases what belongs to a connection that libmicrohttpd closes. When 0.9.75 cannot
 * watch it any more, it does not say that its request has ended. */
static void end_connection(struct http_thread *thread, struct MHD_Connection *connection,
                           struct connection *peer) {
    void *exchange = peer->exchange;
    if (exchange != NULL)
        thread->callbacks.completed(thread, connection, &exchange,
                                    MHD_REQUEST_TERMINATED_WITH_ERROR);
    unwatch(thread, peer->fd);
    connection_destroy(peer);
}

/* MHD_NotifyConnectionCallback */
static void notice_connection(void *cls, struct MHD_Connection *connection,
                              void **socket_context,
                              enum MHD_ConnectionNotificationCode code) {
    struct http_thread *thread = cls;

    thread->num_calls++;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        end_connection(thread, connection, *socket_context);
        return;
    }
    int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)
                 ->connect_fd;
    *socket_context = connection_start(&thread->connections, fd);
    if (thread->speaks_tls)
        begin_tls(thread, connection, *socket_context);
    /* Without the watch a hang-up is noticed later. */
    watch(thread, fd, EPOLLRDHUP | EPOLLET, *socket_context);
}

/* MHD_OPTION_URI_LOG_CALLBACK: a request line was read. */
static void *notice_request(void *cls, const char *uri,
                            struct MHD_Connection *connection) {
    struct connection *peer =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
            ->socket_context;
    (void)cls;
    framing_note_target(&peer->target, uri);
    connection_begin_phase(peer, CONNECTION_HEADERS);
    return NULL; /* the first value of req_cls */
}

/* Stops accepting. What the kernel has accepted already is still served, by the next
 * process where the socket stays open. */
static void stop_accepting(struct http_thread *thread) {
    thread->quiesced = true;
    while (!thread->is_inherited && accept_waiting(thread) == ACCEPT_MAX)
        ;
    set_listens(thread, false);
    close(thread->listen_fd);
    thread->listen_fd = -1;
}

/* --- the loop --- */

/* Frees connections that the daemon has closed without a word. A run that is interrupted
 * leaves those that are new to the next one, for which the daemon then asks at once. */
static void forget_new(struct http_thread *thread) {
    MHD_UNSIGNED_LONG_LONG timeout;

    if (thread->connections.num_new > 0 &&
        (MHD_get_timeout(thread->daemon, &timeout) != MHD_YES || timeout > 0))
        connection_forget_new(&thread->connections);
}

/* Returns how long to wait for events in milliseconds. There is always a limit, so that
 * an event that is missed delays the thread and does not stop it. libmicrohttpd may ask
 * for one run after another while it does nothing; it then gets at most 1,000 runs a
 * second. */
static int find_wait_ms(struct http_thread *thread) {
    MHD_UNSIGNED_LONG_LONG timeout;
    int ms = thread->quiesced ? QUIET_MS : WAIT_MS_MAX;

    if (MHD_get_timeout(thread->daemon, &timeout) == MHD_YES &&
        timeout < (MHD_UNSIGNED_LONG_LONG)ms)
        ms = (int)timeout;
    thread->wants_run = ms == 0;
    if (ms == 0 && thread->num_empty_runs > EMPTY_RUNS_MAX)
        ms = 1;
    if (ms == 1 && thread->speaks_tls && thread->num_empty_runs / 2 > EMPTY_RUNS_MAX)
        ms = HANDSHAKE_MS;
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
    return (quiet && thread->num_exchanges == 0 &&
            !connection_any_is_young(&thread->connections)) ||
           (late > 0 && thread->num_accepted == 0) || http_thread_time_is_up(thread);
}

bool http_thread_time_is_up(const struct http_thread *thread) {
    return atomic_load(thread->draining) &&
           clock_now_ns() - *thread->deadline > LAST_REPLIES_NS;
}

/* A peer has sent the first bytes of its handshake, or has hung up. */
static void notice_peer(struct http_thread *thread, struct connection *connection) {
    if (connection->phase == CONNECTION_IS_HELD) {
        handshakes_note_bytes(&thread->connections.handshakes, &connection->handshake);
        return;
    }
    connection->hung_up = true;
    if (connection->exchange != NULL)
        thread->callbacks.client_left(connection->exchange);
}

/* Waits for events. Returns whether there were any; *ret_accepts: whether connections
 * wait to be accepted. */
static bool wait_for_events(struct http_thread *thread, int ms, bool *ret_accepts) {
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(thread->epoll_fd, events, EVENTS_MAX, ms);

    *ret_accepts = false;
    for (int i = 0; i < count; i++) {
        void *what = events[i].data.ptr;
        uint64_t times;
        if (what == &thread->listen_fd) {
            *ret_accepts = true;
        } else if (what == &thread->wake_fd) {
            if (read(thread->wake_fd, &times, sizeof times) == sizeof times)
                atomic_store(&thread->woken, false);
        } else if (what != &thread->daemon) {
            notice_peer(thread, what);
        }
    }
    return count > 0;
}

/* Waits, runs the daemon, and then accepts, since connections that have ended leave their
 * places. Returns whether there was an event. */
static bool run_once(struct http_thread *thread, int ms) {
    bool accepts;
    struct turn *turn;
    bool busy = wait_for_events(thread, ms, &accepts);
    atomic_fetch_add_explicit(&thread->num_rounds, 1, memory_order_relaxed);
    size_t num_calls = thread->num_calls;

    if (atomic_load(thread->draining) && !thread->quiesced)
        stop_accepting(thread);
    MHD_run_wait(thread->daemon, 0);
    turns_begin_round(&thread->turns);
    while ((turn = turns_give(&thread->turns)) != NULL)
        thread->callbacks.give_turn(turn); /* it is served in the next run */
    forget_new(thread);
    connection_sweep(&thread->connections);
    add_held(thread);
    metrics_warn_of_refusals(thread->metrics);
    if (!thread->quiesced)
        set_listens(thread, true);
    if (!thread->quiesced && accepts)
        accept_waiting(thread);

    bool empty = !busy && thread->wants_run && num_calls == thread->num_calls;
    thread->num_empty_runs = empty ? thread->num_empty_runs + 1 : 0;
    return busy;
}

static void *thread_main(void *argument) {
    struct http_thread *thread = argument;
    bool quiet = false; /* while draining: the last wait ended without an event */

    while (!may_end(thread, quiet)) {
        int ms = find_wait_ms(thread);
        quiet = !run_once(thread, ms) && thread->quiesced && ms == QUIET_MS;
    }

    /* MHD_stop_daemon() completes the exchanges that are left, which counts num_accepted
     * down. They got no reply, so http_server_replied_to_all() needs the count from
     * before. */
    size_t num_without_reply = thread->num_accepted;
    MHD_stop_daemon(thread->daemon);
    thread->num_accepted = num_without_reply;
    connection_end_held(&thread->connections);
    return NULL;
}

/* Logs libmicrohttpd's own messages, most of them about clients that went away. It
 * complains for each reply that a Unix socket has no options of TCP. */
__attribute__((format(printf, 2, 0))) static void log_mhd(void *cls, const char *format,
                                                          va_list args) {
    const struct http_thread *thread = cls;
    char text[256];

    if (!log_enabled(LOG_DEBUG))
        return;
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    bool about_tcp = strncmp(text, "Setting TCP_", strlen("Setting TCP_")) == 0 ||
                     strncmp(text, "Failed to push", strlen("Failed to push")) == 0;
    if (!thread->is_unix || !about_tcp)
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

/* Starts the thread's daemon. It gets no certificate: begin_tls() gives each connection
 * the newest one. Returns NULL when that fails. */
static struct MHD_Daemon *start_mhd_daemon(struct http_thread *thread) {
    static const char priorities[] =
        "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:-AES-128-CBC:-AES-256-CBC:"
        "%SERVER_PRECEDENCE"; /* with forward secrecy, and authenticated encryption */
    bool tls = !thread->is_unix && secrets_has_certificate(thread->secrets);
    struct MHD_OptionItem tls_options[] = {
        {tls ? MHD_OPTION_HTTPS_PRIORITIES : MHD_OPTION_END, 0,
         (void *)(uintptr_t)priorities},
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, tls_certificate_find_none()},
        {MHD_OPTION_END, 0, NULL}};

    thread->speaks_tls = tls;
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ITC | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
            MHD_USE_NO_LISTEN_SOCKET | (tls ? (unsigned)MHD_USE_TLS : 0),
        0, NULL, NULL, thread->callbacks.handle, thread, MHD_OPTION_EXTERNAL_LOGGER,
        log_mhd, thread, MHD_OPTION_CONNECTION_LIMIT, UINT_MAX,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, MEMORY_CONNECTION_POOL,
        MHD_OPTION_STRICT_FOR_CLIENT, framing_strictness(), MHD_OPTION_UNESCAPE_CALLBACK,
        keep_path_escapes, NULL, MHD_OPTION_URI_LOG_CALLBACK, notice_request, thread,
        MHD_OPTION_NOTIFY_CONNECTION, notice_connection, thread,
        MHD_OPTION_NOTIFY_COMPLETED, thread->callbacks.completed, thread,
        MHD_OPTION_ARRAY, tls_options, MHD_OPTION_END);
}

attn_status http_thread_start(struct http_thread *thread, int listen_fd) {
    attn_status status;

    errno = 0; /* libmicrohttpd leaves it as the call that failed has set it */
    thread->listen_fd = listen_fd;
    thread->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    thread->connections.handshakes.epoll_fd = thread->epoll_fd;
    TAILQ_INIT(&thread->turns.flows);
    thread->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    thread->daemon = start_mhd_daemon(thread);
    if (thread->daemon == NULL || thread->epoll_fd < 0 || thread->wake_fd < 0)
        goto fail;

    int daemon_fd =
        MHD_get_daemon_info(thread->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    set_listens(thread, true);
    if (!watch(thread, daemon_fd, EPOLLIN, &thread->daemon) ||
        !watch(thread, thread->wake_fd, EPOLLIN, &thread->wake_fd) || !thread->listens)
        goto fail;
    errno = pthread_create(&thread->id, NULL, thread_main, thread);
    if (errno == 0)
        return ATTN_OK;

fail:
    status =
        errno == EMFILE || errno == ENFILE || errno == EAGAIN ? ATTN_E_IO : ATTN_E_NOMEM;
    if (thread->daemon != NULL)
        MHD_stop_daemon(thread->daemon);
    http_thread_deinit(thread);
    return status;
}

static void close_if_open(int fd) {
    if (fd >= 0)
        close(fd);
}

void http_thread_deinit(struct http_thread *thread) {
    close_if_open(thread->epoll_fd);
    close_if_open(thread->wake_fd);
    close_if_open(thread->listen_fd);
}
