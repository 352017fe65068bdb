/* SPDX-License-Identifier: Apache-2.0 */
/* job.c: takes a request through its phases on workers, and notes what they took.
 *
 * A request that is expected to be large waits in two parts: its decoding alone, which
 * may be cheap, and then what follows, whose cost is known by then. It does not wait
 * twice when nothing else waits, nor when its decoding was a large job already. */
#include "http/work/inference.h"

#include "base/clock.h"
#include "base/size.h"
#include "captures/store.h"
#include "http/handover.h"
#include "http/observe.h"
#include "http/reply.h"
#include "math/join.h"
#include "math/plan/results.h"

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

/* --- the end --- */

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
    capture_release(exchange->work.capture);
    exchange->work.capture = NULL; /* who reads slowly keeps it from nobody */
    if (worker->job == &exchange->work.job)
        sched_end_job(worker);
    handover_resume(exchange);
}

/* --- several requests as one ---
 *
 * A request of few rows takes as long as reading the model's weights. So a worker that
 * takes such a request also takes those that wait decoded for the same model and can be
 * joined with it (math/join.h), of any client. Nothing waits for more to come. Each one
 * keeps its own exchange, reply and errors, and gets the bits that it would get alone.
 * All are computed in the arena of the worker that found them. The memory of the joined
 * batch is reserved by the first, which ends last: the results of all are there. */

/* Computing a request takes at least so many ns, else joining gains nothing. */
#define GROUP_NS_MIN 100000
#define GROUP_MAX    WIRE_OIP_BATCH_MAX /* requests */
/* More rows gain little. */
#define MEMBER_ROWS_MAX (JOIN_ROWS_MAX / 2)

/* Whether a planned request can be joined with others. Sets the group of its job, which
 * names the requests to try. */
static bool group_mark(struct inference *inference) {
    const struct wire_request *request = &inference->request;
    const attn_request *batch = &request->batch;
    const attn_sizes *sizes = &inference->sizes;
    struct sched_job *job = &inference->exchange->work.job;
    size_t rows = size_max(sizes->num_queries, sizes->num_keys);

    job->group = 0;
    if (inference->exchange->work.codec.kind->analyses || rows > MEMBER_ROWS_MAX ||
        inference->streamed ||
        !join_possible(request->model, batch, batch)) /* a native engine */
        return false;

    uint64_t hash = join_hash(request->model, batch);
    job->group = hash != 0 ? hash : 1;
    job->rows = rows;
    return true;
}

/* Takes requests that wait and can be joined with ret_members[0], whose worker then owns
 * them: they follow in ret_members, planned. Ends those that are over. Returns how many
 * there are in all. */
static size_t gather_members(struct inference *ret_members[GROUP_MAX]) {
    struct inference *first = ret_members[0];
    struct sched_worker *worker = first->worker;
    struct sched_job *own = &first->exchange->work.job, *jobs[GROUP_MAX - 1];
    uint64_t group = own->group;
    size_t count = 1;

    own->group = 0;
    size_t num_jobs =
        sched_take_group(worker, group, JOIN_ROWS_MAX - own->rows, jobs, GROUP_MAX - 1);

    for (size_t i = 0; i < num_jobs; i++) {
        struct inference *member =
            container_of(jobs[i], struct exchange, work.job)->work.inference;
        struct wire_problem problem;
        member->worker = worker;
        if (!inference_check_deadline(member, &problem) ||
            !inference_plan(member, &problem)) {
            end_inference(member, &problem);
        } else if (join_possible(first->request.model, &first->request.batch,
                                 &member->request.batch)) {
            jobs[i]->group = 0;
            ret_members[count++] = member;
        } else { /* the same hash by chance */
            sched_submit(worker->pool, jobs[i]);
        }
    }
    return count;
}

/* Shared by the members while they are computed. */
struct joined {
    attn_request request;
    attn_sizes sizes;
    void *scratch;
    attn_result result;
};

/* Copies the members to one batch; reserves and allocates its memory. */
static bool join_members(struct inference *members[], size_t count,
                         struct joined *ret_joined) {
    struct exchange *exchange = members[0]->exchange;
    struct arena *arena = &members[0]->worker->arena;
    const attn_model *model = members[0]->request.model;
    const attn_request *requests[GROUP_MAX];
    struct joined joined = {0};
    struct wire_problem problem;

    for (size_t i = 0; i < count; i++)
        requests[i] = &members[i]->request.batch;
    size_t bytes = join_bytes(model, requests, count);
    void *memory = memory_reserve(&exchange->memory, bytes, &problem)
                       ? arena_alloc(arena, bytes, 1)
                       : NULL;
    if (memory == NULL)
        return false;
    join_pack(model, requests, count, memory, &joined.request);
    if (attn_plan(model, &joined.request, &joined.sizes, NULL) != ATTN_OK)
        return false;

    bytes = joined.sizes.scratch_bytes;
    results_add_bytes(&joined.sizes, &bytes);
    if (!memory_reserve(&exchange->memory, bytes, &problem))
        return false;
    joined.scratch = arena_alloc(arena, joined.sizes.scratch_bytes, 1);
    bool allocated =
        joined.scratch != NULL && results_alloc(arena, &joined.sizes, &joined.result);
    *ret_joined = joined;
    return allocated;
}

/* Computes all members at once, in the arena of their worker. Memory for the reply of the
 * first is then reserved, too. Returns false, with nothing computed or reserved, when
 * there is not enough memory. */
static bool compute_members(struct inference *members[], size_t count) {
    struct exchange *exchange = members[0]->exchange;
    struct sched_worker *worker = members[0]->worker;
    size_t held = atomic_load(&exchange->memory.bytes);
    int64_t begun = sched_used_ns(worker);
    struct wire_problem problem;
    struct joined joined;

    if (!inference_reserve_reply(members[0], &problem) ||
        !join_members(members, count, &joined)) {
        memory_keep(&exchange->memory, held);
        arena_reset(&worker->arena);
        return false;
    }
    worker->shares_loops = true; /* the next loop is begun under the lock */
    attn_run(members[0]->request.model, &joined.request, &joined.sizes, joined.scratch,
             &joined.result);
    worker->shares_loops = false;

    int64_t used = sched_used_ns(worker) - begun,
            helped = atomic_load(&worker->helped_ns);
    for (size_t i = 0; i < count; i++) {
        members[i]->result = join_take(&joined.result, &members[i]->sizes);
        members[i]->compute_ns = used / (int64_t)count;
        members[i]->helped_ns = helped / (int64_t)count;
    }
    return true;
}

/* Lets members wait again, to be computed alone. */
static void dissolve_members(struct inference *members[], size_t count) {
    for (size_t i = 0; i < count; i++)
        sched_submit(members[i]->worker->pool, &members[i]->exchange->work.job);
}

/* Computes, encodes and ends a request, and before it those that wait and can be joined.
 * When there is not enough memory for all, others wait again, to be computed alone. */
static void finish(struct inference *first) {
    struct inference *members[GROUP_MAX] = {first};
    struct model_stats *stats = first->exchange->record.stats; /* NULL: has no model */
    struct sched_worker *worker = first->worker;
    struct model_run took = {0};
    struct wire_problem problem;
    size_t count = first->exchange->work.job.group != 0 ? gather_members(members) : 1;
    bool joined = count > 1 && compute_members(members, count);

    if (!joined) {
        dissolve_members(members + 1, count - 1);
        count = 1;
    }
    bool computed = joined || inference_compute(first, &problem);

    /* A member without memory for its reply is computed once more, alone. */
    size_t first_left = count;
    for (size_t i = count; i-- > 0;) {
        struct inference *member = members[i];
        bool done = computed;
        if (joined) {
            sched_checkpoint(worker); /* all replies together may take some 20 ms */
            done = inference_check_deadline(member, &problem);
        }
        if (done && i > 0 && !inference_reserve_reply(member, &problem)) {
            members[--first_left] = member;
            continue;
        }
        member->joined = joined;
        done = done && inference_encode(member, &problem);
        took.decode += member->decode_ns;
        took.compute += member->compute_ns;
        took.encode += member->encode_ns;
        if (i == 0 && computed && stats != NULL)
            model_stats_execute(stats, count, &took);
        end_inference(member, done ? NULL : &problem);
    }
    dissolve_members(members + first_left, count - first_left);
}

/* --- the phases --- */

/* Decodes the body, and notes which model it is for. An unknown model name is not counted
 * for the only model. Requests without a model are not counted for one: theirs is freed
 * before logging. */
static bool decode_and_note(struct inference *inference, struct wire_problem *problem) {
    bool decoded = inference_decode(inference, problem);
    if (inference->exchange->work.codec.body.num_models == 0)
        return decoded;
    if (inference->request.model != NULL || problem->error == WIRE_E_UNKNOWN_MODEL)
        observe_model(inference->exchange, inference->request.model);
    return decoded;
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

    job->cost = joins ? estimate_joined(inference, rest) : rest;
    sched_submit(worker->pool, job);
    return true;
}

/* sched_job.run of a request. Decodes it, unless that was done before it waited. */
static void run_request(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, work.job);
    struct inference *inference = exchange->work.inference;
    struct wire_problem problem;
    bool has_waited = inference != NULL;

    if (!has_waited)
        inference = arena_alloc(&exchange->work.decoded, 1, sizeof *inference);
    if (inference == NULL) {
        wire_problem_set_no_memory(&problem);
        reply_set_problem(exchange, &problem);
        handover_resume(exchange);
        return;
    }
    if (!has_waited)
        *inference = (struct inference){.exchange = exchange};
    inference->worker = worker;
    exchange->work.inference = inference;
    if (!inference_check_deadline(inference, &problem) ||
        (!has_waited && (!decode_and_note(inference, &problem) ||
                         !inference_check_deadline(inference, &problem))) ||
        !inference_plan(inference, &problem))
        end_inference(inference, &problem);
    else if (has_waited || !wait_decoded(inference))
        finish(inference);
}

bool job_submit(struct exchange *exchange, const struct exchange_codec *codec,
                struct wire_problem *ret_problem) {
    exchange->work.codec = *codec;
    exchange->work.codec.body.size = exchange->record.facts.body_bytes;
    exchange->work.submitted = clock_now_ns();
    if (codec->body.num_models == 1)
        observe_model(exchange, codec->body.models[0]);
    estimate_job(exchange);
    exchange->work.abandoned = exchange->peer->hung_up;
    if (exchange->work.abandoned)
        return true;

    if (!sched_reserve(exchange->options->pool, &exchange->work.job))
        return wire_problem_set(ret_problem, WIRE_E_QUEUE_FULL, NULL,
                                "the queue is full (--queue), or the wait would exceed "
                                "--max-queue-delay; retry later");
    handover_submit(exchange, run_request);
    return true;
}
