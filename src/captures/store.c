/* SPDX-License-Identifier: Apache-2.0 */
/* store.c: finds captures by name, and divides the budget among holders. Memory is freed
 * when the lock is not held: returning much of it takes a while. */
#include "captures/capture.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/size.h"
#include "captures/store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_SECOND 1000000000

struct captures *captures_create(size_t limit, int64_t ttl) {
    struct captures *store = calloc(1, sizeof *store);
    if (store == NULL)
        return NULL;
    store->limit = limit;
    store->ttl = ttl;
    store->next_expiry = INT64_MAX;
    pthread_mutex_init(&store->lock, NULL);
    return store;
}

bool capture_name_is_valid(const char *name, size_t size) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return size > 0 && size <= CAPTURE_NAME_MAX && name[0] != '.' &&
           strspn(name, allowed) >= size;
}

void capture_free(struct capture *capture) {
    if (capture == NULL)
        return;
    capture_layout_deinit(&capture->layout);
    free(capture->block);
    free(capture);
}

/* Frees captures that are linked by next_in_bucket. */
static void free_all(struct capture *dead) {
    while (dead != NULL) {
        struct capture *next = dead->next_in_bucket;
        capture_free(dead);
        dead = next;
    }
}

/* --- under the lock --- */

static struct capture **find_name_bucket(struct captures *store, const char *space,
                                         const char *name, size_t size) {
    uint64_t hash = hash_bytes(HASH_START, space, strlen(space) + 1);
    return &store->buckets[hash_bytes(hash, name, size) % CAPTURE_BUCKETS];
}

/* Returns where a capture is linked in its bucket; the last link, of NULL, when there is
 * none. */
struct capture **store_find_link(struct captures *store, const char *space,
                                 const char *name, size_t size) {
    struct capture **link = find_name_bucket(store, space, name, size);
    for (; *link != NULL; link = &(*link)->next_in_bucket) {
        if (strncmp((*link)->name, name, size) == 0 && (*link)->name[size] == '\0' &&
            strcmp((*link)->space, space) == 0)
            break;
    }
    return link;
}

/* Adds a capture to those that count. */
void store_count_in(struct captures *store, struct capture *capture) {
    capture->previous = NULL;
    capture->next = store->newest;
    if (store->newest != NULL)
        store->newest->previous = capture;
    store->newest = capture;
}

/* Takes a capture from those that count, with its bytes. */
void store_count_out(struct captures *store, struct capture *capture) {
    if (capture->previous != NULL)
        capture->previous->next = capture->next;
    else
        store->newest = capture->next;
    if (capture->next != NULL)
        capture->next->previous = capture->previous;
    store->used -= capture->bytes;
    capture->bytes = 0;
}

/* Makes a capture that is linked at `link` be found no more. One without users is added
 * to *dead. */
static void remove_at(struct captures *store, struct capture **link,
                      enum capture_removal reason, struct capture **dead) {
    struct capture *capture = *link;

    if (capture == NULL)
        return;
    *link = capture->next_in_bucket;
    capture->found = false;
    store->stats.captures--;
    store->stats.removals[reason]++;
    if (capture->num_users > 0)
        return;
    store_count_out(store, capture);
    capture->next_in_bucket = *dead;
    *dead = capture;
}

static void remove_one(struct captures *store, struct capture *capture,
                       enum capture_removal reason, struct capture **dead) {
    remove_at(
        store,
        store_find_link(store, capture->space, capture->name, strlen(capture->name)),
        reason, dead);
}

/* Ends a PUT that is idle, and frees what it has kept. */
void store_end_idle(struct capture_put *put, enum capture_error reason) {
    struct capture *capture = put->capture;

    put->state = PUT_ENDED;
    put->reason = reason;
    if (put->compares)
        return;
    store_count_out(put->store, capture);
    capture_layout_deinit(&capture->layout);
    free(capture->block);
    capture->block = NULL;
}

/* Removes what has expired, and ends PUTs that are late. */
static void sweep(struct captures *store, int64_t now, struct capture **dead) {
    for (struct capture_put *put = store->puts; put != NULL; put = put->next) {
        if (put->state == PUT_IDLE && (put->removed || put_is_late(put)))
            store_end_idle(put, put->removed ? CAPTURE_E_REMOVED : CAPTURE_E_TIMEOUT);
    }
    if (now < store->next_expiry)
        return;
    store->next_expiry = INT64_MAX;
    for (struct capture *capture = store->newest, *next; capture != NULL;
         capture = next) {
        int64_t expiry = capture->last_use + capture->ttl;
        next = capture->next;
        if (!capture->found)
            continue;
        if (expiry <= now)
            remove_one(store, capture, CAPTURE_REMOVED_EXPIRED, dead);
        else if (expiry < store->next_expiry)
            store->next_expiry = expiry;
    }
}

/* Locks the store and removes what has expired. Returns the time. */
int64_t store_lock(struct captures *store, struct capture **dead) {
    int64_t now = clock_now_ns();
    *dead = NULL;
    pthread_mutex_lock(&store->lock);
    sweep(store, now, dead);
    return now;
}

void store_unlock(struct captures *store, struct capture *dead) {
    pthread_mutex_unlock(&store->lock);
    free_all(dead);
}

/* --- captures --- */

void store_touch(struct capture *capture, int64_t now) {
    capture->last_use = now;
    capture->used_at = time(NULL);
}

struct capture *captures_acquire(struct captures *store, const char *space,
                                 const char *name, size_t size, bool uses) {
    struct capture *dead;
    int64_t now = store_lock(store, &dead);
    struct capture *capture = *store_find_link(store, space, name, size);

    if (capture != NULL) {
        capture->num_users++;
        if (uses)
            store_touch(capture, now);
    }
    if (uses && capture != NULL)
        store->stats.found++;
    else if (uses)
        store->stats.unknown++;
    store_unlock(store, dead);
    return capture;
}

void capture_release(struct capture *capture) {
    struct captures *store;
    bool counts = true;
    if (capture == NULL)
        return;

    store = capture->store;
    pthread_mutex_lock(&store->lock);
    if (--capture->num_users == 0 && !capture->found) {
        store_count_out(store, capture);
        counts = false;
    }
    pthread_mutex_unlock(&store->lock);
    if (!counts)
        capture_free(capture);
}

bool captures_delete(struct captures *store, const char *space, const char *name,
                     size_t size) {
    struct capture *dead;
    store_lock(store, &dead);
    struct capture **link = store_find_link(store, space, name, size);
    bool found = *link != NULL;

    if (found)
        remove_at(store, link, CAPTURE_REMOVED_DELETED, &dead);
    store_unlock(store, dead);
    return found;
}

void captures_keep_spaces(struct captures *store,
                          bool (*keep)(void *context, const char *space), void *context) {
    struct capture *dead;
    store_lock(store, &dead);

    for (struct capture *capture = store->newest, *next; capture != NULL;
         capture = next) {
        next = capture->next;
        if (capture->found && !keep(context, capture->space))
            remove_one(store, capture, CAPTURE_REMOVED_KEY, &dead);
    }
    for (struct capture_put *put = store->puts; put != NULL; put = put->next) {
        if (put->capture != NULL && !keep(context, put->capture->space))
            put->removed = true;
    }
    store_unlock(store, dead);
}

/* Returns what is told about a capture, under the lock. */
static struct capture_info describe_capture(const struct capture *capture) {
    return (struct capture_info){.name = capture->name,
                                 .sha256 = capture->sha256,
                                 .bytes = capture->bytes,
                                 .num_layers = capture->layout.num_layers,
                                 .created = capture->created,
                                 .last_use = capture->used_at,
                                 .ttl = capture->ttl};
}

void captures_list(struct captures *store, const char *space,
                   void (*each)(void *context, const struct capture_info *info),
                   void *context) {
    struct capture *dead;
    store_lock(store, &dead);
    for (const struct capture *capture = store->newest; capture != NULL;
         capture = capture->next) {
        if (!capture->found || strcmp(capture->space, space) != 0)
            continue;
        const struct capture_info info = describe_capture(capture);
        each(context, &info);
    }
    store_unlock(store, dead);
}

struct capture_info capture_get_info(const struct capture *capture) {
    pthread_mutex_lock(&capture->store->lock);
    struct capture_info info = describe_capture(capture);
    pthread_mutex_unlock(&capture->store->lock);
    return info;
}

const struct capture_layer *capture_get_layers(const struct capture *capture,
                                               size_t *ret_count) {
    *ret_count = capture->layout.num_layers;
    return capture->layout.layers;
}

const struct capture_layer *capture_find_layer(const struct capture *capture,
                                               const char *name, size_t size) {
    for (size_t i = 0; i < capture->layout.num_layers; i++) {
        const struct capture_layer *layer = &capture->layout.layers[i];
        if (strncmp(layer->name, name, size) == 0 && layer->name[size] == '\0')
            return layer;
    }
    return NULL;
}

/* --- the store --- */

void captures_count_refusal(struct captures *store, enum capture_error error) {
    pthread_mutex_lock(&store->lock);
    store->stats.refusals[error]++;
    pthread_mutex_unlock(&store->lock);
}

struct capture_stats captures_get_stats(struct captures *store) {
    struct capture *dead;
    if (store == NULL)
        return (struct capture_stats){0};
    store_lock(store, &dead);
    store->stats.bytes = store->used;
    store->stats.limit = store->limit;
    struct capture_stats stats = store->stats;
    store_unlock(store, dead);
    return stats;
}

size_t captures_bytes_left(struct captures *store) {
    const struct capture_stats stats = captures_get_stats(store);
    return stats.limit - stats.bytes;
}

int64_t captures_get_ttl(const struct captures *store) {
    return store->ttl;
}

void captures_destroy(struct captures *store) {
    if (store == NULL)
        return;
    for (struct capture *capture = store->newest, *next; capture != NULL;
         capture = next) {
        next = capture->next;
        capture_free(capture);
    }
    pthread_mutex_destroy(&store->lock);
    free(store);
}
