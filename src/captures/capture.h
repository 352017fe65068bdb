/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h: what store.c, puts.c and put.c share: one capture, one PUT, one holder, and
 * the store. A capture that arrives is in its holder's list as any other is. Between two
 * pieces of its PUT it has no users, and may be ended. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "base/size.h"
#include "captures/layout.h"
#include "captures/limits.h"

#include <nettle/sha2.h>
#include <pthread.h>
#include <sys/queue.h>

#define CAPTURE_BUCKETS 1024

struct capture_owner; /* see captures/store.h */

/* Immutable but for what the lock guards. */
struct capture {
    struct captures *store;
    size_t file_bytes;
    struct capture_layout layout; /* without its parts once it is published */
    unsigned char *block;         /* all numbers; from heap_alloc() */
    /* Guarded by the store's lock. */
    struct capture_info info;       /* of a PUT, as far as it is known */
    struct capture *next_in_bucket; /* while it is found; or among the dead */
    struct capture_holder *holder;  /* while it counts */
    LIST_ENTRY(capture) links;      /* in its holder's list: all that count */
    struct capture_put *put;        /* that it arrives by; NULL: it is whole */
    struct capture *next_victim;    /* of those that may give room, as it `gives` */
    bool gives;
    bool found;       /* by its name; false: it was removed */
    size_t num_users; /* requests; or its PUT, while that adds bytes */
    int64_t last_use; /* by clock_now_ns(), which no one sets; of a PUT its last piece */
};

/* A client that has captures, or a PUT in progress. Guarded by the store's lock. */
struct capture_holder {
    char space[CAPTURE_HOLDER_MAX], name[CAPTURE_HOLDER_MAX];
    LIST_HEAD(, capture) captures; /* all that count, newest first; at least one */
    size_t num_captures, bytes;
    struct capture_holder *next;
};

struct capture_put {
    struct captures *store;
    /* That it becomes; NULL once that is published, or was ended for `reason`. Both are
     * guarded by the store's lock. */
    struct capture *capture;
    enum wire_error reason; /* Captures full, or Request timeout */
    bool compares;          /* with the one that the name has: nothing is kept */
    size_t size;
    int64_t started;
    /* Its owner's alone. */
    struct sha256_ctx hash;
    size_t taken;           /* bytes */
    unsigned char *header;  /* the JSON, until it was read */
    size_t header_size;     /* bytes */
    size_t part;            /* that the next byte belongs to */
    unsigned char carry[8]; /* the first bytes of a number that a piece has cut */
    size_t num_carried;
};

/* Returns the bytes that a capture keeps, whose layout is known. They saturate. */
static inline size_t capture_count_bytes(const struct capture *capture) {
    size_t bytes = sizeof *capture;
    size_add_saturating(&bytes, capture->layout.block_bytes);
    size_add_saturating(&bytes, capture->layout.own_bytes);
    if (capture->info.description != NULL)
        size_add_saturating(&bytes, capture->info.description->text.size);
    return bytes;
}

/* Returns when a PUT has taken as long as it may, by clock_now_ns(). */
static inline int64_t put_deadline(const struct capture_put *put) {
    return put->started + (int64_t)CAPTURES_PUT_SECONDS * 1000000000;
}

struct captures {
    pthread_mutex_t lock; /* guards what follows, and parts of captures and PUTs */
    struct capture *buckets[CAPTURE_BUCKETS];
    struct capture_holder *holders;
    struct capture *dead; /* nobody finds them; store_unlock() frees them */
    int64_t next_expiry;  /* none expires before, and no PUT is late */
    struct capture_stats stats;
};

/* --- store.c --- */

/* Locks the store, removes what has expired, and ends PUTs that are late. Returns the
 * time. */
int64_t store_lock(struct captures *store);
void store_unlock(struct captures *store);

/* Under the lock: returns where a capture is linked in its bucket; the last link, of
 * NULL, when there is none. */
struct capture **store_find_link(struct captures *store, const char *space,
                                 const char *name, size_t size);

/* Under the lock: notes that a capture is used at `now`. */
void store_touch(struct capture *capture, int64_t now);

/* Under the lock: notes that a capture expires, or its PUT is late, at `expiry`. */
static inline void store_note_expiry(struct captures *store, int64_t expiry) {
    if (expiry < store->next_expiry)
        store->next_expiry = expiry;
}

/* Under the lock: adds a capture to those that count, with no bytes yet. Returns false
 * when memory is short. */
bool store_count_in(struct captures *store, struct capture *capture,
                    const struct capture_owner *owner);

/* Under the lock: lets a capture count so many bytes. */
void store_set_bytes(struct capture *capture, size_t bytes);

/* Under the lock: lets a capture count no more, and adds it to the dead. */
void store_bury(struct capture *capture);

/* Under the lock: makes a capture be found no more, and buries one without users. */
void store_remove(struct capture *capture, enum capture_removal reason);

/* Under the lock: ends a PUT whose capture has no user. */
void store_end_idle(struct capture_put *put, enum wire_error reason);

/* --- puts.c --- */

/* Adds a PUT of put->size bytes to the store; of a name that is found, it becomes one
 * that compares. For its room, others may go. Returns false with *ret_problem set, and
 * its capture freed. */
bool store_begin(struct captures *store, struct capture_put *put,
                 const struct capture_owner *owner, struct wire_problem *ret_problem);

/* Makes a PUT the user of its capture, or no more. store_enter() returns false with
 * *ret_problem set when the PUT was ended, or is late. */
bool store_enter(struct capture_put *put, struct wire_problem *ret_problem);
void store_leave(struct capture_put *put);

/* Makes what the PUT counts at least `bytes`. */
bool store_grow(struct capture_put *put, size_t bytes, struct wire_problem *ret_problem);

/* Publishes what the PUT has, whose hash is known, and whose file is whole. */
bool store_publish(struct capture_put *put, struct capture **ret_capture,
                   bool *ret_created, struct wire_problem *ret_problem);

/* Ends what the PUT counts, if that was not published. */
void store_end(struct capture_put *put);
