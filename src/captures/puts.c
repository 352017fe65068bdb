/* SPDX-License-Identifier: Apache-2.0 */
/* puts.c: the PUTs that are in progress, and the room that they get. */
#include "base/size.h"
#include "captures/capture.h"

#include <string.h>
#include <time.h>

#define NS_PER_SECOND 1000000000

/* Whether a PUT has received too little in its time. */
static bool is_slow(const struct capture_put *put, int64_t now) {
    int64_t seconds = (now - put->started) / NS_PER_SECOND;
    return put->state == PUT_IDLE && !put->compares && seconds >= CAPTURES_SLOW_SECONDS &&
           put->received / CAPTURES_SLOW_RATE < (size_t)seconds;
}

/* Ends slow PUTs, those that began first before others, until `bytes` fit; none when
 * they do not suffice. */
static void end_slow_puts(struct captures *store, size_t bytes, int64_t now) {
    size_t left = store->limit - store->used;

    for (struct capture_put *put = store->puts; put != NULL; put = put->next)
        left += is_slow(put, now) ? put->capture->bytes : 0;
    while (left >= bytes && bytes > store->limit - store->used) {
        struct capture_put *first = NULL;
        for (struct capture_put *put = store->puts; put != NULL; put = put->next) {
            if (is_slow(put, now))
                first = put; /* the newest is at the head of the list */
        }
        store_end_idle(first, CAPTURE_E_SLOW);
    }
}

/* Reserves `bytes` more for a holder, who may have `max_count` captures so far. */
static bool reserve_bytes(struct captures *store, const char *holder, size_t bytes,
                          size_t max_count, int64_t now,
                          struct capture_fault *ret_fault) {
    size_t own = 0, count = 0, half = store->limit / 2;

    for (const struct capture *capture = store->newest; capture != NULL;
         capture = capture->next) {
        bool is_own = strcmp(capture->holder, holder) == 0;
        own += is_own ? capture->bytes : 0;
        count += is_own;
    }
    ret_fault->wanted = bytes;
    ret_fault->own = own;
    ret_fault->used = store->used;
    ret_fault->limit = store->limit;
    if (bytes > half)
        return capture_fail(ret_fault, CAPTURE_E_TOO_LARGE, NULL);
    if (own > half || bytes > half - own || count > max_count)
        return capture_fail(ret_fault, CAPTURE_E_FULL, NULL);
    if (bytes > store->limit - store->used)
        end_slow_puts(store, bytes, now);
    if (bytes > store->limit - store->used)
        return capture_fail(ret_fault, CAPTURE_E_FULL, NULL);
    store->used += bytes;
    return true;
}

/* Whether a holder has a PUT in progress. */
static bool is_busy(const struct captures *store, const char *holder) {
    for (const struct capture_put *put = store->puts; put != NULL; put = put->next) {
        if (put->state != PUT_ENDED && strcmp(put->capture->holder, holder) == 0)
            return true;
    }
    return false;
}

bool store_begin(struct captures *store, struct capture_put *put,
                 struct capture_fault *ret_fault) {
    struct capture *capture = put->capture, *dead;
    int64_t now = store_lock(store, &dead);
    const struct capture *old =
        *store_find_link(store, capture->space, capture->name, strlen(capture->name));
    size_t bytes = size_max(put->size, CAPTURE_BYTES_MIN);
    bool begun;

    put->compares = old != NULL;
    if (is_busy(store, capture->holder))
        begun = capture_fail(ret_fault, CAPTURE_E_BUSY, NULL);
    else if (old != NULL)
        begun = old->file_bytes == put->size ||
                capture_fail(ret_fault, CAPTURE_E_EXISTS, NULL);
    else
        begun = reserve_bytes(store, capture->holder, bytes, CAPTURES_OF_HOLDER - 1, now,
                              ret_fault);

    if (begun) {
        put->next = store->puts;
        store->puts = put;
    }
    if (begun && old == NULL) {
        capture->bytes = bytes;
        store_count_in(store, capture);
    }
    store_unlock(store, dead);
    return begun;
}

bool store_enter(struct capture_put *put, struct capture_fault *ret_fault) {
    pthread_mutex_lock(&put->store->lock);
    bool entered = put->state == PUT_IDLE;
    if (entered)
        put->state = PUT_BUSY;
    pthread_mutex_unlock(&put->store->lock);
    return entered || capture_fail(ret_fault, put->reason, NULL);
}

void store_leave(struct capture_put *put) {
    pthread_mutex_lock(&put->store->lock);
    put->received = put->taken;
    if (put->state == PUT_BUSY)
        put->state = PUT_IDLE;
    pthread_mutex_unlock(&put->store->lock);
}

bool store_grow(struct capture_put *put, size_t bytes, struct capture_fault *ret_fault) {
    struct captures *store = put->store;
    struct capture *capture = put->capture, *dead;
    int64_t now = store_lock(store, &dead);
    size_t more = bytes > capture->bytes ? bytes - capture->bytes : 0;
    bool grown =
        bytes <= store->limit / 2 || capture_fail(ret_fault, CAPTURE_E_TOO_LARGE, NULL);

    grown = grown && (more == 0 || reserve_bytes(store, capture->holder, more,
                                                 CAPTURES_OF_HOLDER, now, ret_fault));
    ret_fault->wanted = bytes;
    ret_fault->limit = store->limit;
    if (grown)
        capture->bytes += more;
    store_unlock(store, dead);
    return grown;
}

/* Lets a whole capture count what it keeps: of the file it may have kept less. */
static void shrink_bytes(struct captures *store, struct capture *capture) {
    size_t bytes = size_max(capture_count_bytes(capture), CAPTURE_BYTES_MIN);
    if (bytes < capture->bytes) {
        store->used -= capture->bytes - bytes;
        capture->bytes = bytes;
    }
}

bool store_publish(struct capture_put *put, struct capture **ret_capture,
                   bool *ret_created, struct capture_fault *ret_fault) {
    struct captures *store = put->store;
    struct capture *own = put->capture, *published = NULL, *dead;
    int64_t now = store_lock(store, &dead);
    struct capture **link =
        store_find_link(store, own->space, own->name, strlen(own->name));

    if (put->removed) {
        capture_fail(ret_fault, CAPTURE_E_REMOVED, NULL);
    } else if (*link != NULL && strcmp((*link)->sha256, own->sha256) != 0) {
        capture_fail(ret_fault, CAPTURE_E_EXISTS, NULL);
    } else if (*link == NULL && put->compares) { /* that is gone meanwhile */
        capture_fail(ret_fault, CAPTURE_E_BUSY, NULL);
    } else {
        *ret_created = *link == NULL;
        if (*ret_created) {
            *link = own;
            own->next_in_bucket = NULL;
            own->created = time(NULL);
            own->found = true;
            store->stats.captures++;
            put->capture = NULL;
            put->state = PUT_ENDED; /* others follow the capture of one that is not */
            shrink_bytes(store, own);
        }
        published = *ret_capture = *link;
        store_touch(published, now);
        published->num_users++;
        if (now + published->ttl < store->next_expiry)
            store->next_expiry = now + published->ttl;
    }
    store_unlock(store, dead);
    return published != NULL;
}

void store_end(struct capture_put *put) {
    struct captures *store = put->store;
    struct capture_put **link = &store->puts;

    pthread_mutex_lock(&store->lock);
    while (*link != put)
        link = &(*link)->next;
    *link = put->next;
    if (put->capture != NULL && !put->compares && put->state != PUT_ENDED)
        store_count_out(store, put->capture);
    pthread_mutex_unlock(&store->lock);
}
