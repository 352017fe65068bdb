/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h: a reply that is written piece by piece while it is sent.
 *
 * One piece is in memory at a time: a worker writes it, the HTTP thread sends it. So the
 * complete text is never in memory, no HTTP thread writes text, and a slow client does
 * not occupy a worker. */
#pragma once

#include "base/arena.h"

#include <stdbool.h>

#define STREAM_PIECE_BYTES ((size_t)256 * 1024)

/* Writes the next bytes from `source` to `piece`, which has room for `size` bytes.
 * Returns how many it wrote, 0 at the end. Cannot fail: what can fail is done before the
 * reply begins. */
typedef size_t stream_fill(void *source, char *piece, size_t size);

/* A member of an exchange, with the same owner. Zeroed, there is no stream. */
struct http_stream {
    /* Holds `piece`, and may hold what `source` needs. Before the stream begins, it may
     * keep a decoded request while that waits. */
    struct arena arena;
    stream_fill *fill; /* NULL until stream_begin() has succeeded */
    void *source;
    char *piece; /* [STREAM_PIECE_BYTES] */
    /* Bytes of the piece, 0 behind the last one; and how many of them were sent. */
    size_t size, sent;
};

void stream_deinit(struct http_stream *stream);

/* On a worker: writes the first piece. `source` must live until stream_deinit(), for
 * example in stream->arena. Returns false when memory is short. */
bool stream_begin(struct http_stream *stream, stream_fill *fill, void *source);

/* On a worker: writes the next piece, after the last one was sent. */
void stream_write_piece(struct http_stream *stream);

/* Copies up to `size` bytes of the piece to `out`. Returns how many; 0 when the piece was
 * sent and the next one must be written. */
size_t stream_send(struct http_stream *stream, char *out, size_t size);
