/* SPDX-License-Identifier: Apache-2.0 */
/* handshakes.h: which connections of one HTTP thread may do a TLS handshake now.
 *
 * libmicrohttpd tries every handshake that has begun in each of its runs, also when no
 * byte has arrived. So handshakes that hang would delay all other connections. Therefore
 * one begins when its first bytes are there, few run at a time, and fewer of one client;
 * the others wait outside libmicrohttpd, where they cost nothing. The newest runs first:
 * it has waited least, so its client is most likely to be there still, and those that
 * came in large numbers before cannot hold it up. Over plain HTTP a connection without a
 * request costs nothing either, so there is no such limit.
 *
 * Everything belongs to the HTTP thread. */
#pragma once

#include "http/net/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define HANDSHAKES_MAX        128
#define HANDSHAKES_PER_CLIENT 32

enum handshake_state {
    HANDSHAKE_NONE,    /* no TLS, or complete */
    HANDSHAKE_WATCHED, /* no byte of it has arrived */
    HANDSHAKE_WAITS,   /* for others to end */
    HANDSHAKE_RUNS,    /* libmicrohttpd has its connection */
    HANDSHAKE_ENDS     /* as well, but is about to close it */
};

/* A member of a connection. */
struct handshake {
    enum handshake_state state;
    LIST_ENTRY(handshake) links; /* of those that wait, or of those that run */
    const struct client *client;
    int fd;
    void *session;    /* gnutls_session_t of libmicrohttpd; NULL: no TLS, or not begun */
    int64_t since;    /* clock_now_ns, when it began to run */
    bool established; /* the client has finished it; set through a pointer */
};

/* Zeroed but for epoll_fd, there are none. */
struct handshakes {
    int epoll_fd; /* the thread's; says for a struct handshake that bytes have arrived */
    LIST_HEAD(, handshake) running; /* HANDSHAKE_RUNS or _ENDS, the last to begin first */
    LIST_HEAD(, handshake) waiting; /* HANDSHAKE_WAITS, newest first */
    size_t num_running, num_ending, num_waiting;
    bool has_room; /* one has ended since handshakes_take() found none that may run */
};

/* Lets a handshake wait for its first bytes. `client` and `fd` are set. */
void handshakes_add(struct handshakes *handshakes, struct handshake *handshake);

/* Notes that the first bytes of one that is watched have arrived. */
void handshakes_note_bytes(struct handshakes *handshakes, struct handshake *handshake);

/* Lets one that waits run: the newest of a client that does not run as many as it
 * may. Returns NULL when there is none, or too many run. Then as many of those that run
 * the longest end as wait: after 0.7 s when HANDSHAKES_MAX run, else after two seconds.
 * So does one that came in very many records; libmicrohttpd closes them. */
struct handshake *handshakes_take(struct handshakes *handshakes);

/* Removes a handshake, whatever its state. */
void handshakes_remove(struct handshakes *handshakes, struct handshake *handshake);
