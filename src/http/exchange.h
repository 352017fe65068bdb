/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.h: one request and its reply.
 *
 * An exchange belongs to its HTTP thread. Between handover_suspend() and
 * handover_resume() it belongs to whom it was handed to, such as the worker that runs its
 * job. It has one owner at a time, so it has no lock. */
#pragma once

#include "base/buf.h"
#include "captures/limits.h"
#include "http/log/trace.h"
#include "http/net/connection.h"
#include "http/options.h"
#include "http/route.h"
#include "http/thread.h"
#include "http/work/stream.h"
#include "models/facts.h"
#include "models/generation.h"
#include "wire/media.h"
#include "wire/protocol.h"

#include <microhttpd.h>

struct capture;
struct capture_put;
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
    const struct wire_writer *writer; /* of attention; unused for an analysis of heads */
    size_t json_size;                 /* wire_input.json_size */
    const char *content_type;         /* replaces the writer's; NULL: keeps it */
    struct estimate_body body;        /* job_submit() sets its size */
};

/* A header of a reply. Both texts outlive the exchange. */
struct reply_header {
    const char *name, *value;
};

/* The path and the headers. Set before the body arrives. */
struct exchange_request {
    char method[8];            /* cut when it is longer, as none is that a route has */
    const struct route *route; /* of the path, whatever the method; NULL: none */
    struct route_segment
        segments[ROUTE_SEGMENTS_MAX]; /* those that the route leaves open */
    size_t model; /* the index of that which the first names; num_models: none */
    const struct wire_error_format *errors;  /* how this route writes errors */
    enum wire_media body_media, reply_media; /* of POST /v1/attention and the like */
    char key_name[API_KEY_NAME_MAX + 1];     /* of the key; "": none was needed */
    /* The Origin of an allowed page elsewhere, or NULL; borrowed from libmicrohttpd. */
    const char *cross_origin;
    struct client *member; /* of the key's owner; NULL: it has no key */
    bool counted;          /* in client.num_requests */
    bool counted_by_key;   /* in owner.num_requests */
    bool accepted;         /* it is complete, with its body */
};

/* The body, while it arrives and until it has been read. */
struct exchange_body {
    struct buf text;
    struct upload upload;    /* of `text`, until the request is complete */
    struct capture_put *put; /* owned: the file of which `text` is a piece; or NULL */
    size_t max;              /* bytes */
    size_t discarded;        /* bytes of a body that was refused */
    size_t max_discarded;    /* beyond which the connection is closed */
};

/* The job that runs while the connection is suspended. */
struct exchange_work {
    struct sched_job job;
    struct exchange_codec codec; /* set by job_submit() */
    int64_t submitted;           /* clock_now_ns; set by job_submit() */
    /* A decoded request may wait for a worker once more. */
    struct arena decoded;        /* zeroed; released when the request was computed */
    struct inference *inference; /* in `decoded` */
    bool abandoned;              /* the client left before it was computed */
    bool deferred;               /* it waits for its turn, not for a worker */
    struct turn turn;            /* of an HTTP thread, for which it may wait */
    struct capture *capture;     /* that the request uses, until it ends; or NULL */
};

struct exchange_reply {
    int status; /* HTTP; 0: the route's handler makes the reply */
    struct wire_reply_head head;
    struct buf text;
    struct http_stream stream; /* when it has begun, it replaces `text` */
    const char *constant;      /* [constant_size]; it follows `text`; NULL: none */
    size_t constant_size;
    struct shared_text *shared;         /* has the bytes of `constant`; NULL: they last */
    const char *note;                   /* Attnd-Note, a constant; or NULL */
    const char *challenge;              /* WWW-Authenticate of a 401, or NULL */
    const struct reply_header *headers; /* of the route, up to a name of NULL; or NULL */
    const char *encoding;               /* Content-Encoding, or NULL */
    char etag[CAPTURE_HASH_MAX + 2];    /* of a capture or a file of the page, or "" */
    bool retry_later;                   /* with Retry-After */
    bool close;                         /* with Connection: close */
};

/* For metrics, statistics and the log. */
struct exchange_record {
    int64_t started; /* clock_now_ns */
    struct request_facts facts;
    struct model_stats *stats; /* of facts.model, borrowed; NULL with it */
    struct trace trace;
};

/* Allocated by receive_handle(), freed by receive_completed(). */
struct exchange {
    struct http_thread *thread;
    const struct http_options *options;
    struct generation *generation; /* held from the first call to the end */
    struct MHD_Connection *connection;
    struct connection *peer;    /* outlives the exchange */
    struct memory_share memory; /* of the budget: all that the exchange has reserved */
    enum exchange_state state;
    struct exchange_request request;
    struct exchange_body body;
    struct exchange_work work;
    struct exchange_reply reply;
    struct exchange_record record;
};
