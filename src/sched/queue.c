/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c: a ring of flows that is sorted by tag, and a list of jobs in each flow.
 *
 * Only the first job of a flow needs a tag: the start tag of each other one is the finish
 * tag of the job before it. So a job can be removed, or put before others of its flow,
 * without touching tags. */
#include "sched/queue.h"

#include "base/clock.h"

void queue_init(struct queue *queue) {
    *queue = (struct queue){.ring.tag = INT64_MIN};
    queue->ring.next = queue->ring.previous = &queue->ring;
}

/* --- flows --- */

/* Links a flow into the ring. It usually belongs near the end. */
static void link_flow(struct queue *queue, struct sched_flow *flow) {
    struct sched_flow *at = queue->ring.previous;
    while (at->tag > flow->tag || (at->tag == flow->tag && at->class > flow->class))
        at = at->previous;

    flow->previous = at;
    flow->next = at->next;
    flow->next->previous = at->next = flow;
    queue->num_flows++;
}

static void unlink_flow(struct queue *queue, struct sched_flow *flow) {
    flow->next->previous = flow->previous;
    flow->previous->next = flow->next;
    queue->num_flows--;
}

/* Returns the start tag of a job that is first in its flow. */
static int64_t find_start(const struct queue *queue, const struct sched_flow *flow) {
    int64_t time = atomic_load(&queue->time);
    return flow->first != NULL || flow->tag > time ? flow->tag : time;
}

/* Notes that the workers have come to a job with this start tag. */
static void reach_tag(struct queue *queue, int64_t tag) {
    if (tag > atomic_load(&queue->time))
        atomic_store(&queue->time, tag);
}

/* Serves a flow that is not in the ring: its tag grows by `cost`, and virtual time by a
 * part of it. */
static void serve_flow(struct queue *queue, struct sched_flow *flow, int64_t cost) {
    int64_t num_shares = (int64_t)queue->num_flows + 2; /* this one, and a new one */
    atomic_fetch_add(&queue->time, cost / num_shares);
    flow->tag += cost;

    if (flow->tag > queue->max_finish)
        queue->max_finish = flow->tag;
    if (flow->class == SCHED_LARGE && flow->tag > queue->max_large_finish)
        queue->max_large_finish = flow->tag;
}

/* --- jobs --- */

/* Returns the start tag that a new job has among the members of its client. */
static int64_t find_member_start(const struct sched_flow *flow,
                                 const struct sched_job *job, enum sched_class class) {
    int64_t time = atomic_load(&flow->member_time);
    int64_t tag = job->member != NULL ? atomic_load(&job->member->tags[class]) : time;
    return tag > time ? tag : time;
}

/* Whether a job that waits is behind a new job of this priority and start tag. */
static bool waits_behind(const struct sched_job *at, uint32_t priority,
                         int64_t member_tag) {
    /* The default, 0, becomes the largest number. */
    return at->priority - 1 > priority - 1 ||
           (at->priority == priority && at->member_tag > member_tag);
}

/* Returns the last job that is not behind a new one. */
static struct sched_job *find_job_before(const struct sched_flow *flow,
                                         const struct sched_job *job) {
    struct sched_job *at = flow->last;
    while (at != NULL && waits_behind(at, job->priority, job->member_tag))
        at = at->previous;
    return at;
}

void queue_add(struct queue *queue, struct sched_job *job) {
    job->cost = clock_earlier(job->cost, SCHED_COST_MAX);
    job->class = job->cost > SCHED_CHEAP_NS ? SCHED_LARGE : SCHED_CHEAP;
    struct sched_flow *flow = &job->client->flows[job->class];
    if (flow->first == NULL) {
        flow->class = job->class;
        flow->tag = find_start(queue, flow);
        link_flow(queue, flow);
    }

    job->member_tag = find_member_start(flow, job, job->class);
    if (job->member != NULL)
        atomic_store(&job->member->tags[job->class], job->member_tag + job->cost);
    job->previous = find_job_before(flow, job);
    job->next = job->previous != NULL ? job->previous->next : flow->first;
    *(job->previous != NULL ? &job->previous->next : &flow->first) = job;
    *(job->next != NULL ? &job->next->previous : &flow->last) = job;
    job->waits = true;

    flow->cost += job->cost;
    flow->later += job->later;
    flow->num_jobs++;
    atomic_fetch_add(&queue->num_jobs[job->class], 1);
}

/* Unlinks a job; its flow stays in the ring, also when it is empty. */
static struct sched_flow *unlink_job(struct queue *queue, struct sched_job *job) {
    struct sched_flow *flow = &job->client->flows[job->class];
    *(job->previous != NULL ? &job->previous->next : &flow->first) = job->next;
    *(job->next != NULL ? &job->next->previous : &flow->last) = job->previous;
    job->waits = false;

    flow->cost -= job->cost;
    flow->later -= job->later;
    flow->num_jobs--;
    atomic_fetch_sub(&queue->num_jobs[job->class], 1);
    return flow;
}

void queue_remove(struct queue *queue, struct sched_job *job) {
    struct sched_flow *flow = unlink_job(queue, job);
    if (flow->first == NULL)
        unlink_flow(queue, flow);
}

/* Takes a job of a flow, which then waits for its next turn. */
static struct sched_job *take_from_flow(struct queue *queue, struct sched_flow *flow,
                                        struct sched_job *job) {
    job->tag = flow->tag;
    if (job->member_tag > atomic_load(&flow->member_time))
        atomic_store(&flow->member_time, job->member_tag);
    unlink_job(queue, job);
    unlink_flow(queue, flow);
    serve_flow(queue, flow, job->cost);
    if (flow->first != NULL)
        link_flow(queue, flow);
    return job;
}

struct sched_job *queue_take(struct queue *queue) {
    struct sched_flow *flow = queue->ring.next;
    if (flow == &queue->ring)
        return NULL;
    reach_tag(queue, flow->tag);
    return take_from_flow(queue, flow, flow->first);
}

struct sched_job *queue_take_inner(struct queue *queue, enum sched_class class,
                                   int64_t reached, queue_fits *fits,
                                   const void *context) {
    if (reached < queue->max_large_finish)
        reached = queue->max_large_finish;
    /* The next large job of the client whose job runs begins at its very end. */
    reached -= class == SCHED_CHEAP;
    for (struct sched_flow *flow = queue->ring.next;
         flow != &queue->ring && flow->tag <= reached; flow = flow->next) {
        if (flow->class == class && (fits == NULL || fits(context, flow->first)))
            return take_from_flow(queue, flow, flow->first);
    }
    return NULL;
}

/* Takes jobs of a group from one flow. */
static size_t take_group_from_flow(struct queue *queue, struct sched_flow *flow,
                                   uint64_t group, size_t *max_rows,
                                   struct sched_job **ret_jobs, size_t max) {
    size_t count = 0;
    struct sched_job *next;

    for (struct sched_job *job = flow->first; job != NULL && count < max; job = next) {
        next = job->next;
        if (job->group != group || job->rows > *max_rows)
            continue;
        *max_rows -= job->rows;
        queue_remove(queue, job);
        ret_jobs[count++] = job;
    }
    return count;
}

size_t queue_take_group(struct queue *queue, uint64_t group, size_t max_rows,
                        struct sched_job **ret_jobs, size_t max) {
    struct sched_flow *flow, *next;
    size_t count = 0;

    for (flow = queue->ring.next; flow != &queue->ring; flow = next) {
        next = flow->next; /* the flow leaves the ring with its last job */
        count += take_group_from_flow(queue, flow, group, &max_rows, ret_jobs + count,
                                      max - count);
    }
    return count;
}

int64_t queue_charge(struct queue *queue, struct sched_client *client, int64_t cost) {
    struct sched_flow *flow = &client->flows[SCHED_LARGE];
    int64_t tag = find_start(queue, flow);
    bool waits = flow->first != NULL;

    if (waits)
        unlink_flow(queue, flow);
    flow->class = SCHED_LARGE;
    flow->tag = tag;
    reach_tag(queue, tag);
    serve_flow(queue, flow, cost);
    if (waits)
        link_flow(queue, flow);
    return tag;
}

void queue_refund(struct queue *queue, struct sched_client *client, int64_t used,
                  int64_t unused) {
    struct sched_flow *flow = &client->flows[SCHED_LARGE];
    int64_t least = atomic_load(&queue->time) + used, tag = flow->tag - unused;
    bool waits = flow->first != NULL;

    if (tag < least)
        tag = least;
    if (tag >= flow->tag)
        return;
    if (waits)
        unlink_flow(queue, flow);
    flow->tag = tag;
    if (waits)
        link_flow(queue, flow);
}

void queue_forget_shares(struct queue *queue) {
    reach_tag(queue, queue->max_finish);
}

/* --- time --- */

/* Adds up what flows are served before the tag; or, of a cheap job, cheap flows alone: a
 * large job lets it pass between two of its tasks. */
static int64_t find_work_before(const struct queue *queue, int64_t tag, bool cheap) {
    int64_t sum = 0;
    for (const struct sched_flow *at = queue->ring.next;
         at != &queue->ring && at->tag < tag; at = at->next) {
        int64_t work = at->cost + (cheap ? 0 : at->later);
        if (!cheap || at->class == SCHED_CHEAP)
            sum += clock_earlier(work, tag - at->tag);
    }
    return sum;
}

int64_t queue_work_before(const struct queue *queue, const struct sched_job *job) {
    bool large = job->cost + job->later > SCHED_CHEAP_NS;
    const struct sched_flow *flows = job->client->flows;
    enum sched_class class = large ? SCHED_LARGE : SCHED_CHEAP;
    const struct sched_flow *flow = &flows[class];
    int64_t tag = find_start(queue, flow) + flow->cost;
    int64_t member_tag = find_member_start(flow, job, class);

    for (const struct sched_job *at = flow->last;
         at != NULL && waits_behind(at, job->priority, member_tag); at = at->previous)
        tag -= at->cost;
    if (large)
        tag += flows[SCHED_CHEAP].later;
    return find_work_before(queue, tag, !large);
}

int64_t queue_work(const struct queue *queue) {
    return find_work_before(queue, INT64_MAX, false);
}
