/* SPDX-License-Identifier: Apache-2.0 */
/* store.c: finds captures by name, and counts them for their holders. Memory is freed
 * when the lock is not held: returning much of it takes a while. */
#include "captures/capture.h"

#include "base/clock.h"
#include "base/hash.h"
#include "captures/store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct captures *captures_create(size_t limit) {
    struct captures *store = calloc(1, sizeof *store);
    if (store == NULL)
        return NULL;
    store->stats.limit = limit;
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

static void free_capture(struct capture *capture) {
    capture_layout_deinit(&capture->layout);
    shared_text_release(capture->info.description);
    free(capture->block);
    free(capture);
}

/* --- under the lock --- */

struct capture **store_find_link(struct captures *store, const char *space,
                                 const char *name, size_t size) {
    uint64_t hash = hash_bytes(HASH_START, space, strlen(space) + 1);
    struct capture **link =
        &store->buckets[hash_bytes(hash, name, size) % CAPTURE_BUCKETS];

    for (; *link != NULL; link = &(*link)->next_in_bucket) {
        if (strncmp((*link)->info.name, name, size) == 0 &&
            (*link)->info.name[size] == '\0' &&
            strcmp((*link)->holder->space, space) == 0)
            break;
    }
    return link;
}

/* Returns the capture after another one that counts, or with NULL the first. */
static struct capture *next_capture(const struct captures *store,
                                    const struct capture *capture) {
    assert(capture == NULL || capture->holder != NULL); /* whose captures count */
    const struct capture_holder *holder =
        capture != NULL ? capture->holder->next : store->holders;

    if (capture != NULL && LIST_NEXT(capture, links) != NULL)
        return LIST_NEXT(capture, links);
    return holder != NULL ? LIST_FIRST(&holder->captures) : NULL;
}

/* Returns where a holder is linked, or where a new one is added. */
static struct capture_holder **find_holder_link(struct captures *store,
                                                const char *name) {
    struct capture_holder **link = &store->holders;
    while (*link != NULL && strcmp((*link)->name, name) != 0)
        link = &(*link)->next;
    return link;
}

bool store_count_in(struct captures *store, struct capture *capture,
                    const struct capture_owner *owner) {
    struct capture_holder **link = find_holder_link(store, owner->holder);
    struct capture_holder *holder = *link;

    if (holder == NULL) {
        holder = *link = calloc(1, sizeof *holder);
        if (holder == NULL)
            return false;
        snprintf(holder->space, sizeof holder->space, "%s", owner->space);
        snprintf(holder->name, sizeof holder->name, "%s", owner->holder);
    }
    holder->num_captures++;
    capture->holder = holder;
    LIST_INSERT_HEAD(&holder->captures, capture, links);
    return true;
}

void store_set_bytes(struct capture *capture, size_t bytes) {
    capture->store->stats.bytes -= capture->info.bytes;
    capture->holder->bytes -= capture->info.bytes;
    capture->info.bytes = bytes;
    capture->holder->bytes += bytes;
    capture->store->stats.bytes += bytes;
}

static void count_out(struct capture *capture) {
    struct capture_holder *holder = capture->holder;

    store_set_bytes(capture, 0);
    LIST_REMOVE(capture, links);
    capture->holder = NULL;
    if (--holder->num_captures == 0) {
        *find_holder_link(capture->store, holder->name) = holder->next;
        free(holder);
    }
}

void store_bury(struct capture *capture) {
    struct captures *store = capture->store;

    if (capture->holder != NULL)
        count_out(capture);
    capture->next_in_bucket = store->dead;
    store->dead = capture;
}

void store_remove(struct capture *capture, enum capture_removal reason) {
    struct captures *store = capture->store;
    const char *name = capture->info.name;

    *store_find_link(store, capture->holder->space, name, strlen(name)) =
        capture->next_in_bucket;
    capture->found = false;
    store->stats.captures--;
    store->stats.removals[reason]++;
    if (capture->num_users == 0)
        store_bury(capture);
}

void store_end_idle(struct capture_put *put, enum wire_error reason) {
    put->reason = reason;
    store_bury(put->capture);
    put->capture = NULL;
}

/* Removes what has expired, and ends PUTs that are late. */
static void sweep(struct captures *store, int64_t now) {
    if (now < store->next_expiry)
        return;
    store->next_expiry = INT64_MAX;
    for (struct capture *capture = next_capture(store, NULL), *next; capture != NULL;
         capture = next) {
        struct capture_put *put = capture->put;
        int64_t expiry =
            put != NULL ? put_deadline(put) : capture->last_use + capture->info.ttl;
        next = next_capture(store, capture);
        if (put == NULL && !capture->found)
            continue;
        if (expiry > now || (put != NULL && capture->num_users > 0))
            store_note_expiry(store, expiry);
        else if (put != NULL)
            store_end_idle(put, WIRE_E_REQUEST_TIMEOUT);
        else
            store_remove(capture, CAPTURE_REMOVED_EXPIRED);
    }
}

int64_t store_lock(struct captures *store) {
    int64_t now = clock_now_ns();
    pthread_mutex_lock(&store->lock);
    sweep(store, now);
    return now;
}

void store_unlock(struct captures *store) {
    struct capture *dead = store->dead, *next;
    store->dead = NULL;
    pthread_mutex_unlock(&store->lock);
    for (; dead != NULL; dead = next) {
        next = dead->next_in_bucket;
        free_capture(dead);
    }
}

/* --- captures --- */

void store_touch(struct capture *capture, int64_t now) {
    capture->last_use = now;
    capture->info.last_use = time(NULL);
}

struct capture *captures_acquire(struct captures *store, const char *space,
                                 const char *name, size_t size, bool uses) {
    int64_t now = store_lock(store);
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
    store_unlock(store);
    return capture;
}

void capture_release(struct capture *capture) {
    if (capture == NULL)
        return;
    struct captures *store = capture->store;

    pthread_mutex_lock(&store->lock);
    if (--capture->num_users == 0 && !capture->found)
        store_bury(capture);
    store_unlock(store);
}

struct capture *captures_next(struct captures *store, const char *space,
                              struct capture *previous, struct capture_info *ret_info) {
    store_lock(store);
    struct capture *capture = next_capture(store, previous);

    while (capture != NULL &&
           (!capture->found ||
            (space != NULL && strcmp(capture->holder->space, space) != 0)))
        capture = next_capture(store, capture);
    if (capture != NULL) {
        capture->num_users++;
        *ret_info = capture->info;
    }
    store_unlock(store);
    capture_release(previous);
    return capture;
}

bool captures_delete(struct captures *store, const char *space, const char *name,
                     size_t size, enum capture_removal reason) {
    store_lock(store);
    struct capture *capture = *store_find_link(store, space, name, size);

    if (capture != NULL)
        store_remove(capture, reason);
    store_unlock(store);
    return capture != NULL;
}

void captures_keep_spaces(struct captures *store,
                          bool (*keep)(void *context, const char *space), void *context) {
    struct capture_info info;

    for (struct capture *capture = captures_next(store, NULL, NULL, &info);
         capture != NULL; capture = captures_next(store, NULL, capture, &info)) {
        const char *space = capture->holder->space; /* it counts, since it has a user */
        if (!keep(context, space))
            captures_delete(store, space, info.name, strlen(info.name),
                            CAPTURE_REMOVED_KEY);
    }
}

struct capture_info capture_get_info(const struct capture *capture) {
    pthread_mutex_lock(&capture->store->lock);
    struct capture_info info = capture->info;
    pthread_mutex_unlock(&capture->store->lock);
    return info;
}

const struct capture_layers *capture_get_layers(const struct capture *capture) {
    return capture != NULL ? &capture->layout.layers : NULL;
}

/* --- the store --- */

void captures_count_refusal(struct captures *store, enum wire_error error) {
    pthread_mutex_lock(&store->lock);
    store->stats.refusals[error]++;
    pthread_mutex_unlock(&store->lock);
}

struct capture_stats captures_get_stats(struct captures *store) {
    if (store == NULL)
        return (struct capture_stats){0};
    store_lock(store);
    struct capture_stats stats = store->stats;
    store_unlock(store);
    return stats;
}

void captures_destroy(struct captures *store) {
    struct capture *capture;
    if (store == NULL)
        return;
    pthread_mutex_lock(&store->lock);
    while ((capture = next_capture(store, NULL)) != NULL)
        store_bury(capture);
    store_unlock(store);
    pthread_mutex_destroy(&store->lock);
    free(store);
}
