/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h: the jobs that wait, in an order that is fair to the clients.
 *
 * Start-time fair queueing (Goyal, Vin and Cheng 1996). The jobs of one client and class
 * are a flow. A job's start tag is the virtual time when it arrives, or the finish tag of
 * the job before it in its flow, whichever is later. Its finish tag is its start tag plus
 * its cost. The job with the lowest start tag is next. So each flow gets an equal share
 * of the workers, whatever the others submit, and a flow that uses less than its share
 * does not wait behind those that use more. Cheap jobs are a flow of their own: they pass
 * the large jobs of every client, and of their own, while they use less than a share.
 *
 * Virtual time is the largest start tag that an outer worker has taken, plus a part of
 * the cost of every job since: an equal part for each flow. So tags of new flows grow as
 * work is done, and clients that come for the first time cannot delay a waiting job for
 * ever. The tags of inner jobs do not count: these run ahead of their turn, up to the
 * end of the job around them, and a new flow must still find its turn before that end.
 *
 * Several members may share a client, such as the addresses that use one key. Their jobs
 * are ordered in the same way inside the flow, in a virtual time of its own.
 *
 * Nothing here has a lock: the pool's lock guards queue, flows and the jobs that wait. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A job is cheap when its cost is at most this. A large one looks for cheap ones about as
 * often. */
#define SCHED_CHEAP_NS ((int64_t)2000000)
#define SCHED_COST_MAX ((int64_t)3600 * 1000000000) /* a higher cost counts as this */

struct sched_worker;
struct sched_job;

enum sched_class { SCHED_CHEAP, SCHED_LARGE, SCHED_NUM_CLASSES };

/* The jobs of one client and class. */
struct sched_flow {
    struct sched_flow *next, *previous; /* of the queue's ring, while jobs wait */
    struct sched_job *first, *last;     /* by priority, then oldest first */
    int64_t tag;            /* start tag of `first`, or the last job's finish tag */
    int64_t cost, later;    /* of all jobs that wait here */
    size_t num_jobs;        /* that wait here */
    enum sched_class class; /* of its jobs, once it has had one */
    /* The largest start tag of a member's job that was taken. */
    atomic_int_fast64_t member_time;
};

/* The owner of jobs. Zeroed, it has no jobs. It must outlive its jobs while they wait. */
struct sched_client {
    struct sched_flow flows[SCHED_NUM_CLASSES];
};

/* One of those that share a client. Zeroed, it has had nothing of the workers. It must
 * outlive its jobs while they wait. */
struct sched_member {
    /* Finish tags of its last jobs, in the time of the client's flows. */
    atomic_int_fast64_t tags[SCHED_NUM_CLASSES];
};

/* A unit of work, embedded in the submitter's own struct. The submitter sets the first
 * members before each submission. */
struct sched_job {
    /* Called once, on a worker, with no lock held. The pool does not touch the job after
     * that, so `run` may hand it over or free it. */
    void (*run)(struct sched_job *job, struct sched_worker *worker);
    struct sched_client *client;
    struct sched_member *member; /* of the client, whose jobs all have one or none */
    int64_t cost;                /* ns of one worker that run() will take, as estimated */
    int64_t later; /* ns of a job that will follow this one as a part of it, or 0 */
    /* Orders the jobs of one flow: 1 is the first, and 0, the default, the last. */
    uint32_t priority;
    int64_t deadline; /* clock_now_ns; 0: none. The result is useless later. */
    /* Jobs of one group may be run as one; 0: none. `rows` say when that is enough. */
    uint64_t group;
    size_t rows;
    /* The result is not wanted any more. `run` may end early, without one. */
    atomic_bool cancelled;

    /* Used by the queue and the pool. */
    struct sched_job *next, *previous; /* of the flow */
    enum sched_class class;
    int64_t tag;        /* its start tag, once it was taken */
    int64_t member_tag; /* its start tag among the members */
    bool has_slot;      /* from sched_reserve() until a worker takes the job */
    bool waits;         /* in the queue */
};

/* Returns the `type` whose `member` is at `pointer`. A callback that gets a struct
 * sched_job finds the struct that it belongs to in this way. */
#define container_of(pointer, type, member)                                              \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

struct queue {
    struct sched_flow
        ring;         /* the head of a ring of flows: lowest tag first, then cheap */
    size_t num_flows; /* in the ring */
    /* Other threads read these two without the lock. */
    atomic_size_t num_jobs[SCHED_NUM_CLASSES]; /* that wait */
    atomic_int_fast64_t time;                  /* virtual */
    /* The largest finish tags of the jobs that were taken. */
    int64_t max_finish, max_large_finish;
};

void queue_init(struct queue *queue);

/* Returns how many jobs wait. Thread-safe. */
static inline size_t queue_num_jobs(const struct queue *queue) {
    return atomic_load(&queue->num_jobs[SCHED_CHEAP]) +
           atomic_load(&queue->num_jobs[SCHED_LARGE]);
}

/* Adds a job to its flow; its class follows from its cost. */
void queue_add(struct queue *queue, struct sched_job *job);

/* Removes a job that waits. */
void queue_remove(struct queue *queue, struct sched_job *job);

/* Removes the next job and returns it; NULL when none waits. */
struct sched_job *queue_take(struct queue *queue);

/* As queue_take(), but only a job of the class whose turn comes before the expected end
 * of the large jobs that were taken, or before the virtual time `reached`. It is the
 * first of its flow, and fits(context, job) is true, or `fits` is NULL. */
typedef bool queue_fits(const void *context, const struct sched_job *job);
struct sched_job *queue_take_inner(struct queue *queue, enum sched_class class,
                                   int64_t reached, queue_fits *fits,
                                   const void *context);

/* Removes jobs of the group, of any client, and writes them to ret_jobs, which
 * has room for `max`. Returns how many; they have at most max_rows rows in all. */
size_t queue_take_group(struct queue *queue, uint64_t group, size_t max_rows,
                        struct sched_job **ret_jobs, size_t max);

/* Counts a large job that runs without having waited. Returns its start tag. */
int64_t queue_charge(struct queue *queue, struct sched_client *client, int64_t cost);

/* Called when a large job ends early, because its result is not wanted any more: `unused`
 * was counted too much. The client goes on ahead of virtual time by at least what the
 * job has `used`: so the others have their turn before its next one. */
void queue_refund(struct queue *queue, struct sched_client *client, int64_t used,
                  int64_t unused);

/* Called when a job is added to an idle pool: all past shares are forgotten. */
void queue_forget_shares(struct queue *queue);

/* Returns the work in ns, of one worker, that would be done before the job if it were
 * added now. Jobs that run already do not count. */
int64_t queue_work_before(const struct queue *queue, const struct sched_job *job);

/* Returns the work in ns of all jobs that wait, with what they will submit later. */
int64_t queue_work(const struct queue *queue);
