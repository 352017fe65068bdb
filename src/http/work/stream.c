/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: the piece in memory, how much of it was sent, and the arena that holds it. */
#include "http/work/stream.h"

#include "base/pace.h"
#include "base/size.h"

#include <string.h>

void stream_deinit(struct http_stream *stream) {
    arena_deinit(&stream->arena);
    *stream = (struct http_stream){0};
}

void stream_write_piece(struct http_stream *stream) {
    stream->sent = 0;
    stream->size = stream->fill(stream->source, stream->piece, STREAM_PIECE_BYTES);
    pace_add(stream->size);
}

bool stream_begin(struct http_stream *stream, stream_fill *fill, void *source) {
    stream->piece = arena_alloc(&stream->arena, STREAM_PIECE_BYTES, 1);
    if (stream->piece == NULL)
        return false;

    stream->fill = fill;
    stream->source = source;
    stream_write_piece(stream);
    return true;
}

size_t stream_send(struct http_stream *stream, char *out, size_t size) {
    size = size_min(size, stream->size - stream->sent);
    memcpy(out, stream->piece + stream->sent, size);
    stream->sent += size;
    return size;
}
