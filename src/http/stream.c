/* SPDX-License-Identifier: Apache-2.0 */
#include "http/stream.h"

#include "http/exchange.h"

#include <stddef.h>
#include <string.h>

/* What libmicrohttpd keeps for a client of HTTP/1.0, which knows no chunks. */
#define BLOCK_BYTES ((size_t)32 * 1024)

void stream_init(struct http_stream *stream) {
    *stream = (struct http_stream){0};
    arena_init(&stream->arena, 0);
}

void stream_deinit(struct http_stream *stream) {
    arena_deinit(&stream->arena);
    stream_init(stream);
}

static void make_piece(struct http_stream *stream) {
    stream->sent = 0;
    stream->size = stream->fill(stream->source, stream->piece, STREAM_PIECE_BYTES);
}

bool stream_begin(struct http_stream *stream, stream_fill *fill, void *source) {
    stream->piece = arena_alloc(&stream->arena, STREAM_PIECE_BYTES, 1);
    if (stream->piece == NULL)
        return false;
    stream->fill = fill;
    stream->source = source;
    make_piece(stream);
    return true;
}

bool stream_has_begun(const struct http_stream *stream) {
    return stream->fill != NULL;
}

/* The job of every piece but the first. */
static void run(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange =
        (struct exchange *)((char *)job - offsetof(struct exchange, job));
    (void)worker;
    make_piece(&exchange->stream);
    exchange_resume(exchange);
}

/* MHD_ContentReaderCallback: on the HTTP thread, when the socket takes more. */
static ssize_t read_stream(void *cls, uint64_t position, char *out, size_t most) {
    struct exchange *exchange = cls;
    struct http_stream *stream = &exchange->stream;
    (void)position;
    if (exchange->state == EXCHANGE_WITH_WORKER)
        exchange_take_back(exchange);
    if (stream->size == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    size_t size = stream->size - stream->sent;
    if (size > 0) {
        size = size < most ? size : most;
        memcpy(out, stream->piece + stream->sent, size);
        stream->sent += size;
        return (ssize_t)size;
    }
    if (http_thread_time_is_up(exchange->thread)) {
        exchange->thread->cut_off = true;
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    exchange_resubmit(exchange, run);
    return 0; /* nothing yet, and not before the connection is resumed */
}

struct MHD_Response *stream_create_response(struct exchange *exchange) {
    _Static_assert(WIRE_NO_SIZE == MHD_SIZE_UNKNOWN, "both mean: not known");
    return MHD_create_response_from_callback(exchange->head.size, BLOCK_BYTES,
                                             read_stream, exchange, NULL);
}
