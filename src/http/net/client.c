/* SPDX-License-Identifier: Apache-2.0 */
/* http/net/client.c: the table of clients. */
#include "http/net/client.h"

#include "base/hash.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* How many clients without users are looked at when another one loses its users: so their
 * number goes down again. */
#define KEPT_LOOKS 2

#define FORWARDED_FOR      "X-Forwarded-For"
#define UNTRUSTED_AGAIN_NS (INT64_C(3600) * 1000000000)

void client_table_init(struct client_table *table, size_t num_threads,
                       const struct sched_pool *pool) {
    *table = (struct client_table){.num_threads = num_threads, .pool = pool};
    TAILQ_INIT(&table->kept);
    pthread_mutex_init(&table->lock, NULL);
}

void client_table_deinit(struct client_table *table) {
    for (struct client *each = TAILQ_FIRST(&table->kept), *next; each != NULL;
         each = next) {
        next = TAILQ_NEXT(each, kept);
        free(each);
    }
    for (struct owner *each = table->owners, *next; each != NULL; each = next) {
        next = each->next;
        free(each);
    }
    pthread_mutex_destroy(&table->lock);
}

/* Returns the link to the client, or to NULL at the end of its bucket. */
static struct client **find_client_locked(struct client_table *table,
                                          const struct address *address,
                                          const struct owner *owner) {
    uint64_t hash = hash_bytes(HASH_START, address, sizeof *address);
    hash = hash_bytes(hash, &owner, sizeof owner);
    struct client **link = &table->buckets[(hash ^ hash >> 32) % CLIENT_BUCKETS];

    while (*link != NULL && ((*link)->owner != owner ||
                             memcmp(&(*link)->address, address, sizeof *address) != 0))
        link = &(*link)->next;
    return link;
}

/* --- those without users --- */

static void unkeep_locked(struct client_table *table, struct client *client) {
    TAILQ_REMOVE(&table->kept, client, kept);
    table->num_kept--;
}

static bool is_ahead(const struct client_table *table, const struct client *client) {
    if (client->owner != NULL)
        return sched_member_is_ahead(&client->owner->jobs, &client->member);
    return table->pool != NULL && sched_is_ahead(table->pool, &client->jobs);
}

/* Keeps a client as the newest, if it is ahead of its share, or frees it. */
static void keep_or_free_locked(struct client_table *table, struct client *client,
                                bool may_keep) {
    if (may_keep && is_ahead(table, client)) {
        TAILQ_INSERT_TAIL(&table->kept, client, kept);
        table->num_kept++;
        return;
    }
    *find_client_locked(table, &client->address, client->owner) = client->next;
    free(client);
}

/* Looks at the oldest again. The first makes room when there are too many. */
static void look_at_kept_locked(struct client_table *table) {
    bool is_full = table->num_kept == CLIENT_KEPT_MAX;
    struct client *client = TAILQ_FIRST(&table->kept), *next;
    for (size_t i = 0; i < KEPT_LOOKS && client != NULL; i++, client = next) {
        next = TAILQ_NEXT(client, kept);
        unkeep_locked(table, client);
        keep_or_free_locked(table, client, !is_full || i > 0);
    }
}

/* --- those with users --- */

static struct client *create_client(const struct address *address, struct owner *owner,
                                    size_t num_threads) {
    struct client *client =
        calloc(1, sizeof *client + num_threads * sizeof(struct client_share));
    if (client == NULL)
        return NULL;
    client->address = *address;
    client->owner = owner;
    client->shares = (struct client_share *)(client + 1);
    return client;
}

/* Finds or adds the owner of that name; NULL when memory is short. */
static struct owner *find_owner_locked(struct client_table *table, const char *name) {
    struct owner *owner = table->owners;
    while (owner != NULL && strcmp(owner->name, name) != 0)
        owner = owner->next;
    if (owner != NULL)
        return owner;

    owner = calloc(1, sizeof *owner + table->num_threads * sizeof owner->flows[0]);
    if (owner != NULL) {
        memccpy(owner->name, name, '\0', sizeof owner->name - 1);
        owner->next = table->owners;
        table->owners = owner;
    }
    return owner;
}

struct client *client_acquire(struct client_table *table, const struct address *address,
                              const char *owner_name) {
    const struct address key = address_of_client(address);
    struct owner *owner = NULL;
    struct client *client = NULL;

    pthread_mutex_lock(&table->lock);
    if (owner_name != NULL)
        owner = find_owner_locked(table, owner_name);
    if (owner_name == NULL || owner != NULL) {
        struct client **link = find_client_locked(table, &key, owner);
        bool is_kept = *link != NULL;
        if (!is_kept)
            *link = create_client(&key, owner, table->num_threads);
        client = *link;
        if (client != NULL && client->num_users++ == 0 && is_kept)
            unkeep_locked(table, client);
    }
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

struct owner *client_list_owners(struct client_table *table) {
    pthread_mutex_lock(&table->lock);
    struct owner *owners = table->owners;
    pthread_mutex_unlock(&table->lock);
    return owners;
}

/* --- forwarded requests --- */

/* Whom a proxy has forwarded a request for. */
struct forwarded {
    const struct address_ranges *proxies;
    struct address client;
    bool found;
};

/* MHD_KeyValueIterator: the client is the last address that is not a trusted proxy; where
 * all are, the last one, which the peer has written. What is before it may be invented.
 * What is malformed behind it makes it doubtful. */
static enum MHD_Result read_forwarded(void *cls, enum MHD_ValueKind kind,
                                      const char *name, const char *value) {
    struct forwarded *forwarded = cls;
    (void)kind;
    if (strcasecmp(name, FORWARDED_FOR) != 0)
        return MHD_YES;

    for (const char *item = value != NULL ? value : ""; item != NULL;) {
        size_t size = strcspn(item, ",");
        struct address address;
        if (!address_read(item, size, &address)) {
            forwarded->found = false;
        } else if (!forwarded->found || !address_is_in(&address, forwarded->proxies) ||
                   address_is_in(&forwarded->client, forwarded->proxies)) {
            forwarded->client = address;
            forwarded->found = true;
        }
        item = item[size] == ',' ? item + size + 1 : NULL;
    }
    return MHD_YES;
}

bool client_find_forwarded(struct MHD_Connection *connection,
                           const struct address_ranges *proxies,
                           struct address *ret_address) {
    struct forwarded forwarded = {.proxies = proxies};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, read_forwarded, &forwarded);
    *ret_address = forwarded.client;
    return forwarded.found;
}

void client_warn_of_untrusted(struct client_table *table,
                              struct MHD_Connection *connection,
                              const struct address *peer) {
    char client[ADDRESS_PRINT_MAX];

    if (MHD_lookup_connection_value(connection, MHD_HEADER_KIND, FORWARDED_FOR) == NULL)
        return;
    size_t count = log_limit_add(&table->untrusted, UNTRUSTED_AGAIN_NS);
    if (count == 0)
        return;
    address_print(peer, client);
    log_write(LOG_WARN, "X-Forwarded-For is not believed, no --trusted-proxy is its peer",
              LOG_TEXT("client", client), LOG_NUMBER("count", count));
}
