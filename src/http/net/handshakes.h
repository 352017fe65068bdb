/* SPDX-License-Identifier: Apache-2.0 */
/* handshakes.h: which connections of one HTTP thread may do a TLS handshake now.
 *
 * libmicrohttpd tries every handshake that has begun in each of its runs, also when no
 * byte has arrived. So handshakes that hang would delay all other connections. Therefore
 * few run at a time, and fewer of one client; the others wait outside libmicrohttpd,
 * where they cost nothing. Over plain HTTP a connection without a request costs nothing
 * either, so there is no such limit.
 *
 * Everything belongs to the HTTP thread. */
#ifndef ATTND_HTTP_NET_HANDSHAKES_H
#define ATTND_HTTP_NET_HANDSHAKES_H

#include "http/net/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HANDSHAKES_MAX        128
#define HANDSHAKES_PER_CLIENT 32

/* A member of a connection; zeroed, it neither waits nor runs. */
struct handshake {
    struct handshake *previous, *next; /* while it waits; `previous` is older */
    const struct client *client;
    int fd;
    int64_t since;    /* clock_now_ns, when it began to wait or to run */
    bool waits;       /* libmicrohttpd does not have its connection yet */
    bool established; /* complete; set through a pointer */
};

/* Zeroed, there are none. */
struct handshakes {
    struct handshake *running[HANDSHAKES_MAX];
    size_t num_running;
    struct handshake *oldest, *newest; /* of those that wait */
    const struct handshake *ended;     /* one that runs until libmicrohttpd closes it */
    bool has_room; /* one has ended since handshakes_take() found none that may run */
};

/* Lets a handshake run, if there is room, or wait. `client` and `fd` are set. */
void handshakes_add(struct handshakes *handshakes, struct handshake *handshake);

/* Lets one run that waited: the oldest, of the client that has fewest. Returns NULL when
 * none waits or may run. If one waits then, one that takes longer than two seconds ends,
 * of the client that has most; libmicrohttpd closes it. */
struct handshake *handshakes_take(struct handshakes *handshakes);

/* Removes a handshake, if it waits or runs. */
void handshakes_remove(struct handshakes *handshakes, struct handshake *handshake);

#endif
