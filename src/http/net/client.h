/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: whom connections and requests belong to.
 *
 * A client is an address, see address_of_client(). Several HTTP threads may serve one
 * client, so there is one table for all of them, with a lock. A client lives while it has
 * users: connections, and requests that a proxy has forwarded for it. */
#ifndef ATTND_HTTP_NET_CLIENT_H
#define ATTND_HTTP_NET_CLIENT_H

#include "http/net/address.h"
#include "http/net/turns.h"
#include "sched/queue.h"

#include <pthread.h>
#include <stdatomic.h>

#define CLIENT_BUCKETS 1024

struct client {
    struct client *next; /* in its bucket */
    struct address address;
    size_t num_users;           /* guarded by the table's lock, as is `next` */
    struct sched_client jobs;   /* guarded by the pool's lock */
    atomic_size_t held;         /* bytes of the budget */
    atomic_size_t num_requests; /* in progress, without those refused with 429 */
    atomic_size_t num_places;   /* of connections, see places.h */
    struct turn_flow *flows;    /* [num_threads] behind it, each for its thread alone */
};

struct client_table {
    size_t num_threads;
    pthread_mutex_t lock; /* guards the lists and num_users */
    struct client *buckets[CLIENT_BUCKETS];
};

/* Prepares a table that `num_threads` HTTP threads use. */
void client_table_init(struct client_table *table, size_t num_threads);
void client_table_deinit(struct client_table *table);

/* Finds or adds the client that `address` belongs to, and counts one user more. Returns
 * NULL when memory is short. Thread-safe. */
struct client *client_acquire(struct client_table *table, const struct address *address);

/* Counts one user less, and frees the client after the last one. Thread-safe. */
void client_release(struct client_table *table, struct client *client);

#endif
