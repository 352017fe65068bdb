/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h: a reply that is made piece by piece while it is sent.
 *
 * libmicrohttpd asks for bytes when the socket takes some. They come from one piece in
 * memory; when that is used up, the connection is suspended and a worker makes the next.
 * So neither is the whole text ever in memory, nor is it made on an HTTP thread, nor does
 * a slow client hold a worker. */
#ifndef ATTND_HTTP_STREAM_H
#define ATTND_HTTP_STREAM_H

#include "base/arena.h"

#include <stdbool.h>

struct exchange;
struct MHD_Response;

#define STREAM_PIECE_BYTES ((size_t)256 * 1024)

/* Writes the next piece of what `source` tells to `piece`, which has room for `size`
 * bytes; returns how many it wrote, 0 at the end. Cannot fail: what can is looked at
 * before the reply begins. */
typedef size_t stream_fill(void *source, char *piece, size_t size);

/* Part of an exchange, with the same owner. */
struct http_stream {
    struct arena arena; /* holds `piece`, and may hold what `source` needs */
    stream_fill *fill;  /* NULL until it begins */
    void *source;
    char *piece;       /* [STREAM_PIECE_BYTES] */
    size_t size, sent; /* bytes of the piece */
};

void stream_init(struct http_stream *stream);
void stream_deinit(struct http_stream *stream);

/* On a worker: makes the first piece. `source` must live until stream_deinit(), best in
 * stream->arena. Returns false when memory is short. */
bool stream_begin(struct http_stream *stream, stream_fill *fill, void *source);

bool stream_has_begun(const struct http_stream *stream);

/* On the HTTP thread: returns the response that sends exchange->stream; chunked for
 * HTTP/1.1, unless exchange->head has its size. NULL when memory is short. */
struct MHD_Response *stream_create_response(struct exchange *exchange);

#endif
