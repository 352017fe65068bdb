/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.c: takes a request from libmicrohttpd's callbacks to the route's handler, to
 * the workers and back. */
#include "http/exchange.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/log.h"
#include "base/size.h"
#include "http/framing.h"
#include "wire/media.h"
#include "wire/models.h"
#include "wire/oip/oip.h"

#include <attnd/library.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A body that is refused is still read when it is at most this much over the limit: a
 * client that has not finished sending does not read the reply. */
#define DISCARD_SLACK_BYTES ((size_t)8 * 1024 * 1024)
#define RETRY_AFTER         "1" /* seconds */
/* The buffer that libmicrohttpd fills from a streamed reply that is not chunked. */
#define HTTP10_BUFFER_BYTES ((size_t)32 * 1024)

/* Returns the head of a reply that is in memory. */
static struct wire_reply_head plain_head(const char *content_type) {
    return (struct wire_reply_head){content_type, WIRE_NO_SIZE, WIRE_NO_SIZE};
}

void exchange_set_problem(struct exchange *exchange, const struct wire_problem *problem) {
    buf_deinit(&exchange->reply);
    if (exchange->errors->print(problem, &exchange->reply) != ATTN_OK)
        buf_deinit(&exchange->reply); /* send_reply() then sends a constant text */
    exchange->status = problem->status;
    exchange->head = plain_head(exchange->errors->content_type);
    exchange->retry_later = problem->status == MHD_HTTP_SERVICE_UNAVAILABLE;
}

void exchange_set_json(struct exchange *exchange, attn_status status, int http_status) {
    if (status != ATTN_OK) {
        struct wire_problem problem;
        wire_problem_set_no_memory(&problem);
        exchange_set_problem(exchange, &problem);
        return;
    }
    exchange->status = http_status;
    exchange->head = plain_head(WIRE_MEDIA_TYPE_JSON);
}

bool exchange_find_model(struct exchange *exchange, const char *list_route,
                         size_t *ret_index) {
    const struct http_options *options = exchange->options;
    const struct route_word *name = &exchange->words[0];
    size_t index =
        wire_models_index(options->models, options->num_models, name->start, name->size);
    if (index == options->num_models) {
        struct wire_problem problem;
        wire_problem_set(&problem, WIRE_E_UNKNOWN_MODEL, "model",
                         "there is no model '%.*s'; %s lists the loaded models",
                         name->size < 100 ? (int)name->size : 100, name->start,
                         list_route);
        exchange_set_problem(exchange, &problem);
        return false;
    }
    *ret_index = index;
    return true;
}

bool exchange_reserve(struct exchange *exchange, size_t bytes,
                      struct wire_problem *ret_problem) {
    struct sched_budget *budget = exchange->options->budget;

    if (sched_budget_reserve(budget, bytes)) {
        exchange->reserved += bytes;
        return true;
    }

    size_t total = SIZE_MAX; /* also when the sum does not fit */
    if (size_add(exchange->reserved, bytes, &total) && total <= budget->limit)
        return wire_problem_set_no_memory(ret_problem);
    return wire_problem_set(
        ret_problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
        "request, results and reply would need %zu bytes, more than the %zu that "
        "--max-memory leaves for requests; send fewer or shorter sequences, or ask for "
        "\"need_weights\": \"mean\" or false",
        total, budget->limit);
}

void exchange_keep(struct exchange *exchange, size_t bytes) {
    if (exchange->reserved <= bytes)
        return;
    sched_budget_release(exchange->options->budget, exchange->reserved - bytes);
    exchange->reserved = bytes;
}

/* --- to a worker and back --- */

/* Suspends the connection, then submits the job. The order matters: a worker may be done
 * before this returns, and resuming a connection that is not suspended is undefined. */
static void submit_job(struct exchange *exchange,
                       void (*run)(struct sched_job *job, struct sched_worker *worker),
                       void (*submit)(struct sched_pool *pool, struct sched_job *job)) {
    exchange->state = EXCHANGE_WITH_WORKER;
    exchange->thread->num_suspended++;
    atomic_fetch_add(&exchange->thread->num_with_workers, 1);
    exchange->job.run = run;
    MHD_suspend_connection(exchange->connection);
    submit(exchange->options->pool, &exchange->job);
}

void exchange_submit(struct exchange *exchange,
                     void (*run)(struct sched_job *job, struct sched_worker *worker)) {
    struct sched_pool *pool = exchange->options->pool;
    if (!sched_reserve(pool)) {
        struct wire_problem problem;
        wire_problem_set(
            &problem, WIRE_E_QUEUE_FULL, NULL,
            "as many requests as --queue allows are waiting; retry after " RETRY_AFTER
            " s");
        exchange_set_problem(exchange, &problem);
        return;
    }
    submit_job(exchange, run, sched_submit);
}

/* On the HTTP thread, once the connection was resumed: the thread owns the exchange
 * again. */
static void reclaim_exchange(struct exchange *exchange) {
    exchange->thread->num_suspended--;
    exchange->state = EXCHANGE_REPLIES;
}

void exchange_resume(struct exchange *exchange) {
    struct http_thread *thread = exchange->thread;

    /* The HTTP thread may free the exchange as soon as it is resumed. */
    MHD_resume_connection(exchange->connection);
    http_thread_wake(thread);
    /* Last: after this the thread may stop its daemon, which the calls above still
     * use. */
    atomic_fetch_sub(&thread->num_with_workers, 1);
}

/* --- a streamed reply --- */

/* sched_job.run, for every piece but the first. */
static void run_piece(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, job);
    (void)worker;
    stream_write_piece(&exchange->stream);
    exchange_resume(exchange);
}

/* MHD_ContentReaderCallback: on the HTTP thread, when the socket accepts more. */
static ssize_t read_stream(void *cls, uint64_t position, char *out, size_t max) {
    struct exchange *exchange = cls;
    struct http_stream *stream = &exchange->stream;
    (void)position;

    if (exchange->state == EXCHANGE_WITH_WORKER)
        reclaim_exchange(exchange);
    if (stream_has_ended(stream))
        return MHD_CONTENT_READER_END_OF_STREAM;

    size_t sent = stream_send(stream, out, max);
    if (sent > 0)
        return (ssize_t)sent;
    if (http_thread_time_is_up(exchange->thread)) {
        exchange->thread->cut_off = true;
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }

    /* In front of all jobs that wait: this reply holds memory until it is sent. */
    submit_job(exchange, run_piece, sched_resubmit);
    return 0; /* not called again before the connection is resumed */
}

/* Returns the response that sends the stream, or NULL when memory is short. For HTTP/1.1
 * it is chunked unless its size is known. */
static struct MHD_Response *create_streamed_response(struct exchange *exchange) {
    _Static_assert(WIRE_NO_SIZE == MHD_SIZE_UNKNOWN,
                   "both mean that the size is not known");
    return MHD_create_response_from_callback(exchange->head.size, HTTP10_BUFFER_BYTES,
                                             read_stream, exchange, NULL);
}

/* --- the reply --- */

static void add_headers(const struct exchange *exchange, struct MHD_Response *response) {
    const struct wire_reply_head *head = &exchange->head;

    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, head->content_type);
    if (head->json_size != WIRE_NO_SIZE) {
        char size[24];
        snprintf(size, sizeof size, "%zu", head->json_size);
        MHD_add_response_header(response, WIRE_OIP_SIZE_HEADER, size);
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_SERVER, "attnd/" ATTND_VERSION);
    if (exchange->allow != NULL)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, exchange->allow);
    if (exchange->retry_later)
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, RETRY_AFTER);
    if (exchange->close || atomic_load(exchange->thread->draining))
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
}

/* Queues the reply, whose bytes then belong to libmicrohttpd. Returns MHD_NO, which
 * closes the connection, when memory is short. */
static enum MHD_Result send_reply(struct exchange *exchange) {
    struct MHD_Response *response;
    size_t size;
    char *data = buf_take(&exchange->reply, &size);

    if (stream_has_begun(&exchange->stream)) {
        response = create_streamed_response(exchange);
    } else if (data != NULL) {
        response = MHD_create_response_from_buffer_with_free_callback(size, data, free);
    } else {
        const struct wire_error_format *errors = exchange->errors;
        exchange->status = MHD_HTTP_SERVICE_UNAVAILABLE;
        exchange->head = plain_head(errors->content_type);
        response = MHD_create_response_from_buffer(
            strlen(errors->out_of_memory), errors->out_of_memory, MHD_RESPMEM_PERSISTENT);
    }
    if (response == NULL) {
        free(data);
        return MHD_NO;
    }

    add_headers(exchange, response);
    enum MHD_Result result =
        MHD_queue_response(exchange->connection, (unsigned)exchange->status, response);
    MHD_destroy_response(response);
    return result;
}

/* --- the request --- */

/* Checks the headers that describe a body. Returns false with *problem set. */
static bool check_body_headers(struct exchange *exchange, struct wire_problem *problem) {
    const char *encoding = MHD_lookup_connection_value(
        exchange->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_ENCODING);
    if (encoding == NULL)
        return exchange->route->check(exchange, problem);

    return wire_problem_set(
        problem, WIRE_E_UNSUPPORTED_MEDIA_TYPE, MHD_HTTP_HEADER_CONTENT_ENCODING,
        "Content-Encoding '%.60s' is not supported; send the body without one", encoding);
}

/* Allocates the body before it is read, when its size is known. */
static bool prepare_body(struct exchange *exchange, const struct framing *framing,
                         struct wire_problem *problem) {
    size_t max_body = exchange->options->max_body;

    buf_init(&exchange->body, max_body);
    exchange->chunked = framing->chunked;
    if (framing->chunked)
        return true;

    if (framing->content_length > max_body)
        return wire_problem_set(problem, WIRE_E_BODY_TOO_LARGE, NULL,
                                "the body has %llu bytes, more than --max-body %zu",
                                (unsigned long long)framing->content_length, max_body);

    size_t size = (size_t)framing->content_length;
    buf_init(&exchange->body, size);
    if (!exchange_reserve(exchange, size, problem))
        return false;
    if (buf_reserve(&exchange->body, size) == ATTN_OK)
        return true;
    return wire_problem_set_no_memory(problem);
}

/* Decides by the headers alone whether to accept the request. Returns false with *problem
 * set when not. */
static bool accept_headers(struct exchange *exchange, const char *url, const char *method,
                           const struct framing *framing, struct wire_problem *problem) {
    exchange->route = route_find(url, method, exchange->words, &exchange->allow, problem);
    if (exchange->route == NULL)
        return false;
    if (exchange->route->check == NULL) {
        exchange->state = EXCHANGE_DISCARDS_BODY;
        return true;
    }
    return check_body_headers(exchange, problem) &&
           prepare_body(exchange, framing, problem);
}

/* The first call for a request, when its headers are complete. Replies at once when the
 * body must not be read. */
static enum MHD_Result begin_request(struct exchange *exchange, const char *url,
                                     const char *method) {
    struct framing framing;
    struct wire_problem problem;

    exchange->errors = route_errors(url);
    if (!framing_check(exchange->connection, &framing, &problem)) {
        exchange_set_problem(exchange, &problem);
        exchange->close = true;
        return send_reply(exchange);
    }

    exchange->state = EXCHANGE_KEEPS_BODY;
    if (accept_headers(exchange, url, method, &framing, &problem))
        return MHD_YES;

    exchange_set_problem(exchange, &problem);
    exchange->route = NULL;
    exchange->state = EXCHANGE_DISCARDS_BODY;
    bool too_long =
        framing.content_length > exchange->options->max_body + DISCARD_SLACK_BYTES;
    return framing.expects_continue || too_long ? send_reply(exchange) : MHD_YES;
}

/* Refuses a request whose body is still arriving. */
static void refuse_while_receiving(struct exchange *exchange,
                                   const struct wire_problem *problem) {
    buf_deinit(&exchange->body);
    exchange_set_problem(exchange, problem);
    exchange->route = NULL;
    exchange->state = EXCHANGE_DISCARDS_BODY;
}

/* Receives bytes of the body. Returns MHD_NO, which closes the connection, when a client
 * keeps sending a body that was refused. */
static enum MHD_Result receive_body(struct exchange *exchange, const char *data,
                                    size_t size) {
    struct buf *body = &exchange->body;
    struct wire_problem problem;

    if (exchange->state == EXCHANGE_DISCARDS_BODY) {
        size_t max = exchange->options->max_body + DISCARD_SLACK_BYTES;
        exchange->discarded += size;
        return exchange->discarded > max ? MHD_NO : MHD_YES;
    }

    if (size > body->max - body->size) {
        wire_problem_set(&problem, WIRE_E_BODY_TOO_LARGE, NULL,
                         "the body has more bytes than --max-body %zu", body->max);
        refuse_while_receiving(exchange, &problem);
    } else if (exchange->chunked && !exchange_reserve(exchange, size, &problem)) {
        refuse_while_receiving(exchange, &problem);
    } else if (buf_append(body, data, size) != ATTN_OK) {
        wire_problem_set_no_memory(&problem);
        refuse_while_receiving(exchange, &problem);
    }
    return MHD_YES;
}

/* The last call before the reply, when the request is complete. */
static enum MHD_Result finish_request(struct exchange *exchange) {
    exchange->state = EXCHANGE_REPLIES;
    exchange->accepted = true;
    exchange->thread->num_accepted++;
    if (exchange->route != NULL)
        exchange->route->handle(exchange);
    return exchange->state == EXCHANGE_WITH_WORKER ? MHD_YES : send_reply(exchange);
}

static struct exchange *create_exchange(struct http_thread *thread,
                                        struct MHD_Connection *connection) {
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL)
        return NULL;

    exchange->thread = thread;
    exchange->options = thread->options;
    exchange->connection = connection;
    exchange->started = clock_now_ns();
    buf_init(&exchange->reply, SIZE_MAX); /* its bytes are reserved from the budget */
    stream_init(&exchange->stream);
    thread->num_exchanges++;
    return exchange;
}

enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *connection,
                                const char *url, const char *method, const char *version,
                                const char *upload_data, size_t *upload_data_size,
                                void **req_cls) {
    struct exchange *exchange = *req_cls;
    (void)version;

    if (exchange == NULL) {
        exchange = create_exchange(cls, connection);
        *req_cls = exchange;
        return exchange != NULL ? begin_request(exchange, url, method) : MHD_NO;
    }
    if (exchange->state == EXCHANGE_WITH_WORKER) {
        reclaim_exchange(exchange);
        return send_reply(exchange);
    }
    if (*upload_data_size > 0) {
        enum MHD_Result result = receive_body(exchange, upload_data, *upload_data_size);
        *upload_data_size = 0;
        return result;
    }
    return finish_request(exchange);
}

void exchange_completed(void *cls, struct MHD_Connection *connection, void **req_cls,
                        enum MHD_RequestTerminationCode code) {
    struct exchange *exchange = *req_cls;
    (void)cls;
    (void)connection;
    if (exchange == NULL)
        return;
    *req_cls = NULL;
    if (exchange->state == EXCHANGE_WITH_WORKER)
        reclaim_exchange(exchange); /* the client went away meanwhile */
    log_write(
        LOG_DEBUG, "request",
        LOG_TEXT("route", exchange->route != NULL ? exchange->route->path : "none"),
        LOG_NUMBER("status", exchange->status),
        LOG_NUMBER("microseconds", (clock_now_ns() - exchange->started) / 1000),
        LOG_TEXT("sent", code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "yes" : "no"));

    exchange->thread->num_exchanges--;
    exchange->thread->num_accepted -= exchange->accepted ? 1 : 0;
    sched_budget_release(exchange->options->budget, exchange->reserved);
    buf_deinit(&exchange->body);
    buf_deinit(&exchange->reply);
    stream_deinit(&exchange->stream);
    free(exchange);
}
