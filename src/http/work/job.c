/* SPDX-License-Identifier: Apache-2.0 */
/* job.c: takes a request through its phases on workers, and notes what they took.
 *
 * A request that is expected to be large waits in two parts: its decoding alone, which
 * may be cheap, and then what follows, whose cost is known by then. It does not wait
 * twice when nothing else waits, nor when its decoding was a large job already. */
#include "http/work/job.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "http/handover.h"
#include "http/observe.h"
#include "http/reply.h"
#include "http/work/group.h"

/* --- what it will take --- */

/* Returns how many bytes of the reply the job itself writes. */
static size_t first_piece_bytes(const struct inference *inference) {
    return inference->streamed ? STREAM_PIECE_BYTES : inference->reply_bound;
}

static void learn_times(const struct inference *inference) {
    const struct exchange *exchange = inference->exchange;
    const struct estimate_measured measured = {
        .model = inference->request.model,
        .flops = inference->joined ? 0 : inference->sizes.flops,
        .reply = first_piece_bytes(inference),
        .decode = inference->decode_ns,
        .compute = inference->compute_ns + inference->helped_ns,
        .encode = inference->encode_ns,
        .write = inference->write_ns};

    estimate_learn(exchange->generation->estimate, &exchange->work.codec.body, &measured);
}

/* Sets the estimates of a job that was not decoded yet. */
static void estimate_job(struct exchange *exchange) {
    struct sched_job *job = &exchange->work.job;

    estimate_body(exchange->generation->estimate, &exchange->work.codec.body, &job->cost,
                  &job->later);
    if (job->cost + job->later > SCHED_CHEAP_NS)
        return;
    job->cost += job->later;
    job->later = 0;
}

/* Estimates what follows the decoding of a request that is computed alone. */
static int64_t estimate_rest(const struct inference *inference) {
    const struct exchange *exchange = inference->exchange;
    const struct estimate *estimate = exchange->generation->estimate;
    return estimate_compute(estimate, inference->request.model, inference->sizes.flops) +
           estimate_reply(estimate, exchange->work.codec.body.text,
                          first_piece_bytes(inference));
}

/* --- the phases --- */

/* Decodes the body, and notes which model it is for. A body that names an unknown one is
 * not for the only one that is served. Where none can be named, the request makes one of
 * its own, which ends before the request is logged. */
static bool decode_and_note(struct inference *inference, struct wire_problem *problem) {
    bool decoded = inference_decode(inference, problem);
    if (inference->exchange->work.codec.body.num_models == 0)
        return decoded;
    if (inference->request.model != NULL || problem->error == WIRE_E_UNKNOWN_MODEL)
        observe_model(inference->exchange, inference->request.model);
    return decoded;
}

static bool decode_and_plan(struct inference *inference, struct wire_problem *problem) {
    return inference_check_deadline(inference, problem) &&
           decode_and_note(inference, problem) &&
           inference_check_deadline(inference, problem) &&
           inference_plan(inference, problem);
}

/* Notes what the worker knows of the request. */
static void note_facts(const struct inference *inference) {
    struct exchange *exchange = inference->exchange;
    struct request_facts *facts = &exchange->record.facts;
    int64_t worked = inference->decode_ns + inference->compute_ns + inference->encode_ns;

    facts->rows = inference->sizes.num_queries;
    facts->queue_ns = clock_now_ns() - exchange->work.submitted - worked;
    facts->decode_ns = inference->decode_ns;
    facts->compute_ns = inference->compute_ns;
    facts->encode_ns = inference->encode_ns;
}

/* Ends the job; `problem` is the reply, unless it is NULL. */
static void end_inference(struct inference *inference,
                          const struct wire_problem *problem) {
    struct exchange *exchange = inference->exchange;

    note_facts(inference);
    if (problem == NULL) {
        learn_times(inference);
        exchange->reply.status = MHD_HTTP_OK;
    } else {
        reply_set_problem(exchange, problem);
    }

    struct sched_worker *worker = inference->worker;
    if (problem != NULL)
        stream_deinit(&exchange->reply.stream);
    arena_deinit(&exchange->work.decoded); /* holds the inference itself */
    if (worker->job == &exchange->work.job)
        sched_end_job(worker);
    handover_resume(exchange);
}

/* Computes and encodes the request, together with others or alone. */
static void finish(struct inference *inference) {
    struct wire_oip_batch took = {.count = 1};
    struct wire_problem problem;

    if (inference->exchange->work.job.group != 0 &&
        group_finish(inference, end_inference))
        return;
    bool done = inference_compute(inference, &problem);
    if (done) {
        done = inference_encode(inference, &problem);
        inference_add_times(inference, &took);
        if (inference->exchange->record.stats != NULL) /* there is a model */
            model_stats_execute(inference->exchange->record.stats, 1, &took);
    }
    end_inference(inference, done ? NULL : &problem);
}

/* sched_job.run of a request that waited decoded. */
static void run_decoded(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, work.job);
    struct inference *inference = exchange->work.inference;
    struct wire_problem problem;

    inference->worker = worker;
    if (inference_check_deadline(inference, &problem) &&
        inference_plan(inference, &problem)) /* for another worker */
        finish(inference);
    else
        end_inference(inference, &problem);
}

/* Estimates what follows the decoding of a request that will be joined: its part of what
 * was needed for others like it. */
static int64_t estimate_joined(const struct inference *inference, int64_t rest) {
    const struct exchange *exchange = inference->exchange;
    int64_t decode, later;

    estimate_body(exchange->generation->estimate, &exchange->work.codec.body, &decode,
                  &later);
    return later < rest ? later : rest;
}

/* Lets a decoded request wait for its turn among the large ones, or for others to join.
 * On an outer worker it goes on when its decoding was a large job already, or when
 * nothing else waits. Inside another job it never does, since it may be longer than was
 * expected. Returns whether it waits; the caller then no longer owns it. */
static bool wait_decoded(struct inference *inference) {
    struct exchange *exchange = inference->exchange;
    struct sched_worker *worker = inference->worker;
    struct sched_job *job = &exchange->work.job;
    int64_t rest = estimate_rest(inference);
    bool joins = rest >= GROUP_NS_MIN && group_mark(inference);

    job->later = 0; /* it follows now; a piece of the reply has no second part */
    if ((rest <= SCHED_CHEAP_NS && !joins) ||
        (worker->is_outer && (job->cost > SCHED_CHEAP_NS || !sched_any_waits(worker)))) {
        if (rest > SCHED_CHEAP_NS)
            sched_go_on(worker, rest);
        return false;
    }

    job->run = run_decoded;
    job->cost = joins ? estimate_joined(inference, rest) : rest;
    exchange->work.inference = inference;
    sched_submit(worker->pool, job);
    return true;
}

/* sched_job.run of a request that was not decoded yet. */
static void run_received(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, work.job);
    struct inference *inference =
        arena_alloc(&exchange->work.decoded, 1, sizeof *inference);
    struct wire_problem problem;

    if (inference == NULL) {
        wire_problem_set_no_memory(&problem);
        reply_set_problem(exchange, &problem);
        handover_resume(exchange);
        return;
    }
    *inference = (struct inference){.exchange = exchange, .worker = worker};
    if (!decode_and_plan(inference, &problem))
        end_inference(inference, &problem);
    else if (!wait_decoded(inference))
        finish(inference);
}

void job_submit(struct exchange *exchange, const struct exchange_codec *codec) {
    exchange->work.codec = *codec;
    exchange->work.codec.body.size = exchange->record.facts.body_bytes;
    exchange->work.submitted = clock_now_ns();
    if (codec->body.num_models == 1)
        observe_model(exchange, codec->body.models[0]);
    estimate_job(exchange);
    exchange->work.abandoned = exchange->peer->hung_up;
    if (exchange->work.abandoned)
        return;

    if (sched_reserve(exchange->options->pool, &exchange->work.job)) {
        handover_submit(exchange, run_received);
        return;
    }
    struct wire_problem problem;
    wire_problem_set(&problem, WIRE_E_QUEUE_FULL, NULL,
                     "the queue is full (--queue), or the wait would exceed "
                     "--max-queue-delay; retry later");
    reply_set_problem(exchange, &problem);
}
