/* SPDX-License-Identifier: Apache-2.0 */
/* http/reply.c: makes the reply, and sends it at once or piece by piece. */
#include "http/reply.h"

#include "base/size.h"
#include "http/handover.h"
#include "http/log/access.h"
#include "http/observe.h"
#include "wire/media.h"
#include "wire/oip/oip.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The buffer that libmicrohttpd fills from a reply that is read and is not chunked. */
#define READ_BUFFER_BYTES ((size_t)32 * 1024)
/* At a Unix socket nobody sees how much of a reply libmicrohttpd still holds. So it gets
 * no more at once than it may hold of a streamed one. */
#define UNIX_HELD_MAX MEMORY_CONNECTION_POOL

#define NOTE_HEADER "Attnd-Note" /* on the rows of the request */

/* How long a browser may remember a preflight; the most that Chromium does. */
#define PREFLIGHT_SECONDS "7200"

/* Returns the head of a reply that is in memory. */
static struct wire_reply_head plain_head(const char *content_type) {
    return (struct wire_reply_head){content_type, WIRE_NO_SIZE, WIRE_NO_SIZE};
}

void reply_set_problem(struct exchange *exchange, const struct wire_problem *problem) {
    buf_deinit(&exchange->reply.text);
    exchange->reply.constant = NULL;
    exchange->reply.constant_size = 0;
    exchange->reply.headers = NULL;
    exchange->reply.encoding = NULL;
    exchange->reply.etag[0] = '\0';
    exchange->reply.note = NULL;
    exchange->request.errors->print(problem, &exchange->reply.text);
    if (exchange->reply.text.status != ATTN_OK ||
        buf_set_capacity(&exchange->reply.text, exchange->reply.text.size) != ATTN_OK)
        buf_deinit(&exchange->reply.text); /* reply_send() then sends a constant text */
    exchange->reply.status = problem->status;
    if (problem->status == MHD_HTTP_UNAUTHORIZED && exchange->reply.challenge == NULL)
        exchange->reply.challenge = SECRETS_WRONG_KEY; /* it was right before */
    exchange->record.facts.error = problem->error;
    exchange->reply.head = plain_head(exchange->request.errors->content_type);
    exchange->reply.retry_later = problem->status == MHD_HTTP_SERVICE_UNAVAILABLE ||
                                  problem->status == MHD_HTTP_TOO_MANY_REQUESTS;
}

bool reply_set_json(struct exchange *exchange, int http_status, struct shared_text *rest,
                    struct wire_problem *ret_problem) {
    struct buf *text = &exchange->reply.text;
    size_t rest_size = rest != NULL ? rest->text.size : 0;

    exchange->reply.shared = rest;
    if (text->status != ATTN_OK ||
        (text->size > 0 && buf_set_capacity(text, text->size) != ATTN_OK))
        return wire_problem_set_no_memory(ret_problem);
    if (!memory_reserve(&exchange->memory, text->size + rest_size, ret_problem))
        return false;
    exchange->reply.constant = rest != NULL ? rest->text.data : NULL;
    exchange->reply.constant_size = rest_size;
    exchange->reply.status = http_status;
    exchange->reply.head = plain_head(WIRE_MEDIA_TYPE_JSON);
    return true;
}

bool reply_set_shared(struct exchange *exchange, enum generation_text_id id,
                      int64_t max_age, void (*print)(void *context, struct buf *text),
                      void *context, const char *content_type,
                      struct wire_problem *ret_problem) {
    struct shared_text *text;
    if (generation_get_text(exchange->generation, id, max_age, print, context, &text) !=
        ATTN_OK)
        return wire_problem_set_no_memory(ret_problem);
    if (!reply_set_json(exchange, MHD_HTTP_OK, text, ret_problem))
        return false;
    exchange->reply.head = plain_head(content_type);
    return true;
}

void reply_set_constant(struct exchange *exchange, int http_status,
                        const char *content_type, const char *bytes, size_t size) {
    exchange->reply.constant = bytes;
    exchange->reply.constant_size = size;
    exchange->reply.status = http_status;
    exchange->reply.head = plain_head(content_type);
}

const attn_model *reply_find_model(const struct exchange *exchange,
                                   const char *list_route,
                                   struct wire_problem *ret_problem) {
    const struct generation *generation = exchange->generation;
    const struct route_segment *name = &exchange->request.segments[0];

    if (exchange->request.model < generation->num_models)
        return generation->models[exchange->request.model];
    wire_problem_set(ret_problem, WIRE_E_UNKNOWN_MODEL, "model",
                     "there is no model '%.*s'; %s lists the loaded models",
                     name->size < 100 ? (int)name->size : 100, name->start, list_route);
    return NULL;
}

/* --- a streamed reply --- */

/* sched_job.run, for every piece but the first. */
static void run_piece(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, work.job);
    (void)worker;
    stream_write_piece(&exchange->reply.stream);
    handover_resume(exchange);
}

/* MHD_ContentReaderCallback: on the HTTP thread, when the socket accepts more. */
static ssize_t read_stream(void *cls, uint64_t position, char *out, size_t max) {
    struct exchange *exchange = cls;
    struct http_stream *stream = &exchange->reply.stream;
    (void)position;

    exchange->thread->num_calls++;
    if (exchange->state == EXCHANGE_WITH_WORKER)
        handover_reclaim(exchange);
    if (exchange->work.abandoned)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (stream->size == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;

    size_t sent = stream_send(stream, out, max);
    exchange->record.facts.reply_bytes += sent;
    exchange->peer->sent += sent;
    if (sent > 0)
        return (ssize_t)sent;
    if (http_thread_time_is_up(exchange->thread)) {
        exchange->thread->cut_off = true;
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }

    exchange->work.job.cost =
        estimate_reply(exchange->generation->estimate, exchange->work.codec.body.text,
                       STREAM_PIECE_BYTES);
    handover_submit(exchange, run_piece);
    return 0; /* not called again before the connection is resumed */
}

/* --- a reply in memory --- */

/* MHD_ContentReaderCallback: as read_stream(), for bytes that are all there: a text, a
 * constant, or one behind the other. */
static ssize_t read_whole(void *cls, uint64_t position, char *out, size_t max) {
    struct exchange *exchange = cls;
    const struct exchange_reply *reply = &exchange->reply;
    size_t at = (size_t)position, end = reply->text.size;
    const char *bytes = reply->text.data;

    if (at >= end) {
        at -= end;
        end = reply->constant_size;
        bytes = reply->constant;
    }
    size_t size = size_min(end - at, max);
    exchange->thread->num_calls++;
    memcpy(out, bytes + at, size);
    exchange->peer->sent += size;
    return (ssize_t)size;
}

/* Returns the response that sends the text or the constant, or NULL when memory is
 * short. */
static struct MHD_Response *create_whole_response(struct exchange *exchange) {
    struct exchange_reply *reply = &exchange->reply;
    size_t size = reply->text.size + reply->constant_size;
    bool has_two = reply->text.size > 0 && reply->constant_size > 0;

    exchange->record.facts.reply_bytes = size;
    if (has_two || (exchange->thread->is_unix && size > UNIX_HELD_MAX))
        return MHD_create_response_from_callback(size, READ_BUFFER_BYTES, read_whole,
                                                 exchange, NULL);

    exchange->peer->sent += size;
    char *data = buf_take(&reply->text, &size);
    if (data == NULL)
        return MHD_create_response_from_buffer(
            reply->constant_size,
            (void *)(uintptr_t)reply->constant, /* libmicrohttpd does not write to it */
            MHD_RESPMEM_PERSISTENT);
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(size, data, free);
    if (response == NULL)
        free(data);
    return response;
}

/* --- the reply --- */

/* Adds headers up to a name of NULL, without those whose value is NULL. Returns false
 * when memory is short. */
static bool add_headers(struct MHD_Response *response,
                        const struct reply_header *header) {
    for (; header != NULL && header->name != NULL; header++) {
        if (header->value != NULL &&
            MHD_add_response_header(response, header->name, header->value) != MHD_YES)
            return false;
    }
    return true;
}

/* Adds what a browser needs before it shows the reply to a page elsewhere. Returns false
 * when memory is short. */
static bool add_cors_headers(const struct exchange *exchange,
                             struct MHD_Response *response) {
    const char *origin = exchange->request.cross_origin;
    const struct reply_header shown[] = {
        {MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, origin},
        {MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ORIGIN},
        {MHD_HTTP_HEADER_ACCESS_CONTROL_EXPOSE_HEADERS, WIRE_OIP_SIZE_HEADER
         ", " MHD_HTTP_HEADER_RETRY_AFTER ", " TRACE_ID_HEADER ", " ACCESS_TIMING_HEADER
         ", " MHD_HTTP_HEADER_ETAG ", " NOTE_HEADER},
        {MHD_HTTP_HEADER_TIMING_ALLOW_ORIGIN, origin},
        {NULL, NULL}};
    const struct reply_header preflight[] = {
        {MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, origin},
        {MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ORIGIN},
        {MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, PUT, DELETE"},
        {MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS, MHD_HTTP_HEADER_AUTHORIZATION
         ", " MHD_HTTP_HEADER_CONTENT_TYPE ", " WIRE_OIP_SIZE_HEADER ", " TRACE_ID_HEADER
         ", " TRACE_PARENT_HEADER},
        {MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS},
        {NULL, NULL}};

    bool asks = strcmp(exchange->request.method, MHD_HTTP_METHOD_OPTIONS) == 0 &&
                exchange->reply.status == MHD_HTTP_NO_CONTENT;
    return origin == NULL || add_headers(response, asks ? preflight : shown);
}

/* Adds all headers. Returns false when memory is short. */
static bool add_all_headers(const struct exchange *exchange,
                            struct MHD_Response *response) {
    const struct exchange_reply *reply = &exchange->reply;
    bool has_size = reply->head.json_size != WIRE_NO_SIZE;
    bool close = reply->close || atomic_load(exchange->thread->draining);
    char size[24], seconds[24], timing[ACCESS_TIMING_MAX];
    const char *id = exchange->record.trace.id;
    bool has_timing = access_format_timing(exchange, timing);

    if (has_size)
        snprintf(size, sizeof size, "%zu", reply->head.json_size);
    if (reply->retry_later) /* too many of one client are soon fewer */
        snprintf(seconds, sizeof seconds, "%u",
                 reply->status == MHD_HTTP_TOO_MANY_REQUESTS
                     ? 1
                     : sched_retry_after(exchange->options->pool, &exchange->work.job));
    const char *allow = reply->status == MHD_HTTP_METHOD_NOT_ALLOWED
                            ? exchange->request.route->allow
                            : NULL;
    const struct reply_header first[] = {
        {MHD_HTTP_HEADER_CONTENT_TYPE, reply->head.content_type},
        {WIRE_OIP_SIZE_HEADER, has_size ? size : NULL},
        {MHD_HTTP_HEADER_SERVER, "attnd/" ATTND_VERSION},
        {TRACE_ID_HEADER, *id != '\0' ? id : NULL},
        {ACCESS_TIMING_HEADER, has_timing ? timing : NULL},
        {MHD_HTTP_HEADER_ALLOW, allow},
        {MHD_HTTP_HEADER_WWW_AUTHENTICATE, reply->challenge},
        {MHD_HTTP_HEADER_RETRY_AFTER, reply->retry_later ? seconds : NULL},
        {NOTE_HEADER, reply->note},
        {NULL, NULL}};
    const struct reply_header last[] = {
        {MHD_HTTP_HEADER_CONNECTION, close ? "close" : NULL},
        {MHD_HTTP_HEADER_ETAG, *reply->etag != '\0' ? reply->etag : NULL},
        {NULL, NULL}};
    const struct reply_header encoding[] = {
        {MHD_HTTP_HEADER_CONTENT_ENCODING, reply->encoding}, {NULL, NULL}};
    return add_headers(response, first) && add_cors_headers(exchange, response) &&
           add_headers(response, last) && add_headers(response, reply->headers) &&
           add_headers(response, encoding);
}

/* Makes a constant text the reply, when there is no memory for another one. */
static void set_last_resort(struct exchange *exchange) {
    const struct wire_error_format *errors = exchange->request.errors;

    reply_set_constant(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, errors->content_type,
                       errors->out_of_memory, strlen(errors->out_of_memory));
    exchange->record.facts.error = WIRE_E_OUT_OF_MEMORY;
}

enum MHD_Result reply_send(struct exchange *exchange) {
    struct exchange_reply *reply = &exchange->reply;
    bool streamed = reply->stream.fill != NULL;

    if (!streamed && reply->text.data == NULL && reply->constant == NULL)
        set_last_resort(exchange);
    /* For HTTP/1.1 a stream is chunked unless its size is known. */
    _Static_assert(WIRE_NO_SIZE == MHD_SIZE_UNKNOWN,
                   "both mean that the size is not known");
    struct MHD_Response *response =
        streamed ? MHD_create_response_from_callback(reply->head.size, READ_BUFFER_BYTES,
                                                     read_stream, exchange, NULL)
                 : create_whole_response(exchange);
    if (response == NULL)
        return MHD_NO;

    /* Send nothing if a header cannot be added: without Connection: close the reply would
     * be wrong. */
    connection_begin_phase(exchange->peer, CONNECTION_REPLIES);
    enum MHD_Result result = MHD_NO;
    if (add_all_headers(exchange, response))
        result =
            MHD_queue_response(exchange->connection, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    if (result == MHD_YES)
        observe_reply(exchange);
    return result;
}
