/* SPDX-License-Identifier: Apache-2.0 */
/* http/captures/put.c: PUT /v1/captures/NAME. The HTTP thread fills a piece, and a worker
 * adds it to the capture, while the connection is suspended. */
#include "captures/put.h"
#include "base/size.h"
#include "http/captures/captures.h"
#include "http/handover.h"
#include "http/reply.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)1024 * 1024)
#define TTL_DIGITS  5 /* of a day in seconds */
#define NS_PER_BYTE 8 /* that a worker takes, estimated: it hashes, checks and writes */

/* --- to begin --- */

/* Reads how long the capture is kept, in ns. */
static bool read_ttl(const struct exchange *exchange, int64_t *ret_ttl,
                     struct wire_problem *ret_problem) {
    const char *query = exchange->peer->target.query, *digits = query + 4;
    int64_t max = (int64_t)exchange->options->config->capture_ttl * 1000000000;

    *ret_ttl = max;
    if (*query == '\0')
        return true;
    if (strncmp(query, "ttl=", 4) != 0)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, "query",
                                "the query of a PUT may have ttl alone; send "
                                "?ttl=SECONDS, or no query");
    size_t size = strspn(digits, "0123456789");
    *ret_ttl = strtoll(digits, NULL, 10) * (size <= TTL_DIGITS ? 1000000000 : 0);
    if (digits[size] == '\0' && *ret_ttl > 0 && *ret_ttl <= max)
        return true;
    return wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, "ttl",
                            "ttl is not a number of seconds from 1 to %lld, which "
                            "--capture-ttl sets; send one of these, or leave it out",
                            (long long)(max / 1000000000));
}

/* Checks what the headers and the path say. */
static bool check_put(const struct exchange *exchange, const struct framing *framing,
                      struct wire_problem *ret_problem) {
    const struct route_segment *name = &exchange->request.segments[0];

    if (!capture_name_is_valid(name->start, name->size))
        return wire_problem_set(ret_problem, WIRE_E_BAD_CAPTURE_NAME, NULL,
                                "a name has 1 to %d letters, digits, '-', '_' and '.', "
                                "and does not begin with '.'; choose such a name, or the "
                                "SHA-256 of the file",
                                CAPTURE_NAME_MAX);
    if (!framing->chunked &&
        MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                    MHD_HTTP_HEADER_CONTENT_LENGTH) != NULL)
        return true;
    return wire_problem_set(ret_problem, WIRE_E_LENGTH_REQUIRED,
                            MHD_HTTP_HEADER_CONTENT_LENGTH,
                            "a capture is sent with Content-Length, so that its room is "
                            "reserved; send that, and no Transfer-Encoding");
}

/* Reserves room for the capture. */
static bool create_put(struct exchange *exchange, size_t size,
                       struct wire_problem *ret_problem) {
    const struct route_segment *name = &exchange->request.segments[0];
    char address[ADDRESS_PRINT_MAX];
    int64_t ttl;

    if (!read_ttl(exchange, &ttl, ret_problem))
        return false;
    address_print(&exchange->memory.client->address, address);
    const char *space = captures_space(exchange);
    const struct capture_owner owner = {space, *space != '\0' ? space : address};
    if (capture_put_create(exchange->options->captures, &owner, name->start, name->size,
                           size, ttl, &exchange->body.put, ret_problem))
        return true;
    captures_count_refusal(exchange->options->captures, ret_problem->error);
    return false;
}

bool captures_begin_put(struct exchange *exchange, const struct framing *framing,
                        struct wire_problem *ret_problem) {
    size_t size = (size_t)framing->content_length;

    if (!captures_are_on(exchange, ret_problem) ||
        !check_put(exchange, framing, ret_problem) ||
        !create_put(exchange, size, ret_problem))
        return false;
    buf_init(&exchange->body.text, size_min(size, PIECE_BYTES));
    /* Read the rest of a bad file, so that the client gets to read the error. */
    exchange->body.max = exchange->body.max_discarded = size;
    return true;
}

/* --- pieces --- */

/* Publishes the file. A key that is gone meanwhile may have lost its captures before this
 * one was there. */
static bool publish_file(struct exchange *exchange, struct wire_problem *ret_problem,
                         bool *ret_created) {
    const struct route_segment *name = &exchange->request.segments[0];
    const char *space = captures_space(exchange);

    if (!capture_put_finish(exchange->body.put, &exchange->work.capture, ret_created,
                            ret_problem))
        return false;
    if (secrets_has_name(exchange->thread->secrets, space))
        return true;
    captures_delete(exchange->options->captures, space, name->start, name->size,
                    CAPTURE_REMOVED_DELETED);
    return wire_problem_set(ret_problem, WIRE_E_UNAUTHORIZED, NULL,
                            "the key was removed from this server; ask its operator for "
                            "one");
}

/* sched_job.run: adds a piece to the capture, and publishes it with the last one. An
 * error becomes the reply. */
static void run_file_piece(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, work.job);
    struct buf *piece = &exchange->body.text;
    const struct capture_printer printer = {memory_reserve, &exchange->memory,
                                            captures_print_layers};
    struct wire_problem problem;
    bool is_last = exchange->request.accepted, created = false;
    (void)worker;

    bool added = capture_put_add(exchange->body.put, (const unsigned char *)piece->data,
                                 piece->size, &printer, &problem) &&
                 (!is_last || publish_file(exchange, &problem, &created));
    piece->size = 0;
    if (!added || is_last) {
        capture_put_destroy(exchange->body.put);
        exchange->body.put = NULL;
        buf_deinit(piece);
    }
    memory_keep(&exchange->memory, piece->capacity);
    if (!added) {
        captures_count_refusal(exchange->options->captures, problem.error);
        reply_set_problem(exchange, &problem);
    } else if (is_last &&
               !captures_describe(exchange, created ? MHD_HTTP_CREATED : MHD_HTTP_OK,
                                  &problem)) {
        reply_set_problem(exchange, &problem);
    }
    handover_resume(exchange);
}

/* Hands the piece to a worker. Returns false with *ret_problem set when it is dropped. */
static bool submit_piece(struct exchange *exchange, struct wire_problem *ret_problem) {
    struct sched_job *job = &exchange->work.job;

    if (!upload_end(&exchange->body.upload))
        return wire_problem_set_no_memory(ret_problem);
    job->cost = (int64_t)exchange->body.text.size * NS_PER_BYTE;
    job->later = 0;
    handover_submit(exchange, run_file_piece);
    return true;
}

bool captures_receive(struct exchange *exchange, const char *data, size_t size,
                      bool *ret_taken, struct wire_problem *ret_problem) {
    struct upload *upload = &exchange->body.upload;

    if (upload->share == NULL) /* the piece is new */
        upload_begin(upload, &exchange->memory, &exchange->body.text);
    *ret_taken = size <= size_min(exchange->body.max, PIECE_BYTES) -
                             atomic_load(&upload->received);
    return *ret_taken ? upload_append(upload, data, size, ret_problem)
                      : submit_piece(exchange, ret_problem);
}

/* --- the routes --- */

/* Deletes the capture, and makes the reply. */
static bool delete_capture(struct exchange *exchange, struct wire_problem *ret_problem) {
    const struct route_segment *name = &exchange->request.segments[0];

    if (!captures_delete(exchange->options->captures, captures_space(exchange),
                         name->start, name->size, CAPTURE_REMOVED_DELETED))
        return captures_set_unknown(exchange, ret_problem);
    reply_set_constant(exchange, MHD_HTTP_NO_CONTENT, NULL, "", 0);
    return true;
}

bool captures_handle_one(struct exchange *exchange, struct wire_problem *ret_problem) {
    if (!captures_are_on(exchange, ret_problem))
        return false;
    if (strcmp(exchange->request.method, MHD_HTTP_METHOD_PUT) == 0)
        return submit_piece(exchange, ret_problem);
    if (strcmp(exchange->request.method, MHD_HTTP_METHOD_DELETE) == 0)
        return delete_capture(exchange, ret_problem);
    return captures_use(exchange, false, ret_problem) &&
           captures_describe(exchange, MHD_HTTP_OK, ret_problem);
}
