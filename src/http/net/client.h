/* SPDX-License-Identifier: Apache-2.0 */
/* http/net/client.h: whom connections and requests belong to.
 *
 * A client is an address, or a uid at a Unix socket: see address_of_client(). Where keys
 * are on, those who have one key's name are one owner, which has a share of turns and
 * workers. Each address that uses the name is another client, a member of that owner.
 *
 * Several HTTP threads may serve one client, so there is one table for all of them, with
 * a lock. A client lives while it has users: connections, requests that a proxy has
 * forwarded for it, and those with a key. It lives on while it has used more of the
 * workers than its share: a new connection for each request gains nothing. */
#pragma once

#include "base/log.h"
#include "http/net/address.h"
#include "http/net/api_keys.h"
#include "http/net/turns.h"
#include "obs/counter.h"
#include "sched/pool.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#define CLIENT_BUCKETS  1024
#define CLIENT_KEPT_MAX 4096 /* clients without users */

/* Those who have a key of one name; it lasts as long as the table. */
struct owner {
    struct owner *next; /* those that came before it; constant */
    char name[API_KEY_NAME_MAX + 1];
    struct sched_client jobs;   /* guarded by the pool's lock */
    atomic_size_t num_requests; /* in progress, without those refused with 429 */
    /* Of requests that have ended: how many, those refused because of a limit, ns of
     * workers, and bytes of bodies and of replies. */
    obs_counter requests, rejected, busy_ns, received, sent;
    struct turn_flow flows[]; /* [num_threads], each for its thread alone */
};

/* The turns and places that a client has of one HTTP thread. */
struct client_share {
    struct turn_flow flow;     /* of a client without an owner */
    struct turn_member member; /* of an owner's flow */
    size_t num_places;         /* of connections, see places.h */
};

struct client {
    struct client *next;      /* in its bucket */
    TAILQ_ENTRY(client) kept; /* while it has no users */
    struct address address;
    struct owner *owner;        /* NULL: none */
    size_t num_users;           /* guarded by the table's lock, as are the links */
    struct sched_client jobs;   /* guarded by the pool's lock; without an owner */
    struct sched_member member; /* of the owner's jobs */
    atomic_size_t held;         /* bytes of the budget */
    atomic_size_t num_requests; /* in progress, without those refused with 429 */
    /* [num_threads] behind it, each for its thread alone. */
    struct client_share *shares;
};

struct client_table {
    struct log_limit untrusted; /* requests with X-Forwarded-For that is not believed */
    size_t num_threads;
    const struct sched_pool *pool; /* borrowed; whose shares count; NULL: none */
    pthread_mutex_t lock;          /* guards what follows, and num_users */
    struct client *buckets[CLIENT_BUCKETS];
    TAILQ_HEAD(, client) kept; /* those without users, the oldest first */
    size_t num_kept;
    struct owner *owners;
};

/* Prepares a table that `num_threads` HTTP threads use. */
void client_table_init(struct client_table *table, size_t num_threads,
                       const struct sched_pool *pool);

/* Frees the clients that are left, which have no users. */
void client_table_deinit(struct client_table *table);

/* Finds or adds the client that `address` belongs to, and counts one user more. It is a
 * member of the owner of the keys called `owner_name`, of which --api-key-file has few
 * enough; NULL: it has no owner. Returns NULL when memory is short. Thread-safe. */
struct client *client_acquire(struct client_table *table, const struct address *address,
                              const char *owner_name);

/* Returns the owners, the newest first. They stay, and more may come. Thread-safe. */
struct owner *client_list_owners(struct client_table *table);

/* Counts one user less. After the last one, none of the client's jobs may wait or run. It
 * is freed at once, or by a later call when it is no longer ahead of its share.
 * Thread-safe. */
void client_release(struct client_table *table, struct client *client);

/* Finds whom a proxy has forwarded the request for, by X-Forwarded-For: the last address
 * that is not one of `proxies`, or where all are, the last. Returns false without that
 * header, or when its end cannot be read. */
bool client_find_forwarded(struct MHD_Connection *connection,
                           const struct address_ranges *proxies,
                           struct address *ret_address);

/* Logs, once an hour, that a peer which is not a trusted proxy sends the header, and that
 * its requests count for the peer itself. Thread-safe. */
void client_warn_of_untrusted(struct client_table *table,
                              struct MHD_Connection *connection,
                              const struct address *peer);
