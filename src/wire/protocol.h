/* SPDX-License-Identifier: Apache-2.0 */
/* protocol.h: the interface of a protocol: a function that reads a request, and a table
 * of functions that encode a reply. They only share struct wire_request, so that a
 * request of one protocol or media type can have a reply of another. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "wire/problem.h"
#include "wire/request.h"

struct capture_layers;

#define WIRE_NO_SIZE   SIZE_MAX
#define WIRE_PIECE_MIN 1024 /* bytes */

/* A request as it was received. Everything is borrowed. */
struct wire_input {
    const char *body; /* from malloc(), so aligned for any type; not NULL */
    size_t size;
    size_t json_size; /* of the JSON that it begins with; WIRE_NO_SIZE: not stated */
    /* Those that it may name; NULL: it is a request without a model. */
    const attn_model *const *models;
    size_t num_models;
    bool any_name; /* the only model is meant, whatever the request names */
    /* Of a request without a model: the layers of a capture, one of which is asked; NULL:
     * the tensors are sent. */
    const struct capture_layers *capture;
    bool targets_alone;  /* targets need no word of need: heads are analysed */
    struct arena *arena; /* for what is read */
    /* Reserves memory before it is allocated. Returns false with *ret_problem set when
     * there is not enough. */
    bool (*reserve)(void *context, size_t bytes, struct wire_problem *ret_problem);
    void *context;
};

/* Reads and checks a request. Every size in ret_request has been checked, so that
 * attn_plan() can only fail on overflow. Returns false with *ret_problem set, ret_request
 * untouched. Thread-safe for distinct arenas. */
typedef bool wire_read(const struct wire_input *input, struct wire_request *ret_request,
                       struct wire_problem *ret_problem);

/* A reply, before its first byte. */
struct wire_reply_head {
    const char *content_type; /* constant */
    size_t size;      /* bytes of the reply; WIRE_NO_SIZE: known at its end only */
    size_t json_size; /* for Inference-Header-Content-Length; WIRE_NO_SIZE: not sent */
};

/* How replies are encoded, piece by piece. Thread-safe for distinct encoders. */
struct wire_writer {
    /* Returns the most bytes that a reply to a planned request can have; SIZE_MAX when
     * that is too large to be computed. */
    size_t (*bound)(const struct wire_request *request);

    /* Returns the most bytes of the arena that begin() allocates, not counting the
     * rounding to ARENA_ALIGNMENT, nor 8 KiB for the encoder itself; SIZE_MAX as
     * above. */
    size_t (*memory)(const struct wire_request *request);

    /* Returns an encoder for the reply, which borrows only the numbers of `result`.
     * Checks everything that can fail, so that a reply that was begun can be finished.
     * Returns NULL with *ret_problem set: Result not finite, Out of memory. */
    void *(*begin)(struct arena *arena, const struct wire_request *request,
                   const attn_result *result, struct wire_reply_head *ret_head,
                   struct wire_problem *ret_problem);

    /* Writes the next piece to `piece`, which has room for `size` bytes, at least
     * WIRE_PIECE_MIN. Returns its size, 0 after the end. A piece with room for
     * WIRE_PIECE_MIN bytes more than the rest of the reply is the last one. Does not
     * allocate. */
    size_t (*fill)(void *encoder, char *piece, size_t size);

    const char *smaller; /* how to ask for a smaller reply, for people */
};
