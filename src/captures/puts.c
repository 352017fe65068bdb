/* SPDX-License-Identifier: Apache-2.0 */
/* puts.c: the PUTs that are in progress, and the room that they get. */
#include "base/size.h"
#include "captures/capture.h"
#include "captures/store.h"

#include <string.h>
#include <time.h>

/* --- who gives room ---
 *
 * That goes which was used least recently of the holder that has most, if the newcomer's
 * holder will have less; else of that holder itself. So do files that are arriving.
 * Nothing goes that is in use, nor when the room would not suffice. */

/* Returns what a holder gives first; NULL: it has nothing to give. */
static struct capture *find_oldest(const struct capture_holder *holder) {
    struct capture *oldest = NULL, *capture;
    LIST_FOREACH(capture, &holder->captures, links) {
        if (capture->num_users == 0 && !capture->gives && capture->info.bytes > 0 &&
            (oldest == NULL || capture->last_use < oldest->last_use))
            oldest = capture;
    }
    return oldest;
}

/* Returns what gives room next to a holder that will have `bytes` in all, or NULL. */
static struct capture *find_victim(struct captures *store,
                                   const struct capture_holder *own, size_t bytes) {
    struct capture *victim = NULL, *oldest;
    size_t most = bytes;

    for (struct capture_holder *holder = store->holders; holder != NULL;
         holder = holder->next) {
        if (holder == own || holder->bytes <= most)
            continue;
        oldest = find_oldest(holder);
        if (oldest != NULL) {
            victim = oldest;
            most = holder->bytes;
        }
    }
    return victim != NULL ? victim : find_oldest(own);
}

/* Makes room for `bytes` more of a holder, in its half and in all. The victims are chosen
 * first, as if they were gone already. Returns false, with nothing changed, when they do
 * not suffice. */
static bool make_room(struct captures *store, struct capture_holder *own, size_t bytes) {
    struct capture *victims = NULL, *victim, *next;
    size_t room = store->stats.limit - store->stats.bytes, count = own->num_captures;
    bool fits, own_fits;

    for (;;) {
        own_fits =
            count <= CAPTURES_OF_HOLDER && own->bytes + bytes <= store->stats.limit / 2;
        fits = own_fits && bytes <= room;
        victim = fits       ? NULL
                 : own_fits ? find_victim(store, own, own->bytes + bytes)
                            : find_oldest(own);
        if (victim == NULL)
            break;
        victim->gives = true;
        victim->next_victim = victims;
        victims = victim;
        victim->holder->bytes -= victim->info.bytes;
        count -= victim->holder == own;
        room += victim->info.bytes;
    }

    for (victim = victims; victim != NULL; victim = next) {
        next = victim->next_victim;
        victim->gives = false;
        victim->holder->bytes += victim->info.bytes;
        if (fits && victim->put != NULL)
            store_end_idle(victim->put, WIRE_E_CAPTURES_FULL);
        else if (fits)
            store_remove(victim, CAPTURE_REMOVED_ROOM);
    }
    return fits;
}

/* Lets a capture count `bytes`, which are more than it does. */
static bool reserve_bytes(struct capture *capture, size_t bytes,
                          struct wire_problem *ret_problem) {
    struct captures *store = capture->store;
    size_t own = capture->holder->bytes, used = store->stats.bytes;

    if (bytes > store->stats.limit / 2)
        return wire_problem_set(
            ret_problem, WIRE_E_CAPTURE_TOO_LARGE, NULL,
            "the capture needs %zu bytes, more than the %zu that one holder "
            "may have, half of --capture-memory; keep fewer layers, or "
            "start attnd with a larger --capture-memory",
            bytes, store->stats.limit / 2);
    if (!make_room(store, capture->holder, bytes - capture->info.bytes))
        return wire_problem_set(
            ret_problem, WIRE_E_CAPTURES_FULL, NULL,
            "there is no room for %zu bytes now: of %zu all captures have "
            "%zu, and yours %zu of at most %zu, in at most %d captures; what "
            "others have is in use, or no more than you would have; send "
            "fewer layers, or retry when captures have expired",
            bytes, store->stats.limit, used, own, store->stats.limit / 2,
            CAPTURES_OF_HOLDER);
    store_set_bytes(capture, bytes);
    return true;
}

static bool refuse_other_bytes(struct wire_problem *ret_problem) {
    return wire_problem_set(
        ret_problem, WIRE_E_CAPTURE_EXISTS, NULL,
        "the name has other bytes already; DELETE that capture first, "
        "or choose another name, such as the SHA-256 of the file");
}

static bool refuse_busy(struct wire_problem *ret_problem) {
    return wire_problem_set(
        ret_problem, WIRE_E_TOO_MANY_REQUESTS, NULL,
        "another PUT of yours, or of this name, is in progress; retry "
        "when it has ended");
}

/* Says why a PUT was ended. */
static bool refuse_ended(const struct capture_put *put,
                         struct wire_problem *ret_problem) {
    if (put->reason == WIRE_E_REQUEST_TIMEOUT)
        return wire_problem_set(ret_problem, put->reason, NULL,
                                "the file took longer than %d s; send it faster, or keep "
                                "fewer layers",
                                CAPTURES_PUT_SECONDS);
    return wire_problem_set(ret_problem, put->reason, NULL,
                            "the room of this file went to another holder, who has less; "
                            "delete captures of yours, or send fewer layers");
}

/* Whether a holder has a PUT in progress. */
static bool has_put(const struct capture_holder *holder) {
    const struct capture *capture = LIST_FIRST(&holder->captures);
    while (capture != NULL && capture->put == NULL)
        capture = LIST_NEXT(capture, links);
    return capture != NULL;
}

bool store_begin(struct captures *store, struct capture_put *put,
                 const struct capture_owner *owner, struct wire_problem *ret_problem) {
    struct capture *capture = put->capture;
    int64_t now = store_lock(store);
    const char *name = capture->info.name;
    const struct capture *old = *store_find_link(store, owner->space, name, strlen(name));
    bool begun = false;

    put->compares = old != NULL;
    if (!store_count_in(store, capture, owner))
        wire_problem_set_no_memory(ret_problem);
    else if (has_put(capture->holder))
        refuse_busy(ret_problem);
    else if (old != NULL && old->file_bytes != put->size)
        refuse_other_bytes(ret_problem);
    else
        begun =
            old != NULL ||
            reserve_bytes(capture, size_max(put->size, CAPTURE_BYTES_MIN), ret_problem);

    if (begun) {
        capture->put = put;
        capture->last_use = now;
        store_note_expiry(store, put_deadline(put));
    } else {
        store_bury(capture);
    }
    store_unlock(store);
    return begun;
}

bool store_enter(struct capture_put *put, struct wire_problem *ret_problem) {
    store_lock(put->store); /* ends it, when it is late */
    bool entered = put->capture != NULL;
    if (entered)
        put->capture->num_users++;
    store_unlock(put->store);
    return entered || refuse_ended(put, ret_problem);
}

void store_leave(struct capture_put *put) {
    pthread_mutex_lock(&put->store->lock);
    if (put->capture != NULL) {
        put->capture->num_users--;
        put->capture->last_use = clock_now_ns();
    }
    pthread_mutex_unlock(&put->store->lock);
}

bool store_grow(struct capture_put *put, size_t bytes, struct wire_problem *ret_problem) {
    store_lock(put->store);
    bool grown = bytes <= put->capture->info.bytes ||
                 reserve_bytes(put->capture, bytes, ret_problem);
    store_unlock(put->store);
    return grown;
}

bool store_publish(struct capture_put *put, struct capture **ret_capture,
                   bool *ret_created, struct wire_problem *ret_problem) {
    struct captures *store = put->store;
    struct capture *own = put->capture, *published = NULL;
    struct capture_info *info = &own->info;
    int64_t now = store_lock(store);
    struct capture **link =
        store_find_link(store, own->holder->space, info->name, strlen(info->name));

    if (*link != NULL && strcmp((*link)->info.sha256, info->sha256) != 0) {
        refuse_other_bytes(ret_problem);
    } else if (*link == NULL && put->compares) { /* that is gone meanwhile */
        refuse_busy(ret_problem);
    } else {
        *ret_created = *link == NULL;
        if (*ret_created) {
            *link = own;
            own->next_in_bucket = NULL;
            info->created = time(NULL);
            own->found = true;
            store->stats.captures++;
            own->num_users--; /* the PUT */
            own->put = NULL;
            put->capture = NULL;
            /* Of the file it may have kept less. */
            store_set_bytes(own, size_max(capture_count_bytes(own), CAPTURE_BYTES_MIN));
        }
        published = *ret_capture = *link;
        published->info.ttl = info->ttl; /* the last PUT says how long it is kept */
        store_touch(published, now);
        published->num_users++;
        store_note_expiry(store, now + info->ttl);
    }
    store_unlock(store);
    return published != NULL;
}

void store_end(struct capture_put *put) {
    pthread_mutex_lock(&put->store->lock);
    if (put->capture != NULL)
        store_bury(put->capture);
    store_unlock(put->store);
}
