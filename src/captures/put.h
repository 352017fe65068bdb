/* SPDX-License-Identifier: Apache-2.0 */
/* captures/put.h: a file that arrives piece by piece, until it is a capture. */
#pragma once

#include "base/buf.h"
#include "captures/store.h"

#define CAPTURE_HEADER_MAX ((size_t)1024 * 1024) /* bytes of JSON */

/* Functions of the caller of a PUT. */
struct capture_printer {
    /* Reserves memory that is not the capture's own, to read the header. Returns false
     * with *ret_problem set when there is not enough. */
    bool (*reserve)(void *context, size_t bytes, struct wire_problem *ret_problem);
    void *context;
    /* Prints what is told of the layers of a capture, once. It counts as its bytes. */
    void (*print)(void *capture, struct buf *text);
};

/* Owned by one thread at a time. */
struct capture_put;

/* Begins a file of `size` bytes, which are reserved in the store. What was used least
 * recently may go for them: of the holder that has most, if this one will have less, or
 * of this one. `ttl` is in ns. When the name has a capture already, nothing is kept: the
 * bytes are compared. The caller destroys *ret_put. Returns false with *ret_problem
 * set. */
bool capture_put_create(struct captures *store, const struct capture_owner *owner,
                        const char *name, size_t name_size, size_t size, int64_t ttl,
                        struct capture_put **ret_put, struct wire_problem *ret_problem);

/* Adds bytes: checks them, and writes the numbers to where they are kept. Counts its
 * steps (base/pace.h). After a failure, with *ret_problem set, nothing may be added. */
bool capture_put_add(struct capture_put *put, const unsigned char *bytes, size_t size,
                     const struct capture_printer *printer,
                     struct wire_problem *ret_problem);

/* Publishes the file when it is whole: requests find all of it from now on.
 * *ret_created is false when the name had the same bytes already. The caller becomes a
 * user of *ret_capture. Returns false with *ret_problem set. */
bool capture_put_finish(struct capture_put *put, struct capture **ret_capture,
                        bool *ret_created, struct wire_problem *ret_problem);

/* Ends a file, whether or not it was published. Accepts NULL. */
void capture_put_destroy(struct capture_put *put);
