/* SPDX-License-Identifier: Apache-2.0 */
/* group.c: finds requests that can be joined, and computes them in the arena of the
 * worker that found them. The memory of the joined batch is reserved by the first, which
 * ends last: the results of all are there. */
#include "http/work/group.h"

#include "base/container_of.h"
#include "base/hash.h"
#include "base/size.h"
#include "math/join.h"

#define GROUP_MAX WIRE_OIP_BATCH_MAX /* requests */
/* More rows gain little. */
#define MEMBER_ROWS_MAX (JOIN_ROWS_MAX / 2)

bool group_mark(struct inference *inference) {
    const struct wire_request *request = &inference->request;
    const attn_request *batch = &request->batch;
    const attn_sizes *sizes = &inference->sizes;
    struct sched_job *job = &inference->exchange->work.job;
    size_t rows =
        sizes->num_queries > sizes->num_keys ? sizes->num_queries : sizes->num_keys;
    const bool flags[] = {batch->omit_outputs, batch->need_heads, batch->need_lse,
                          batch->positions != NULL, batch->key_positions != NULL};
    uint64_t hash = HASH_START;

    job->group = 0;
    if (!inference->exchange->work.codec.kind->joins || rows > MEMBER_ROWS_MAX ||
        inference->streamed ||
        !join_possible(request->model, batch, batch)) /* a native engine */
        return false;

    hash = hash_bytes(hash, &request->model, sizeof request->model);
    hash = hash_bytes(hash, &batch->need_weights, sizeof batch->need_weights);
    hash = hash_bytes(hash, flags, sizeof flags);
    hash = hash_bytes(hash, &batch->window, sizeof batch->window);
    if (batch->head_mask != NULL)
        hash = hash_bytes(hash, batch->head_mask,
                          attn_model_get_info(request->model)->num_heads * sizeof(float));
    job->group = hash != 0 ? hash : 1;
    job->rows = rows;
    return true;
}

/* Takes requests that wait and can be joined with ret_members[0], whose worker then owns
 * them: they follow in ret_members, planned. Returns how many there are in all. A request
 * that ended meanwhile is passed to `end`. */
static size_t gather_members(struct inference *ret_members[GROUP_MAX],
                             void (*end)(struct inference *inference,
                                         const struct wire_problem *problem)) {
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
            end(member, &problem);
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

/* What the members have in common while they are computed. */
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
    inference_add_result_bytes(&joined.sizes, &bytes);
    if (!memory_reserve(&exchange->memory, bytes, &problem))
        return false;
    joined.scratch = arena_alloc(arena, joined.sizes.scratch_bytes, 1);
    bool allocated = joined.scratch != NULL &&
                     inference_alloc_result(arena, &joined.sizes, &joined.result);
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
    sched_share_loops(worker, true);
    attn_run(members[0]->request.model, &joined.request, joined.scratch, &joined.result);
    sched_share_loops(worker, false);

    int64_t used = sched_used_ns(worker) - begun, helped = sched_helped_ns(worker);
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

bool group_finish(struct inference *first,
                  void (*end)(struct inference *inference,
                              const struct wire_problem *problem)) {
    struct inference *members[GROUP_MAX] = {first};
    struct model_stats *stats = first->exchange->record.stats;
    struct sched_worker *worker = first->worker;
    struct wire_oip_batch took = {.count = 1};
    struct wire_problem problem;
    size_t count = gather_members(members, end);

    if (count == 1 || !compute_members(members, count)) {
        dissolve_members(members + 1, count - 1);
        return false;
    }

    /* What has no memory for its reply is computed once more, alone. */
    size_t first_left = count;
    for (size_t i = count; i-- > 0;) {
        sched_checkpoint(worker); /* all replies together may take some 20 ms */
        struct inference *member = members[i];
        bool done = inference_check_deadline(member, &problem);
        if (done && i > 0 && !inference_reserve_reply(member, &problem)) {
            members[--first_left] = member;
            continue;
        }
        member->joined = true;
        done = done && inference_encode(member, &problem);
        inference_add_times(member, &took);
        if (i == 0)
            model_stats_execute(stats, count, &took);
        end(member, done ? NULL : &problem);
    }
    dissolve_members(members + first_left, count - first_left);
    return true;
}
