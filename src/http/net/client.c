/* SPDX-License-Identifier: Apache-2.0 */
/* http/net/client.c: the table of clients. */
#include "http/net/client.h"

#include "base/hash.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* How many clients without users are looked at when another one loses its users: so their
 * number goes down again. */
#define KEPT_LOOKS 2

void client_table_init(struct client_table *table, size_t num_threads,
                       const struct sched_pool *pool) {
    *table = (struct client_table){.num_threads = num_threads, .pool = pool};
    pthread_mutex_init(&table->lock, NULL);
}

void client_table_deinit(struct client_table *table) {
    for (struct client *each = table->oldest_kept, *next; each != NULL; each = next) {
        next = each->next_kept;
        free(each);
    }
    pthread_mutex_destroy(&table->lock);
}

/* Returns the link to the client, or to NULL at the end of its bucket. */
static struct client **find_client_locked(struct client_table *table,
                                          const struct address *address) {
    uint64_t hash = hash_bytes(HASH_START, address, sizeof *address);
    struct client **link = &table->buckets[(hash ^ hash >> 32) % CLIENT_BUCKETS];

    while (*link != NULL && memcmp(&(*link)->address, address, sizeof *address) != 0)
        link = &(*link)->next;
    return link;
}

/* --- those without users --- */

static void keep_locked(struct client_table *table, struct client *client) {
    client->next_kept = NULL;
    client->previous_kept = table->newest_kept;
    *(client->previous_kept != NULL ? &client->previous_kept->next_kept
                                    : &table->oldest_kept) = client;
    table->newest_kept = client;
    table->num_kept++;
}

static void unkeep_locked(struct client_table *table, struct client *client) {
    *(client->previous_kept != NULL ? &client->previous_kept->next_kept
                                    : &table->oldest_kept) = client->next_kept;
    *(client->next_kept != NULL ? &client->next_kept->previous_kept
                                : &table->newest_kept) = client->previous_kept;
    table->num_kept--;
}

/* Keeps a client as the newest, if it is ahead of its share, or frees it. */
static void keep_or_free_locked(struct client_table *table, struct client *client,
                                bool may_keep) {
    if (may_keep && table->pool != NULL && sched_is_ahead(table->pool, &client->jobs)) {
        keep_locked(table, client);
        return;
    }
    *find_client_locked(table, &client->address) = client->next;
    free(client);
}

/* Looks at the oldest again. The first makes room when there are too many. */
static void look_at_kept_locked(struct client_table *table) {
    bool is_full = table->num_kept == CLIENT_KEPT_MAX;
    for (size_t i = 0; i < KEPT_LOOKS && table->oldest_kept != NULL; i++) {
        struct client *client = table->oldest_kept;
        unkeep_locked(table, client);
        keep_or_free_locked(table, client, !is_full || i > 0);
    }
}

/* --- those with users --- */

static struct client *create_client(const struct address *address, size_t num_threads) {
    struct client *client =
        calloc(1, sizeof *client + num_threads * sizeof(struct client_share));
    if (client == NULL)
        return NULL;
    client->address = *address;
    client->shares = (struct client_share *)(client + 1);
    return client;
}

struct client *client_acquire(struct client_table *table, const struct address *address) {
    const struct address key = address_of_client(address);

    pthread_mutex_lock(&table->lock);
    struct client **link = find_client_locked(table, &key);
    bool is_kept = *link != NULL;
    if (!is_kept)
        *link = create_client(&key, table->num_threads);
    struct client *client = *link;
    if (client != NULL && client->num_users++ == 0 && is_kept)
        unkeep_locked(table, client);
    pthread_mutex_unlock(&table->lock);
    return client;
}

void client_release(struct client_table *table, struct client *client) {
    pthread_mutex_lock(&table->lock);
    if (--client->num_users == 0) {
        look_at_kept_locked(table);
        keep_or_free_locked(table, client, true);
    }
    pthread_mutex_unlock(&table->lock);
}
