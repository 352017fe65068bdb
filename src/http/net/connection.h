/* SPDX-License-Identifier: Apache-2.0 */
/* connection.h: the connections of one HTTP thread, and how long each may take.
 *
 * A connection is used by its HTTP thread alone; only the counts that all threads share
 * are atomic. libmicrohttpd owns the socket. It could limit idle time alone, and does not
 * see that a peer reads what the kernel holds. So all deadlines are here. They are looked
 * at once a second, and a connection is ended by shutdown(2), which libmicrohttpd
 * notices. */
#pragma once

#include "http/net/client.h"
#include "http/net/framing.h"
#include "http/net/handshakes.h"
#include "http/net/memory.h"
#include "http/options.h"
#include "tls/certificate.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct exchange;

enum connection_phase {
    CONNECTION_IS_HELD, /* until its TLS handshake may begin: outside libmicrohttpd */
    CONNECTION_IS_NEW,  /* libmicrohttpd has not begun to serve it */
    CONNECTION_WAITS,   /* no byte of a request line was seen */
    CONNECTION_HEADERS, /* the request line was read */
    CONNECTION_BODY,    /* the headers were read */
    CONNECTION_WORKS,   /* the request is complete; its job waits or runs */
    CONNECTION_REPLIES
};

/* Shared by the connections of all threads; owned by the server. */
struct connection_limits {
    const struct http_options *options;
    size_t max_connections; /* at all sockets */
    atomic_size_t num_connections;
    struct memory memory;
    struct client_table clients;
};

/* Shared by the threads that accept at one address. */
struct connection_places {
    size_t max;
    atomic_size_t num_taken;
};

struct connection_list {
    struct connection_limits *limits;
    struct connection_places *places;
    size_t max_places, num_places; /* of this thread */
    size_t index;                  /* of its thread, among those that share the limits */
    LIST_HEAD(, connection) all;   /* newest first */
    size_t num_new;                /* connections in CONNECTION_IS_NEW */
    int64_t swept;                 /* clock_now_ns */
    struct handshakes handshakes;
};

struct connection {
    struct handshake handshake;   /* the first member, so one pointer gives the other */
    LIST_ENTRY(connection) links; /* in list.all */
    struct connection_list *list;
    int fd;
    struct client *client; /* the peer's */
    /* The client of the present request, which holds its place. NULL: none; see
     * places.h. */
    struct client *holder;
    struct tls_certificate *certificate; /* that the peer was shown; NULL: no TLS */
    struct framing_target target;        /* of the present request */
    struct exchange *exchange; /* of the present request, or NULL; for its owner alone */
    /* The memory of the present request, or NULL. */
    const struct memory_share *request;
    const char *request_id; /* of the present request, or NULL */
    enum connection_phase phase;
    int64_t since;    /* clock_now_ns, when the phase began */
    size_t received;  /* CONNECTION_BODY: bytes */
    bool unread;      /* CONNECTION_BODY: bytes had arrived at the last look */
    int64_t moved_at; /* clock_now_ns, when bytes last moved */
    uint64_t sent;    /* bytes of replies that libmicrohttpd got */
    uint64_t acked;   /* bytes that the peer had confirmed at the last look */
    /* Of all replies since the last look that found the connection waiting for its
     * client, which gets the time of one reply for all requests that it pipelines. Time
     * and bytes count from the first look, which costs each small reply no call. */
    bool reply_seen;      /* one was looked at */
    int64_t reply_ns;     /* how long earlier replies and pieces were read */
    uint64_t reply_acked; /* `acked` at the first look */
    bool is_proxy;        /* the peer is a trusted proxy, so others are its clients */
    bool served;          /* has had a request */
    bool hung_up;         /* the peer will send no more */
    int64_t cut_at;       /* when it was told that it took too long; 0: it was not */
};

/* Makes a connection of an accepted socket, without a place. Returns NULL when memory is
 * short. */
struct connection *connection_create(struct connection_list *list, int fd,
                                     const struct sockaddr *peer);

/* Holds a new connection until its TLS handshake may begin: its first bytes have arrived,
 * and not too many others run. */
void connection_hold(struct connection *connection);

/* Returns a connection that was held and may now go to libmicrohttpd; NULL: none. Call it
 * until then after libmicrohttpd has run. */
struct connection *connection_take_held(struct connection_list *list);

/* Finds the connection of a socket that libmicrohttpd begins to serve: at once (0.9.75)
 * or when it runs (1.0.1). */
struct connection *connection_start(struct connection_list *list, int fd);

/* Frees the connection of a socket that libmicrohttpd has refused and closed, unless it
 * has said so. */
void connection_forget(struct connection_list *list, int fd);

/* Frees those that are new although libmicrohttpd has run: it has closed them without a
 * word. The newest come first, so it does not look at all others. */
void connection_forget_new(struct connection_list *list);

/* Frees those that are held, with their sockets. */
void connection_end_held(struct connection_list *list);

/* Frees the connection, but not its socket. */
void connection_destroy(struct connection *connection);

/* Ends the connection at once: libmicrohttpd sees an error and closes it. One that
 * libmicrohttpd does not have yet is freed. */
void connection_end(struct connection *connection);

/* Returns what the holder of the connection has of its thread. */
struct client_share *connection_share(const struct connection *connection);

/* Lets another client hold the place of the connection, if it still has one. The client
 * exists until it no longer does. */
void connection_set_holder(struct connection *connection, struct client *holder);

void connection_begin_phase(struct connection *connection, enum connection_phase phase);

/* Counts bytes of a body. */
void connection_count_received(struct connection *connection, size_t bytes);

/* Returns how long each byte of its replies takes to be read, in nanoseconds: 0 before
 * the first look at them. */
double connection_time_of_byte(const struct connection *connection, int64_t now);

/* Whether a connection of less than a second has had no request: it may be on its way. */
bool connection_any_is_young(const struct connection_list *list);

/* Ends every connection that has taken too long. While memory is short, also ends one
 * whose reply would hold memory for long because it is read slowly: the slowest, weighted
 * by what its client holds. Does nothing when the last time was less than a second
 * ago. */
void connection_sweep(struct connection_list *list);
