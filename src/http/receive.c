/* SPDX-License-Identifier: Apache-2.0 */
/* receive.c: checks the headers, receives the body, and calls the handler. */
#include "http/receive.h"

#include "base/clock.h"
#include "captures/put.h"
#include "http/captures/captures.h"
#include "http/handover.h"
#include "http/net/framing.h"
#include "http/net/origin.h"
#include "http/observe.h"
#include "http/reply.h"
#include "wire/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A body that is refused is still read when it is at most this much over the limit: a
 * client that has not finished sending does not read the reply. */
#define DISCARD_SLACK_BYTES ((size_t)8 * 1024 * 1024)
/* Of a body without a key, at most this much is read. */
#define DISCARD_UNKNOWN_BYTES ((size_t)64 * 1024)

/* --- whose request it is --- */

/* Finds the client of the request; the peer itself, unless that is a proxy. */
static void find_client(struct exchange *exchange) {
    struct connection *peer = exchange->peer;
    struct connection_limits *limits = peer->list->limits;
    struct address forwarded;
    struct client *client = NULL;

    if (!peer->is_proxy)
        client_warn_of_untrusted(&limits->clients, exchange->connection,
                                 &peer->client->address);
    else if (client_find_forwarded(exchange->connection,
                                   exchange->options->trusted_proxies, &forwarded))
        client = client_acquire(&limits->clients, &forwarded, NULL);
    if (client != NULL && client == peer->client) /* it has itself by its connection */
        client_release(&limits->clients, client);
    exchange->memory.client = client != NULL ? client : peer->client;
    exchange->work.job.client = &exchange->memory.client->jobs;
    exchange->work.turn.flow = &exchange->memory.client->shares[peer->list->index].flow;
    connection_set_holder(peer, exchange->memory.client);
}

/* Lets the request share turns and workers with those of its key's name, and with those
 * of its address among them; counts it, unless they have too many. */
static bool join_owner(struct exchange *exchange, struct wire_problem *problem) {
    struct client_table *clients = &exchange->peer->list->limits->clients;
    size_t max = exchange->options->config->max_per_key;
    size_t thread = exchange->peer->list->index;
    if (exchange->request.key_name[0] == '\0')
        return true;

    struct client *member = client_acquire(clients, &exchange->memory.client->address,
                                           exchange->request.key_name);
    if (member == NULL)
        return wire_problem_set_no_memory(problem);
    struct owner *owner = member->owner;
    exchange->request.member = member;
    exchange->work.job.client = &owner->jobs;
    exchange->work.job.member = &member->member;
    exchange->work.turn.flow = &owner->flows[thread];
    exchange->work.turn.member = &member->shares[thread].member;

    size_t others = atomic_fetch_add(&owner->num_requests, 1);
    exchange->request.counted_by_key = others < max || max == 0;
    if (exchange->request.counted_by_key)
        return true;
    atomic_fetch_sub(&owner->num_requests, 1);
    return wire_problem_set(problem, WIRE_E_TOO_MANY_REQUESTS, NULL,
                            "as many requests with keys of this name are in progress as "
                            "--max-per-key %zu allows; retry later",
                            max);
}

/* Releases what find_client() and join_owner() have found. */
static void leave_client(struct exchange *exchange) {
    struct client_table *clients = &exchange->peer->list->limits->clients;
    struct client *client = exchange->memory.client, *member = exchange->request.member;
    if (exchange->request.counted)
        atomic_fetch_sub(&client->num_requests, 1);
    if (exchange->request.counted_by_key)
        atomic_fetch_sub(&member->owner->num_requests, 1);
    connection_set_holder(exchange->peer, exchange->peer->client);
    if (member != NULL)
        client_release(clients, member);
    if (client != exchange->peer->client)
        client_release(clients, client);
}

/* Counts the request as one of its client, unless that has too many. One that is refused
 * is not counted: while it is discarded, it would keep another from being accepted. Nor
 * are probes: a full client, or a proxy's, must not make the server look broken. */
static bool count_request(struct exchange *exchange, struct wire_problem *problem) {
    atomic_size_t *num_requests = &exchange->memory.client->num_requests;
    const struct route *route = exchange->request.route;
    size_t max = exchange->options->config->max_per_client;

    if (exchange->thread->address == ROUTE_AT_ADMIN ||
        (route != NULL && route->access & ROUTE_IS_HEALTH))
        return true;
    exchange->request.counted = atomic_fetch_add(num_requests, 1) < max || max == 0;
    if (exchange->request.counted)
        return true;
    atomic_fetch_sub(num_requests, 1);
    return wire_problem_set(problem, WIRE_E_TOO_MANY_REQUESTS, NULL,
                            "as many requests of this client are in progress as "
                            "--max-per-client %zu allows; retry later, and if it is a "
                            "proxy, start attnd with --trusted-proxy",
                            max);
}

/* --- the headers --- */

/* Checks that a body is as it is. Returns false with *problem set. */
static bool check_content_encoding(const struct exchange *exchange,
                                   struct wire_problem *problem) {
    const char *encoding = MHD_lookup_connection_value(
        exchange->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_ENCODING);
    return encoding == NULL ||
           wire_problem_set(
               problem, WIRE_E_UNSUPPORTED_MEDIA_TYPE, MHD_HTTP_HEADER_CONTENT_ENCODING,
               "Content-Encoding '%.60s' is not supported; send the body without one",
               encoding);
}

/* `size` is the number of bytes, or "more" when it is not known. */
static bool refuse_size(const struct exchange *exchange, const char *size,
                        struct wire_problem *problem) {
    const char *limit = "--max-body";
    const char *remedy = "send fewer sequences, safetensors or binary data instead of "
                         "JSON, or start attnd with a larger --max-body";
    if (exchange->body.max < exchange->options->config->max_body) {
        limit = "this route's limit of";
        remedy = "send a shorter one";
    }
    return wire_problem_set(
        problem, WIRE_E_BODY_TOO_LARGE, NULL, "the body has %s bytes%s than %s %zu; %s",
        size, *size == 'm' ? "" : ", more", limit, exchange->body.max, remedy);
}

/* Whether the body is not too large by its headers. */
static bool check_size(const struct exchange *exchange, const struct framing *framing,
                       struct wire_problem *problem) {
    char text[24];
    if (framing->content_length <= exchange->body.max)
        return true;
    snprintf(text, sizeof text, "%llu", (unsigned long long)framing->content_length);
    return refuse_size(exchange, text, problem);
}

/* Begins to receive the body, when it is not too large by its headers. */
static bool prepare_body(struct exchange *exchange, const struct framing *framing,
                         struct wire_problem *problem) {
    size_t limit = exchange->memory.memory->limit;
    uint64_t size = framing->content_length;

    if (!check_size(exchange, framing, problem))
        return false;
    if (size > limit)
        return wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                "the body has %llu bytes, more than the %zu that "
                                "--max-memory leaves for requests; send fewer or shorter "
                                "sequences",
                                (unsigned long long)size, limit);

    buf_init(&exchange->body.text, framing->chunked ? exchange->body.max : (size_t)size);
    upload_begin(&exchange->body.upload, &exchange->memory, &exchange->body.text);
    return true;
}

/* Whether a browser asks what a page elsewhere may send. */
static bool is_preflight(const struct exchange *exchange, const char *method) {
    return exchange->request.cross_origin != NULL &&
           strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0 &&
           MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                       MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_METHOD) !=
               NULL;
}

/* Whether the request has a key, or needs none. Without a key, a client cannot probe
 * routes, and at most 64 KiB of its body is read. */
static bool check_key(struct exchange *exchange, struct wire_problem *problem) {
    const struct route *route = exchange->request.route;
    if ((route != NULL && route->access & ROUTE_IS_OPEN) ||
        secrets_check_key(exchange->thread->secrets, exchange->connection,
                          exchange->request.key_name, &exchange->reply.challenge,
                          problem))
        return true;
    exchange->body.max_discarded = DISCARD_UNKNOWN_BYTES;
    return false;
}

/* No body belongs to such a request, so little of one is read. A client could otherwise
 * hold the models that the request began with for as long as it sends. */
static bool discard_needless_body(struct exchange *exchange,
                                  const struct framing *framing,
                                  struct wire_problem *problem) {
    exchange->body.max_discarded = DISCARD_UNKNOWN_BYTES;
    if (exchange->body.max > DISCARD_UNKNOWN_BYTES)
        exchange->body.max = DISCARD_UNKNOWN_BYTES;
    exchange->state = EXCHANGE_DISCARDS_BODY;
    return check_size(exchange, framing, problem);
}

/* Decides by the headers alone whether to accept the request. Returns false with *problem
 * set when not. */
static bool accept_headers(struct exchange *exchange, const char *path,
                           const char *method, const struct framing *framing,
                           struct wire_problem *problem) {
    if (is_preflight(exchange, method)) {
        reply_set_constant(exchange, MHD_HTTP_NO_CONTENT, NULL, "", 0);
        return discard_needless_body(exchange, framing, problem);
    }

    const struct route *route = exchange->request.route;
    if (!check_key(exchange, problem) || !join_owner(exchange, problem))
        return false;
    if (!route_check(exchange->thread->routes, route, exchange->thread->address, path,
                     method, problem))
        return false;
    if (strcmp(method, MHD_HTTP_METHOD_PUT) == 0) /* of a capture, piece by piece */
        return check_content_encoding(exchange, problem) &&
               captures_begin_put(exchange, framing, problem);
    if (route->check == NULL)
        return discard_needless_body(exchange, framing, problem);
    return check_content_encoding(exchange, problem) && route->check(exchange, problem) &&
           prepare_body(exchange, framing, problem);
}

/* Finds the route of the path, and the model that it names. */
static void find_route(struct exchange *exchange, const char *path) {
    const struct generation *generation = exchange->generation;
    const struct route_table *table = exchange->thread->routes;
    struct exchange_request *request = &exchange->request;
    const struct route_segment *name = &request->segments[0];

    request->model = generation->num_models;
    request->route = route_find(table, path, request->segments);
    if (request->route == NULL)
        return;
    exchange->record.facts.route = (size_t)(request->route - table->routes);
    exchange->record.facts.infers = request->route->access & ROUTE_INFERS;
    if (name->start != NULL && (request->route->access & ROUTE_OF_CAPTURE) == 0)
        request->model = wire_models_index(generation->models, generation->num_models,
                                           name->start, name->size);
    if (request->model < generation->num_models)
        observe_model(exchange, generation->models[request->model]);
}

static enum MHD_Result finish_request(struct exchange *exchange);

/* The first call for a request, when its headers are complete. Replies at once when the
 * body must not be read, or when 100 is expected without one: libmicrohttpd 0.9.75 would
 * send that, and close the connection when another request is behind. */
static enum MHD_Result begin_request(struct exchange *exchange,
                                     const struct framing_line *line) {
    const char *path = framing_path(line->url);
    struct framing framing;
    struct wire_problem problem;

    memccpy(exchange->request.method, line->method, '\0',
            sizeof exchange->request.method - 1);
    trace_begin(&exchange->record.trace, exchange->connection,
                &exchange->thread->trace_source);
    exchange->peer->request_id = exchange->record.trace.id;
    exchange->request.errors = route_errors(path);
    if (!framing_check(exchange->connection, &exchange->peer->target, line, &framing,
                       &problem)) {
        reply_set_problem(exchange, &problem);
        exchange->reply.close = true;
        return reply_send(exchange);
    }

    exchange->state = EXCHANGE_KEEPS_BODY;
    exchange->reply.close = framing.close;
    find_route(exchange, path);
    if (origin_check(exchange->connection, line->url, exchange->options->cors_origins,
                     &exchange->request.cross_origin, &problem) &&
        count_request(exchange, &problem) &&
        accept_headers(exchange, path, line->method, &framing, &problem)) {
        bool has_body = framing.content_length > 0 || framing.chunked;
        return framing.expects_continue && !has_body ? finish_request(exchange) : MHD_YES;
    }

    reply_set_problem(exchange, &problem);
    exchange->state = EXCHANGE_DISCARDS_BODY;
    bool too_long = framing.content_length > exchange->body.max_discarded ||
                    (framing.chunked && exchange->reply.challenge != NULL);
    return framing.expects_continue || too_long ? reply_send(exchange) : MHD_YES;
}

/* Refuses a request whose body is still arriving, and releases its memory. The rest of
 * the body is read: a client that is still sending does not look at a reply. */
static void refuse_while_receiving(struct exchange *exchange,
                                   const struct wire_problem *problem) {
    upload_end(&exchange->body.upload);
    capture_put_destroy(exchange->body.put);
    exchange->body.put = NULL;
    buf_deinit(&exchange->body.text);
    memory_keep(&exchange->memory, 0);
    reply_set_problem(exchange, problem);
    exchange->state = EXCHANGE_DISCARDS_BODY;
}

/* Receives *size bytes of the body. They come again when *size is not 0 afterwards; then
 * the exchange may belong to a worker, who takes a piece of a file first. Returns MHD_NO,
 * which closes the connection, when a client keeps sending what was refused. */
static enum MHD_Result receive_body(struct exchange *exchange, const char *data,
                                    size_t *size) {
    struct wire_problem problem;
    bool received = true, taken = true;

    /* Another thread may drop the body meanwhile, so its own sizes are not read. */
    if (exchange->state == EXCHANGE_DISCARDS_BODY)
        exchange->body.discarded += *size;
    else if (exchange->body.put != NULL)
        received = captures_receive(exchange, data, *size, &taken, &problem);
    else if (*size > exchange->body.max - exchange->record.facts.body_bytes)
        received = refuse_size(exchange, "more", &problem);
    else
        received = upload_append(&exchange->body.upload, data, *size, &problem);
    if (received && !taken)
        return MHD_YES;

    if (!received)
        refuse_while_receiving(exchange, &problem);
    connection_count_received(exchange->peer, *size);
    exchange->record.facts.body_bytes += *size;
    *size = 0;
    return exchange->body.discarded > exchange->body.max_discarded ? MHD_NO : MHD_YES;
}

/* When a complete request has its turn, and when it comes back with its reply. */
static enum MHD_Result serve_request(struct exchange *exchange) {
    struct wire_problem problem;
    if (exchange->reply.status == 0 && !exchange->work.abandoned &&
        !exchange->request.route->handle(exchange, &problem))
        reply_set_problem(exchange, &problem);
    if (exchange->state == EXCHANGE_WITH_WORKER)
        return MHD_YES;
    return exchange->work.abandoned ? MHD_NO : reply_send(exchange);
}

/* The last call before the reply, when the request is complete. */
static enum MHD_Result finish_request(struct exchange *exchange) {
    if (exchange->peer->cut_at != 0) /* it got a 408 */
        return MHD_NO;
    if (!upload_end(&exchange->body.upload)) {
        struct wire_problem problem;
        wire_problem_set_no_memory(&problem);
        refuse_while_receiving(exchange, &problem);
    }

    exchange->state = EXCHANGE_REPLIES;
    exchange->request.accepted = true;
    exchange->thread->num_accepted++;
    return handover_take_turn(exchange) ? serve_request(exchange) : MHD_YES;
}

static struct exchange *create_exchange(struct http_thread *thread,
                                        struct MHD_Connection *connection) {
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL)
        return NULL;

    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *peer = info->socket_context;
    exchange->peer = peer;
    peer->exchange = exchange;
    peer->request = &exchange->memory;
    connection_begin_phase(peer, CONNECTION_BODY);

    exchange->memory.memory = &peer->list->limits->memory;
    exchange->thread = thread;
    exchange->options = thread->options;
    exchange->generation = generation_acquire(thread->options->models);
    exchange->body.max = thread->options->config->max_body;
    exchange->body.max_discarded =
        thread->options->config->max_body + DISCARD_SLACK_BYTES;
    exchange->connection = connection;
    exchange->record.started = clock_now_ns();
    buf_init(&exchange->reply.text, SIZE_MAX); /* the budget limits it */
    thread->num_exchanges++;
    find_client(exchange);
    observe_begin(exchange);
    return exchange;
}

enum MHD_Result receive_handle(void *cls, struct MHD_Connection *connection,
                               const char *url, const char *method, const char *version,
                               const char *upload_data, size_t *upload_data_size,
                               void **req_cls) {
    const struct framing_line line = {method, url, version};
    struct exchange *exchange = *req_cls;
    struct http_thread *thread = cls;

    thread->num_calls++;
    if (exchange == NULL) {
        exchange = create_exchange(thread, connection);
        *req_cls = exchange;
        return exchange != NULL ? begin_request(exchange, &line) : MHD_NO;
    }
    if (exchange->state == EXCHANGE_WITH_WORKER) {
        bool waited = exchange->work.deferred && !exchange->work.abandoned;
        handover_reclaim(exchange);
        if (waited && !handover_take_turn(exchange))
            return MHD_YES;
        if (exchange->request.accepted)
            return serve_request(exchange);
        if (exchange->work.abandoned)
            return MHD_NO;
        /* A worker has taken a piece of a file, or has refused the file. */
        connection_begin_phase(exchange->peer, CONNECTION_BODY);
        exchange->state =
            exchange->reply.status != 0 ? EXCHANGE_DISCARDS_BODY : EXCHANGE_KEEPS_BODY;
    }
    return *upload_data_size > 0 ? receive_body(exchange, upload_data, upload_data_size)
                                 : finish_request(exchange);
}

void receive_completed(void *cls, struct MHD_Connection *connection, void **req_cls,
                       enum MHD_RequestTerminationCode code) {
    struct exchange *exchange = *req_cls;
    (void)cls;
    (void)connection;
    if (exchange == NULL)
        return;
    *req_cls = NULL;
    if (exchange->state == EXCHANGE_WITH_WORKER)
        handover_reclaim(exchange); /* the client went away meanwhile */
    upload_end(&exchange->body.upload);
    observe_end(exchange, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    turn_end(&exchange->thread->turns, &exchange->work.turn,
             exchange->record.started + exchange->record.facts.total_ns);

    exchange->thread->num_calls++;
    exchange->thread->num_exchanges--;
    exchange->thread->num_accepted -= exchange->request.accepted ? 1 : 0;
    buf_deinit(&exchange->body.text);
    buf_deinit(&exchange->reply.text);
    shared_text_release(exchange->reply.shared);
    arena_deinit(&exchange->work.decoded);
    stream_deinit(&exchange->reply.stream);
    capture_put_destroy(exchange->body.put);
    capture_release(exchange->work.capture);
    memory_keep(&exchange->memory, 0);
    leave_client(exchange);
    generation_release(exchange->generation);
    exchange->peer->exchange = NULL;
    exchange->peer->request = NULL;
    exchange->peer->request_id = NULL;
    connection_begin_phase(exchange->peer, CONNECTION_WAITS);
    free(exchange);
}
