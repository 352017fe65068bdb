/* SPDX-License-Identifier: Apache-2.0 */
/* protocol.h: what a protocol is to the server: a function that reads a request, and a
 * table of those that write a reply. They meet in struct wire_request alone, so that a
 * request of one form may have a reply of another. */
#ifndef ATTND_WIRE_PROTOCOL_H
#define ATTND_WIRE_PROTOCOL_H

#include "base/arena.h"
#include "base/buf.h"
#include "wire/problem.h"
#include "wire/request.h"

#define WIRE_NO_SIZE   SIZE_MAX
#define WIRE_PIECE_MIN 1024 /* bytes */

/* A request as it came. All is borrowed. */
struct wire_input {
    const char *body; /* malloc()ed, so aligned for any type; not NULL */
    size_t size;
    size_t json_size; /* bytes of JSON that it begins with, where a header says so; else
                         WIRE_NO_SIZE */
    const attn_model *const *models; /* those that it may name; at least one */
    size_t num_models;
    struct arena *arena; /* for what is read */
    /* Asks for memory, before it is taken; false with *ret_problem set when there is no
     * more. */
    bool (*reserve)(void *context, size_t bytes, struct wire_problem *ret_problem);
    void *context;
};

/* Reads and checks a request. Every size in ret_request has been checked, so that
 * attn_plan() can only fail on overflow. Returns false with *ret_problem set, ret_request
 * untouched. Thread-safe for distinct arenas. */
typedef bool wire_read(const struct wire_input *input, struct wire_request *ret_request,
                       struct wire_problem *ret_problem);

/* What is said of a reply before its first byte. */
struct wire_reply_head {
    const char *content_type; /* constant */
    size_t size;      /* bytes of the whole; WIRE_NO_SIZE: not known before its end */
    size_t json_size; /* for the header Inference-Header-Content-Length; WIRE_NO_SIZE:
                         without it */
};

/* Writes replies, piece by piece. Thread-safe for distinct encoders. */
struct wire_writer {
    /* Returns the most bytes that the reply to a call of these sizes can take; SIZE_MAX
     * when that is too large to be computed. */
    size_t (*bound)(const struct wire_request *request, const attn_sizes *sizes);

    /* Returns the most bytes of the arena that begin() takes for this call, rounding to
     * ARENA_ALIGNMENT and 4 KiB for the encoder itself left out; SIZE_MAX likewise. */
    size_t (*memory)(const struct wire_request *request);

    /* Returns an encoder for this reply, which borrows only the model and the numbers of
     * `result`; result->weights are those that the reply has (wire_selection_copy()).
     * Looks at everything that can fail, so that a reply that was begun can be ended.
     * NULL with *ret_problem set: 422 when numbers are not finite, 503. */
    void *(*begin)(struct arena *arena, const struct wire_request *request,
                   const attn_result *result, struct wire_reply_head *ret_head,
                   struct wire_problem *ret_problem);

    /* Writes the next piece to `piece`, which has room for `size` bytes, at least
     * WIRE_PIECE_MIN; returns how many it wrote, 0 at the end. A piece that has room
     * for WIRE_PIECE_MIN bytes more than all the rest is the last one. Does not
     * allocate. */
    size_t (*fill)(void *encoder, char *piece, size_t size);

    const char *smaller; /* how to ask for a smaller reply, for a person */
};

#endif
