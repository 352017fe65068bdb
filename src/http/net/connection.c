/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c: connections of a thread, and their deadlines. */
#include "http/net/connection.h"

#include "base/clock.h"
#include "http/log/trace.h"
#include "http/net/address.h"
#include "tls/session.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS ((int64_t)1000000000)
/* When bytes are unread that libmicrohttpd may read at its next run. */
#define LOOK_AGAIN_NS (SECOND_NS / 10)
/* A thread that does not look at its connections for this long did not run. */
#define PAUSE_NS (3 * SECOND_NS)
/* How long a client may read nothing while memory is short. */
#define STALLED_NS (2 * SECOND_NS)
/* While memory is short, replies should be read so fast that what their client holds
 * would be free after this time. */
#define HOLD_SECONDS 60.0
#define REPLY_SIZE   1024 /* bytes of a 408, more than it has */

/* --- ending connections --- */

/* Sends bytes past libmicrohttpd, and that they are the last. A client that does not read
 * gets none. */
static void send_last(const struct connection *connection, const char *data,
                      size_t size) {
    if (connection->handshake.session != NULL) {
        tls_session_send_last(connection->handshake.session, data, size);
    } else {
        ssize_t sent = send(connection->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent; /* the connection ends anyway */
    }
    shutdown(connection->fd, SHUT_WR);
}

/* Sends a reply past libmicrohttpd, which has sent none yet, and nothing more. */
static void send_timeout_reply(const struct connection *connection, const char *detail) {
    const char *id = connection->request_id;
    bool has_id = id != NULL && *id != '\0';
    struct wire_problem problem;
    struct buf body;
    char reply[REPLY_SIZE];

    buf_init(&body, REPLY_SIZE);
    wire_problem_set(&problem, WIRE_E_REQUEST_TIMEOUT, NULL, "%s", detail);
    wire_problem_print(&problem, &body);
    if (body.status == ATTN_OK) {
        int size =
            snprintf(reply, sizeof reply,
                     "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                     "%s%s%sConnection: close\r\n\r\n%.*s",
                     problem.status, problem.title, wire_problem_format.content_type,
                     body.size, has_id ? TRACE_ID_HEADER ": " : "", has_id ? id : "",
                     has_id ? "\r\n" : "", (int)body.size, body.data);
        send_last(connection, reply, (size_t)size);
    }
    buf_deinit(&body);
}

static bool get_tcp_info(const struct connection *connection, struct tcp_info *ret_info) {
    socklen_t size = sizeof *ret_info;
    *ret_info = (struct tcp_info){0};
    return getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, ret_info, &size) == 0;
}

void connection_destroy(struct connection *connection) {
    struct connection_list *list = connection->list;

    if (connection->phase == CONNECTION_IS_NEW)
        list->num_new--;
    handshakes_remove(&list->handshakes, &connection->handshake);
    LIST_REMOVE(connection, links);
    if (connection->holder != NULL) {
        connection_share(connection)->num_places--;
        list->num_places--;
        atomic_fetch_sub(&list->limits->num_connections, 1);
        atomic_fetch_sub(&list->places->num_taken, 1);
    }
    client_release(&list->limits->clients, connection->client);
    tls_certificate_release(connection->certificate);
    free(connection);
}

void connection_end(struct connection *connection) {
    if (connection->phase != CONNECTION_IS_HELD) {
        shutdown(connection->fd, SHUT_RDWR);
        return;
    }
    int fd = connection->fd;
    connection_destroy(connection); /* ends the watch, which needs the descriptor */
    close(fd);
}

/* Whether bytes of a request have arrived before its line was complete. At a Unix socket
 * nothing tells, and a client that has sent nothing yet must not take a 408 for the reply
 * to what it sends next. */
static bool has_received(const struct connection *connection) {
    struct tcp_info info;
    if (connection->handshake.session != NULL)
        return connection->handshake.established &&
               tls_session_has_received(connection->handshake.session);
    return get_tcp_info(connection, &info) && info.tcpi_bytes_received > 0;
}

/* Ends a connection that took too long. One that is still sending gets a 408, and a
 * second to read it: bytes that arrive after the socket is closed would discard it. One
 * that has not finished its TLS handshake can get no reply. */
static void end_late_connection(struct connection *connection, int64_t now) {
    const char *detail = NULL;

    if (connection->phase == CONNECTION_HEADERS)
        detail = "the headers took longer than --header-timeout; send them at once";
    else if (connection->phase == CONNECTION_BODY)
        detail = "the body arrived more slowly than --min-rate, or paused for "
                 "--idle-timeout; send it faster";
    else if (connection->phase == CONNECTION_WAITS && !connection->served &&
             has_received(connection))
        detail = "the request line took longer than --header-timeout; send it at once";

    if (detail == NULL) {
        connection_end(connection);
        return;
    }
    send_timeout_reply(connection, detail);
    connection->cut_at = now;
}

/* --- accepted connections --- */

struct connection *connection_create(struct connection_list *list, int fd,
                                     const struct sockaddr *peer) {
    const struct address address = address_of_peer(fd, peer);
    struct connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return NULL;

    connection->list = list;
    connection->fd = connection->handshake.fd = fd;
    connection->is_proxy =
        address_is_in(&address, list->limits->options->trusted_proxies);
    connection->client = client_acquire(&list->limits->clients, &address, NULL);
    if (connection->client == NULL) {
        free(connection);
        return NULL;
    }

    connection_begin_phase(connection, CONNECTION_IS_NEW);
    LIST_INSERT_HEAD(&list->all, connection, links);
    return connection;
}

/* --- TLS handshakes --- */

void connection_hold(struct connection *connection) {
    connection_begin_phase(connection, CONNECTION_IS_HELD);
    connection->handshake.client = connection->client;
    handshakes_add(&connection->list->handshakes, &connection->handshake);
}

struct connection *connection_take_held(struct connection_list *list) {
    struct connection *connection =
        (struct connection *)handshakes_take(&list->handshakes);
    if (connection != NULL)
        connection_begin_phase(connection, CONNECTION_IS_NEW);
    return connection;
}

/* --- what libmicrohttpd does with them --- */

/* Returns the newest that is new and has this number: another one was closed without a
 * word. */
static struct connection *find_new(const struct connection_list *list, int fd) {
    struct connection *each;
    LIST_FOREACH(each, &list->all, links) {
        if (each->phase == CONNECTION_IS_NEW && each->fd == fd)
            break;
    }
    return each;
}

struct connection *connection_start(struct connection_list *list, int fd) {
    struct connection *connection = find_new(list, fd);
    connection_begin_phase(connection, CONNECTION_WAITS);
    return connection;
}

void connection_forget(struct connection_list *list, int fd) {
    struct connection *connection = find_new(list, fd);
    if (connection != NULL)
        connection_destroy(connection);
}

void connection_forget_new(struct connection_list *list) {
    struct connection *next;
    for (struct connection *each = LIST_FIRST(&list->all); list->num_new > 0;
         each = next) {
        next = LIST_NEXT(each, links);
        if (each->phase == CONNECTION_IS_NEW)
            connection_destroy(each);
    }
}

void connection_end_held(struct connection_list *list) {
    for (struct connection *each = LIST_FIRST(&list->all), *next; each != NULL;
         each = next) {
        next = LIST_NEXT(each, links);
        if (each->phase == CONNECTION_IS_HELD)
            connection_end(each);
    }
}

struct client_share *connection_share(const struct connection *connection) {
    return &connection->holder->shares[connection->list->index];
}

void connection_set_holder(struct connection *connection, struct client *holder) {
    if (connection->holder == NULL || connection->holder == holder)
        return;
    connection_share(connection)->num_places--;
    connection->holder = holder;
    connection_share(connection)->num_places++;
}

/* --- time --- */

static const struct config *get_config(const struct connection *connection) {
    return connection->list->limits->options->config;
}

/* How long the replies were read, and how much of them, since they were first looked
 * at. */
static int64_t get_reply_ns(const struct connection *connection, int64_t now) {
    return connection->reply_ns + now - connection->since;
}

static uint64_t get_reply_bytes(const struct connection *connection) {
    return connection->acked - connection->reply_acked;
}

void connection_begin_phase(struct connection *connection, enum connection_phase phase) {
    int64_t now = clock_now_ns();

    if (connection->phase == CONNECTION_REPLIES)
        connection->reply_ns = get_reply_ns(connection, now);
    connection->list->num_new += phase == CONNECTION_IS_NEW;
    connection->list->num_new -= connection->phase == CONNECTION_IS_NEW;
    connection->phase = phase;
    connection->since = now;
    connection->received = 0;
    connection->moved_at = now;
    if (phase == CONNECTION_HEADERS)
        connection->served = true;
}

double connection_time_of_byte(const struct connection *connection, int64_t now) {
    if (!connection->reply_seen)
        return 0;
    return (double)get_reply_ns(connection, now) /
           ((double)get_reply_bytes(connection) + 1);
}

void connection_count_received(struct connection *connection, size_t bytes) {
    connection->received += bytes;
    connection->moved_at = clock_now_ns();
}

/* How much a reply holds up others: what its client holds, by the time for each byte that
 * was read. Returns 0 during --header-timeout, and when it is read fast enough. */
static double find_hold(const struct connection *connection, int64_t now) {
    if (connection->phase != CONNECTION_REPLIES || !connection->reply_seen ||
        connection->request == NULL || atomic_load(&connection->request->bytes) == 0)
        return 0;

    double grace = (double)get_config(connection)->header_timeout;
    double seconds = (double)get_reply_ns(connection, now) / (double)SECOND_NS;
    double bytes = (double)get_reply_bytes(connection);
    double held = (double)atomic_load(&connection->request->client->held);
    if (seconds < grace || bytes >= (seconds - grace) * held / HOLD_SECONDS)
        return 0;
    return seconds / (bytes + 1) * held;
}

/* Whether a body or reply is too slow: `bytes` are too few for the time that it took, or
 * none has moved for long. */
static bool is_too_slow(const struct connection *connection, uint64_t bytes, int64_t ns,
                        int64_t now) {
    const struct config *config = get_config(connection);
    int64_t late = ns - (int64_t)config->header_timeout * SECOND_NS;

    if (now - connection->moved_at > (int64_t)config->idle_timeout * SECOND_NS)
        return true;
    return late > 0 &&
           (double)bytes < (double)late / (double)SECOND_NS * (double)config->min_rate;
}

/* Whether bytes have arrived that libmicrohttpd has not read. */
static bool has_unread_bytes(const struct connection *connection) {
    int bytes = 0;
    return ioctl(connection->fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

/* Finds how many bytes the peer has confirmed. At a Unix socket it is what was sent, but
 * for what the kernel holds, which counts its own overhead. Up to 64 KiB that
 * libmicrohttpd holds may count as read. Returns false when the kernel does not say. */
static bool find_acked(const struct connection *connection, uint64_t *ret_acked) {
    struct tcp_info info;
    int queued = 0;

    if (get_tcp_info(connection, &info)) {
        *ret_acked = info.tcpi_bytes_acked;
        return true;
    }
    if (ioctl(connection->fd, SIOCOUTQ, &queued) != 0)
        return false;
    uint64_t held = (uint64_t)queued;
    *ret_acked = connection->sent > held + connection->acked ? connection->sent - held
                                                             : connection->acked;
    return true;
}

/* Looks at what the peer has confirmed of a reply. Returns whether it reads too slowly,
 * or, while memory is short, not at all. */
static bool reads_too_slowly(struct connection *connection, int64_t now) {
    struct memory *memory = &connection->list->limits->memory;
    uint64_t acked;
    if (!find_acked(connection, &acked))
        return false;

    if (acked != connection->acked)
        connection->moved_at = now;
    connection->acked = acked;
    if (!connection->reply_seen) {
        connection->reply_seen = true;
        connection->reply_ns = 0;
        connection->reply_acked = connection->acked;
        connection->since = now;
    }
    if (is_too_slow(connection, get_reply_bytes(connection),
                    get_reply_ns(connection, now), now))
        return true;
    return now - connection->moved_at > STALLED_NS && connection->request != NULL &&
           atomic_load(&connection->request->bytes) > 0 &&
           memory_lacked_since(memory, now - 2 * SECOND_NS);
}

static bool is_late(struct connection *connection, int64_t now) {
    const struct config *config = get_config(connection);
    int64_t elapsed = now - connection->since;

    if (connection->phase < CONNECTION_WORKS)
        connection->reply_seen = false; /* its client has read the replies before */
    switch (connection->phase) {
    case CONNECTION_IS_HELD: /* once its bytes are there, it waits for others */
        return connection->handshake.state == HANDSHAKE_WATCHED &&
               elapsed > (int64_t)config->header_timeout * SECOND_NS;
    case CONNECTION_IS_NEW:
    case CONNECTION_WAITS:
        return elapsed > SECOND_NS * (int64_t)(connection->served
                                                   ? config->idle_timeout
                                                   : config->header_timeout);
    case CONNECTION_HEADERS:
        return elapsed > (int64_t)config->header_timeout * SECOND_NS;
    case CONNECTION_BODY:
        return is_too_slow(connection, connection->received, elapsed, now);
    case CONNECTION_REPLIES:
        return reads_too_slowly(connection, now);
    case CONNECTION_WORKS:
        break;
    }
    return false;
}

bool connection_any_is_young(const struct connection_list *list) {
    int64_t now = clock_now_ns();
    const struct connection *each;
    LIST_FOREACH(each, &list->all, links) {
        if (each->phase <= CONNECTION_WAITS && !each->served && !each->hung_up &&
            now - each->since < SECOND_NS)
            return true;
    }
    return false;
}

/* Whether libmicrohttpd will never do anything with the connection. 0.9.75 waits for ever
 * for room in its buffer when the extension of a chunk is too large: it then leaves bytes
 * unread from one look to the next. And it overlooks a peer that leaves at the moment
 * when its last bytes are read. */
static bool is_stuck(struct connection *connection) {
    bool was_unread = connection->unread;

    connection->unread = connection->phase == CONNECTION_BODY &&
                         connection->moved_at < connection->list->swept &&
                         has_unread_bytes(connection);
    if (connection->hung_up)
        return connection->phase <= CONNECTION_BODY && !has_unread_bytes(connection);
    return was_unread && connection->unread;
}

/* Moves a start time forward, so that a pause of this thread, from `pause` to `now`,
 * counts as one second: it is not the fault of a client. */
static void forgive_pause(int64_t *start, int64_t pause, int64_t now) {
    int64_t counted_from = *start > pause ? *start : pause;
    if (now - counted_from > SECOND_NS)
        *start += now - counted_from - SECOND_NS;
}

void connection_sweep(struct connection_list *list) {
    int64_t now = clock_now_ns();
    int64_t passed = now - list->swept;
    struct connection *slowest = NULL;
    double largest = 0;
    bool looks_again = false;
    if (passed < SECOND_NS)
        return;

    for (struct connection *each = LIST_FIRST(&list->all), *next; each != NULL;
         each = next) {
        next = LIST_NEXT(each, links);
        if (passed > PAUSE_NS) {
            forgive_pause(&each->since, list->swept, now);
            forgive_pause(&each->moved_at, list->swept, now);
        }
        bool over =
            is_stuck(each) || (each->cut_at != 0 && now - each->cut_at > SECOND_NS);
        bool late = !over && each->cut_at == 0 && is_late(each, now);
        looks_again |= each->unread;
        double hold = find_hold(each, now);

        if (over) {
            connection_end(each); /* may free it */
            continue;
        }
        if (late)
            end_late_connection(each, now); /* may free it, too */
        else if (hold > largest) {
            largest = hold;
            slowest = each;
        }
    }
    if (slowest != NULL &&
        memory_lacked_since(&list->limits->memory, now - 2 * SECOND_NS))
        connection_end(slowest);
    list->swept = looks_again ? now - SECOND_NS + LOOK_AGAIN_NS : now;
}
