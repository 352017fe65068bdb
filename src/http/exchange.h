/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.h: one request and its reply.
 *
 * An exchange belongs to its HTTP thread. Between exchange_suspend() and
 * exchange_resume() it belongs to whom it was handed to, such as the worker that runs its
 * job. It has one owner at a time, so it has no lock. */
#ifndef ATTND_HTTP_EXCHANGE_H
#define ATTND_HTTP_EXCHANGE_H

#include "base/buf.h"
#include "http/log/trace.h"
#include "http/net/connection.h"
#include "http/options.h"
#include "http/route.h"
#include "http/stream.h"
#include "http/thread.h"
#include "models/facts.h"
#include "models/generation.h"
#include "wire/protocol.h"

#include <microhttpd.h>

struct inference_kind; /* see work/inference.h */

enum exchange_state {
    EXCHANGE_KEEPS_BODY,    /* bytes that arrive are added to `body` */
    EXCHANGE_DISCARDS_BODY, /* the reply is known; bytes that arrive are dropped */
    EXCHANGE_WITH_WORKER,   /* suspended; or it waits for its turn */
    EXCHANGE_REPLIES        /* the reply is known and the request is complete */
};

/* How one request is read and its reply is written. Everything is borrowed: the models
 * outlive the exchange, the rest is constant. */
struct exchange_codec {
    const struct inference_kind *kind;
    wire_read *read;
    const struct wire_writer *writer; /* of attention; NULL for an analysis of heads */
    size_t json_size;                 /* wire_input.json_size */
    const char *content_type;         /* replaces the writer's; NULL: keeps it */
    bool text;                        /* the numbers of the body are text */
    const attn_model *const *models;
    size_t num_models;
};

/* A header of a reply. Both texts outlive the server. */
struct reply_header {
    const char *name, *value;
};

struct exchange {
    struct http_thread *thread;
    const struct http_options *options;
    struct generation *generation; /* held from the first call to the end */
    struct MHD_Connection *connection;
    struct connection *peer;   /* outlives the exchange */
    char method[8];            /* cut when it is longer, as none is that a route has */
    const struct route *route; /* of the path, whatever the method; NULL: none */
    struct route_word words[ROUTE_WORDS_MAX]; /* those that the route leaves open */
    const struct wire_error_format *errors;   /* how this route writes errors */
    struct exchange_codec codec;              /* set by job_submit() */
    enum exchange_state state;
    struct buf body;
    struct upload upload; /* of `body`, until the request is complete */
    size_t max_body;      /* bytes */
    bool counted;         /* in client.num_requests */
    bool accepted;        /* the request is complete */
    bool abandoned;       /* the client left before it was computed */
    bool deferred;        /* suspended until its turn comes */
    struct turn turn;     /* while it has not come */
    size_t discarded;     /* bytes of a body that was refused */
    size_t max_discarded; /* beyond which the connection is closed */
    char key_name[API_KEY_NAME_MAX +
                  1]; /* of the key that was sent; "": none was needed */
    struct memory_share memory;
    struct sched_job job;
    int64_t started;   /* clock_now_ns */
    int64_t submitted; /* likewise; set by job_submit() */
    /* What a worker has decoded. It may wait for a worker once more. */
    struct arena decoded;        /* released when the request has been computed */
    struct inference *inference; /* in `decoded` */

    /* The reply. */
    int status; /* HTTP; 0: the route's handler makes the reply */
    struct buf reply;
    struct http_stream stream; /* when it has begun, it replaces `reply` */
    const char *constant;      /* [constant_size], likewise; NULL: none */
    size_t constant_size;
    struct generation_text *shared;     /* has the bytes of `constant`; NULL: they last */
    const struct reply_header *headers; /* more of them, up to a name of NULL; or NULL */
    struct wire_reply_head head;
    const char *allow; /* the header of a 405, or NULL */
    /* WWW-Authenticate of a 401, or NULL. */
    const char *challenge;
    bool retry_later; /* with Retry-After */
    bool close;       /* with Connection: close */
    /* The Origin of an allowed page elsewhere, or NULL; borrowed from libmicrohttpd. */
    const char *cross_origin;
    bool preflight; /* the reply says what such a page may send */

    struct request_facts facts;
    struct model_stats *stats; /* of facts.model, borrowed; NULL with it */
    struct trace trace;
};

/* MHD_AccessHandlerCallback and MHD_RequestCompletedCallback; `cls` is the
 * http_thread. */
enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *connection,
                                const char *url, const char *method, const char *version,
                                const char *upload_data, size_t *upload_data_size,
                                void **req_cls);
void exchange_completed(void *cls, struct MHD_Connection *connection, void **req_cls,
                        enum MHD_RequestTerminationCode code);

/* Makes a problem the reply. */
void exchange_set_problem(struct exchange *exchange, const struct wire_problem *problem);

/* Makes the JSON in exchange->reply the reply, and reserves its bytes. `status` is the
 * result of writing it; when it is not ATTN_OK, or memory is short, the reply is a 503
 * instead. */
void exchange_set_json(struct exchange *exchange, attn_status status, int http_status);

/* Makes the text of the generation the reply, as generation_get_text() finds it. */
void exchange_set_shared(struct exchange *exchange, enum generation_text_id id,
                         int64_t max_age,
                         attn_status (*print)(void *context, struct buf *text),
                         void *context, const char *content_type);

/* Makes `bytes` the reply, which outlive the server. */
void exchange_set_constant(struct exchange *exchange, const char *content_type,
                           const char *bytes, size_t size);

/* Makes the reply one that says what a page elsewhere may send. */
void exchange_set_preflight(struct exchange *exchange);

/* Finds the model that the first open word of the path names. Otherwise makes the reply a
 * 404 that points to `list_route`, the route that lists the models, and returns false. */
bool exchange_find_model(struct exchange *exchange, const char *list_route,
                         size_t *ret_index);

/* Suspends the connection. The exchange then belongs to whom it is handed to next, who
 * ends with exchange_resume(): a worker, or the thread that loads models. */
void exchange_suspend(struct exchange *exchange);

/* Suspends the connection, then submits `run`. */
void exchange_hand_over(struct exchange *exchange,
                        void (*run)(struct sched_job *job, struct sched_worker *worker));

/* On the HTTP thread, once the connection was resumed: the thread owns the exchange
 * again. */
void exchange_reclaim(struct exchange *exchange);

/* Returns the requests of its client on its HTTP thread. */
struct turn_flow *exchange_flow(const struct exchange *exchange);

/* Suspends the connection until exchange_give_turn(). The HTTP thread owns the exchange
 * all the time. */
void exchange_wait_for_turn(struct exchange *exchange);
void exchange_give_turn(struct turn *turn);

/* On the HTTP thread: the client will send nothing more. A job that waits is taken back,
 * and the connection is then closed. One that runs may end early. */
void exchange_client_left(struct exchange *exchange);

/* Queues the reply, whose bytes then belong to libmicrohttpd. Returns MHD_NO, which
 * closes the connection, when memory is short. */
enum MHD_Result exchange_send(struct exchange *exchange);

/* What is noted about a request, and reported to all who watch it. On the HTTP thread,
 * but exchange_note_model() on any owner.
 *
 * When the headers have arrived: */
void exchange_note_begin(struct exchange *exchange);

/* Then, what the path alone says. */
void exchange_note_path(struct exchange *exchange, const char *path);

/* When the model of the request is known, or NULL, when it is none of those served. */
void exchange_note_model(struct exchange *exchange, const attn_model *model);

/* When the reply begins: counts the request. A client that has read its reply finds it
 * among the statistics. */
void exchange_note_reply(struct exchange *exchange);

/* When the request has ended: completes its facts. `sent` is whether libmicrohttpd has
 * sent the whole reply. */
void exchange_note_end(struct exchange *exchange, bool sent);

/* By who owns a suspended exchange: returns it, with its reply, to its HTTP thread. It
 * must not be touched afterwards. */
void exchange_resume(struct exchange *exchange);

#endif
