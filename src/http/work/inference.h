/* SPDX-License-Identifier: Apache-2.0 */
/* inference.h: one request on its worker, and the phases that it goes through: decode,
 * plan, compute, encode. job.c takes it from one to the next.
 *
 * The worker owns the exchange meanwhile. All sizes are known, and reserved from the
 * budget, before memory is allocated for them. Each phase returns false with *problem set
 * when the request ends there. */
#pragma once

#include "http/exchange.h"

#include <attnd/heads.h>

/* One request on its worker. Allocated in exchange->work.decoded. */
struct inference {
    struct exchange *exchange;
    struct sched_worker *worker;
    struct wire_request request;
    attn_parallel parallel; /* of request.batch */
    attn_sizes sizes;
    size_t reply_bound; /* bytes of text */
    bool streamed;
    struct arena *reply_arena; /* holds what the reply is written from */
    attn_result result;
    attn_heads heads; /* the result of an analysis of heads */
    size_t kept;      /* bytes that the reply holds until it is sent */
    /* Of this request. When several are computed as one, each counts an equal part of the
     * computation. */
    int64_t decode_ns, compute_ns, encode_ns;
    int64_t write_ns;  /* of encode_ns: the bytes alone */
    int64_t helped_ns; /* that other threads worked for it */
    bool joined;       /* computed together with others */
};

/* Attention and an analysis of heads differ in these functions, once decoded. */
struct inference_kind {
    attn_status (*plan)(const attn_model *model, const attn_request *request,
                        attn_sizes *ret_sizes, attn_error *ret_error);
    /* Calls inference_bound_reply(). */
    bool (*bound)(struct inference *inference, struct wire_problem *problem);
    /* Returns the bytes of results and reply, which saturate; sets `kept`. */
    size_t (*memory)(struct inference *inference);
    /* Allocates the results and computes them. Returns false when memory is short. */
    bool (*compute)(struct inference *inference, void *scratch);
    /* Checks the results and writes the reply; sets write_ns. */
    bool (*write)(struct inference *inference, struct wire_problem *problem);
    bool analyses; /* heads: targets need no word of need, and no requests are joined */
};

extern const struct inference_kind attention_kind; /* inference.c */
extern const struct inference_kind heads_kind;     /* heads.c */

/* Fails when the deadline is over, or the client has left. */
bool inference_check_deadline(const struct inference *inference,
                              struct wire_problem *problem);

/* Reads the body. */
bool inference_decode(struct inference *inference, struct wire_problem *problem);

/* Plans the layer for this worker, and bounds the reply. Call it again for another
 * worker. */
bool inference_plan(struct inference *inference, struct wire_problem *problem);

/* Sets the bound of the reply, and checks it against --max-reply. `smaller` says how to
 * ask for less, or is "". */
bool inference_bound_reply(struct inference *inference, size_t bytes, const char *smaller,
                           struct wire_problem *problem);

/* Reserves the memory of everything that follows, and computes. */
bool inference_compute(struct inference *inference, struct wire_problem *problem);

/* Reserves the memory of the reply alone: the result is where others are. Not for replies
 * that are streamed. */
bool inference_reserve_reply(struct inference *inference, struct wire_problem *problem);

/* Writes the reply, or its first piece; the stream writes the others. Then releases what
 * the reply does not need. */
bool inference_encode(struct inference *inference, struct wire_problem *problem);

/* On the HTTP thread, when the request is complete: suspends the connection and submits
 * the request to the workers (job.c). Returns false with *ret_problem set (503) when the
 * queue is full. */
bool job_submit(struct exchange *exchange, const struct exchange_codec *codec,
                struct wire_problem *ret_problem);
