/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: shares of the byte budget, and the uploads that are dropped when it is used
 * up.
 *
 * A body takes memory as it arrives. When a reservation does not fit, unfinished uploads
 * are dropped until it does: first the one with the largest
 *
 *     seconds per byte received * bytes that its client holds
 *
 * so the first to go is slow, and its client holds much. A request that is complete is
 * never dropped. Any thread may drop an upload of any other, so an upload has a state of
 * its own, which changes atomically: its HTTP thread makes it busy while it adds bytes,
 * and it is dropped while it is idle. */
#pragma once

#include "base/buf.h"
#include "http/net/client.h"
#include "sched/budget.h"
#include "wire/problem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/queue.h>

/* Memory of a connection without a request: libmicrohttpd's buffer, structs, and the text
 * of an error. */
#define MEMORY_CONNECTION_POOL  ((size_t)64 * 1024)
#define MEMORY_CONNECTION_BYTES (MEMORY_CONNECTION_POOL + 4096)
/* TLS adds its session, with a record for each direction. */
#define MEMORY_TLS_BYTES ((size_t)40 * 1024)

/* One for all threads. */
struct memory {
    struct sched_budget *budget;
    size_t limit;         /* bytes that no connection has reserved from the start */
    pthread_mutex_t lock; /* guards the list of uploads */
    LIST_HEAD(, upload) uploads; /* those that are unfinished and not dropped */
    atomic_int_fast64_t lack;    /* clock_now_ns, when a reservation last failed; or 0 */
};

/* The memory that one request has reserved, at first none. Its owner changes it; an
 * upload's is released by the thread that drops the upload. */
struct memory_share {
    struct memory *memory;
    struct client *client;
    atomic_size_t bytes;
};

enum upload_state {
    UPLOAD_IDLE,
    UPLOAD_BUSY,   /* its thread adds bytes */
    UPLOAD_DROPPED /* `body` is empty and nothing is reserved */
};

/* A body that arrives. Owned by its HTTP thread, but see above. */
struct upload {
    LIST_ENTRY(upload) links; /* in memory.uploads */
    struct memory_share *share;
    struct buf *body;
    int64_t started; /* clock_now_ns */
    atomic_size_t received;
    atomic_int state; /* enum upload_state */
    size_t mapped;    /* bytes at body->data, of which its capacity is reserved; or 0 */
};

/* `connections` bytes are reserved for good, so that a lack of memory closes no
 * connection. They are not more than the budget has left. When the budget has several,
 * the one that receives bodies is the last. */
void memory_init(struct memory *memory, struct sched_budget *budget, size_t connections);
void memory_deinit(struct memory *memory);

/* Adds `bytes` to the share of a complete request, for which uploads may be dropped.
 * Otherwise returns false with *ret_problem set: 413 when the request could never fit,
 * 503 when it does not fit now. Called by the owner; the shares of other threads may be
 * changed at the same time. `share` is void * so that the function can be a
 * wire_input.reserve. */
bool memory_reserve(void *share, size_t bytes, struct wire_problem *ret_problem);

/* Releases what the share has in excess of `bytes`. */
void memory_keep(struct memory_share *share, size_t bytes);

/* Whether a reservation has failed since `time` (clock_now_ns). */
bool memory_lacked_since(struct memory *memory, int64_t time);

/* Begins to receive `body`, which is empty and has its maximum set, with memory of
 * `share`, which has the bytes of its capacity. Both must live until upload_end(). */
void upload_begin(struct upload *upload, struct memory_share *share, struct buf *body);

/* Adds bytes, no more than the body's maximum allows. For them, uploads with a larger
 * score may be dropped. Otherwise returns false with *ret_problem set: 413 when the body
 * could never fit, 503 when the upload was dropped, now or before. */
bool upload_append(struct upload *upload, const char *data, size_t size,
                   struct wire_problem *ret_problem);

/* Ends the upload; body and share belong to the caller alone from now on. Returns false
 * when it was dropped before: both are empty then. Does nothing the second time. */
bool upload_end(struct upload *upload);
