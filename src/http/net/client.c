/* SPDX-License-Identifier: Apache-2.0 */
/* client.c: the table of clients. */
#include "http/net/client.h"

#include "base/hash.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void client_table_init(struct client_table *table, size_t num_threads) {
    table->num_threads = num_threads;
    memset(table->buckets, 0, sizeof table->buckets);
    pthread_mutex_init(&table->lock, NULL);
}

void client_table_deinit(struct client_table *table) {
    pthread_mutex_destroy(&table->lock);
}

static struct client **find_bucket(struct client_table *table,
                                   const struct address *address) {
    uint64_t hash = hash_bytes(HASH_START, address->bytes, sizeof address->bytes);
    return &table->buckets[(hash ^ hash >> 32) % CLIENT_BUCKETS];
}

/* Returns the link to the client, or to NULL at the end of its bucket. */
static struct client **find_client_locked(struct client_table *table,
                                          const struct address *address) {
    struct client **link = find_bucket(table, address);
    while (*link != NULL && memcmp(&(*link)->address, address, sizeof *address) != 0)
        link = &(*link)->next;
    return link;
}

static struct client *create_client(const struct address *address, size_t num_threads) {
    struct client *client =
        calloc(1, sizeof *client + num_threads * sizeof(struct turn_flow));
    if (client == NULL)
        return NULL;
    client->address = *address;
    client->flows = (struct turn_flow *)(client + 1);
    return client;
}

struct client *client_acquire(struct client_table *table, const struct address *address) {
    const struct address key = address_of_client(address);

    pthread_mutex_lock(&table->lock);
    struct client **link = find_client_locked(table, &key);
    if (*link == NULL)
        *link = create_client(&key, table->num_threads);
    struct client *client = *link;
    if (client != NULL)
        client->num_users++;
    pthread_mutex_unlock(&table->lock);
    return client;
}

void client_release(struct client_table *table, struct client *client) {
    pthread_mutex_lock(&table->lock);
    bool was_last = --client->num_users == 0;
    if (was_last)
        *find_client_locked(table, &client->address) = client->next;
    pthread_mutex_unlock(&table->lock);
    if (was_last)
        free(client);
}
